from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys

import pytest
from filelock import FileLock

from gence.lab.spec.fields import SpecError
from gence.lab.spec.loss import LossSpec
from gence.lab.store.files import StoreError
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep import search
from gence.lab.sweep.trials import LossTrials, TuneSettings
from gence.lab.sweep.tuning import TuneReport, tune, tuned_grid
from tests.lab.tiny_trainer import make_specs, train

TrialState = pytest.importorskip("optuna.trial").TrialState

LOSSES = ("ce", "gence", "gence(anchor=tune)")
SETTINGS = TuneSettings(trials=6, batch=3, rungs=(0.5, 1.0), seeds=(1000, 1001))


@pytest.fixture
def base():
    return make_specs(1)[0].replace(ood=["svhn"])


@pytest.fixture
def run(base, tmp_path, quiet_console):
    def call(losses=LOSSES, settings=SETTINGS, trainer=train, **options) -> TuneReport:
        options = {"device": "cpu", "cohort_size": 64, "console": quiet_console, **options}
        return tune(base, losses, tmp_path / "store", settings=settings, trainer=trainer, **options)

    return call


def test_every_loss_gets_the_same_trials_and_none_sees_test_data(run, tmp_path):
    report = run()
    assert report.complete
    assert [str(tuned.asked) for tuned in report.best] == list(LOSSES)
    assert [tuned.trials for tuned in report.best] == [6, 6, 6]
    frame = Store(tmp_path / "store").frame()
    assert set(frame["evaluate_on"]) == {"val"}
    assert set(frame["subset.val_fraction"]) == {0.2}
    assert set(frame["ood"]) == {""}
    assert set(frame["seed"]) == {1000, 1001}
    assert set(frame["recipe.epochs"]) == {10, 20}
    # Each loss has the first rung of each trial, over both seeds; the same rate is not proposed twice.
    kind = frame["loss.anchor"].notna().map({True: "anchored", False: ""}) + frame["loss.name"]
    first = frame[frame["recipe.epochs"] == 10].groupby(kind)
    assert dict(first.size()) == {"ce": 12, "gence": 12, "anchoredgence": 12}
    assert dict(first["recipe.lr"].nunique()) == {"ce": 6, "gence": 6, "anchoredgence": 6}
    pruned = sum(tuned.pruned for tuned in report.best)
    assert len(frame[frame["recipe.epochs"] == 20]) == 2 * (18 - pruned)
    assert pruned >= 3, "of three trials side by side, half continue, rounded to two"


def test_the_best_of_a_batch_go_on_whatever_their_order(run, tmp_path):
    settings = dataclasses.replace(SETTINGS, trials=4, batch=4, rungs=(0.25, 0.5, 1.0))
    report = run(["ce"], settings)
    assert report.best[0].pruned == 3
    frame = Store(tmp_path / "store").frame()
    at = {epochs: rows.groupby(["recipe.lr"])["accuracy"].mean() for epochs, rows in frame.groupby("recipe.epochs")}
    assert [len(at[epochs]) for epochs in (5, 10, 20)] == [4, 2, 1]
    for before, after in ((5, 10), (10, 20)):
        out = at[before].drop(at[after].index)
        assert at[before][at[after].index].min() >= out.max()


def test_the_best_is_the_best_that_was_run_in_full(run, tmp_path):
    report = run()
    frame = Store(tmp_path / "store").frame()
    whole = frame[(frame["recipe.epochs"] == 20) & (frame["loss"] == "ce")]
    means = whole.groupby(["recipe.lr", "recipe.weight_decay", "recipe.warmup_epochs"])["accuracy"].mean()
    assert report.best[0].value == pytest.approx(means.max())
    assert report.best[0].changes["recipe.lr"] in [lr for lr, *_ in means[means == means.max()].index]


def test_the_final_grid_is_whole_fresh_and_on_test(run, base):
    report = run()
    specs = tuned_grid(report, range(3))
    assert len(specs) == 9
    assert {(s.evaluate_on, s.subset.val_fraction, s.recipe.epochs, s.ood) for s in specs} == {
        ("test", 0.0, 20, ("svhn",))
    }
    assert {s.seed for s in specs} == {0, 1, 2}
    anchored = specs[-1].loss
    assert 0.01 <= anchored.params["anchor"] <= 1
    assert specs[0].recipe.lr == report.best[0].changes["recipe.lr"] != base.recipe.lr
    with pytest.raises(SpecError, match=r"seeds \[1000\] were used for tuning"):
        tuned_grid(report, [3, 1000])


def test_tuning_stopped_anywhere_goes_on_to_the_same_end(run, tmp_path, base, quiet_console):
    undisturbed = tune(base, LOSSES, tmp_path / "other", settings=SETTINGS, trainer=train, device="cpu",
                       cohort_size=64, console=quiet_console)  # fmt: skip
    calls = []

    def dying(specs, **options):
        calls.append(len(specs))
        if len(calls) in (1, 3, 4):
            raise KeyboardInterrupt
        return train(specs, **options)

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run(trainer=dying)
    report = run(trainer=dying)
    assert report == undisturbed
    assert Store(tmp_path / "store").keys() == Store(tmp_path / "other").keys()
    before = len(calls)
    assert run(trainer=dying) == report
    assert len(calls) == before, "nothing is left to do"
    more = run(trainer=dying, settings=TuneSettings(trials=7, batch=3, rungs=(0.5, 1.0), seeds=(1000, 1001)))
    assert [tuned.trials for tuned in more.best] == [7, 7, 7]


def test_a_process_killed_while_it_asks_changes_nothing_about_what_is_proposed(run, tmp_path, monkeypatch):
    undisturbed = run(["ce"])
    shutil.rmtree(tmp_path / "store")
    suggest, calls = search.suggest_changes, []

    def dying(*arguments):
        calls.append(arguments)
        if len(calls) in (2, 4, 8):
            raise KeyboardInterrupt
        return suggest(*arguments)

    monkeypatch.setattr("gence.lab.sweep.trials.suggest_changes", dying)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run(["ce"])
    assert run(["ce"]) == undisturbed


def test_records_alone_lead_to_the_same_settings_with_nothing_trained_again(run, tmp_path):
    report = run()
    shutil.rmtree(tmp_path / "store" / "tune")

    def refuse(*_args, **_options):
        raise AssertionError("trained again")

    assert run(trainer=refuse) == report


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.99])
def test_a_torn_last_line_of_the_journal_is_cut_off_and_said(run, tmp_path, caplog, share):
    report = run(["ce"])
    journal = tmp_path / "store" / "tune" / "trials.log"
    whole = journal.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    cut = ends[int(share * len(ends))] - 7  # within a line, as a disk that fills up leaves it
    journal.write_bytes(whole[:cut])
    assert run(["ce"]) == report
    assert caplog.messages == [
        f"the last line of {journal} was cut short, by a full disk or a power cut; it is removed"
    ]
    assert journal.read_bytes().startswith(whole[: whole.rfind(b"\n", 0, cut) + 1])
    caplog.clear()
    assert run(["ce"]) == report
    assert not caplog.messages


def test_a_damaged_line_within_the_journal_is_named(run, tmp_path):
    run(["ce"])
    journal = tmp_path / "store" / "tune" / "trials.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], lines[2][:9], *lines[3:]]))
    with pytest.raises(StoreError, match=r"line 3 of .*trials\.log is damaged; restore the file, or remove it"):
        run(["ce"])


def test_a_run_that_fails_stops_it_and_uses_up_nothing(run):
    def unmounted(specs, **options):
        raise OSError("the data are not mounted")

    undisturbed = run(losses=("ce",))
    for _ in range(2):
        report = run(losses=("gence",), trainer=unmounted)
        assert (report.complete, report.stopped, report.best) == (False, "failed trials", ())
        assert len(report.failed) == 6
        assert set(report.failed.values()) == {"OSError: the data are not mounted"}
    report = run(losses=("ce", "gence"))
    assert (report.complete, report.failed, report.best[0]) == (True, {}, undisturbed.best[0])
    assert [tuned.trials for tuned in report.best] == [6, 6]


def test_a_trial_that_always_fails_can_be_skipped(run, tmp_path):
    def too_large(specs, **options):
        """High rates never train, whatever is done about it."""
        if any(spec.recipe.lr > 0.05 for spec in specs):
            raise RuntimeError("out of memory")
        return train(specs, **options)

    options = {"losses": ("ce", "gence"), "trainer": too_large, "cohort_size": 1}
    for _ in range(2):
        report = run(**options)
        assert (report.complete, report.stopped) == (False, "failed trials")
    report = run(**options, skip_failed=True)
    assert (report.complete, [tuned.trials for tuned in report.best]) == (True, [6, 6])
    assert all(tuned.changes["recipe.lr"] <= 0.05 and tuned.value > 0 for tuned in report.best)
    assert set(report.failed.values()) == {"RuntimeError: out of memory"}


def test_trials_are_not_skipped_where_nothing_trains(run):
    def unmounted(specs, **options):
        raise OSError("the data are not mounted")

    report = run(losses=("ce",), trainer=unmounted, skip_failed=True)
    assert (report.complete, report.stopped, report.best) == (False, "failed trials", ())
    assert run(losses=("ce",)).complete


@pytest.mark.parametrize("metric", ["accuracy", "nll"])
def test_diverged_trials_count_against_the_budget(run, metric):
    def flawed(specs, **options):
        """Diverge at high rates: an accuracy, and nothing else."""
        diverged = RunResult(metrics={"accuracy": 0.25}, status="diverged")
        found = train(specs, **options)
        return [diverged if spec.recipe.lr > 0.05 else one for spec, one in zip(specs, found, strict=True)]

    settings = dataclasses.replace(SETTINGS, metric=metric)
    report = run(losses=("ce", "gence"), trainer=flawed, settings=settings)
    assert report.complete
    assert [tuned.trials for tuned in report.best] == [6, 6]
    assert {tuned.metric for tuned in report.best} == {metric}
    assert report.best[0].value > 0.25 if metric == "accuracy" else report.best[0].value < 1e6


def test_what_was_spent_is_complete_whatever_happened_before(run, base, tmp_path):
    first = run(losses=("ce",), settings=dataclasses.replace(SETTINGS, trials=3))
    # A process killed between asking for a trial and writing down what it changes.
    study = LossTrials(Store(tmp_path / "store"), base, LossSpec.parse("ce"), SETTINGS).study
    study.ask()
    # A trial that an older version gave up because its runs failed.
    given_up = study.ask()
    given_up.set_user_attr("changes", study.best_trial.user_attrs["changes"])
    study.tell(given_up, state=TrialState.FAIL)
    report = run(losses=("ce",), settings=dataclasses.replace(SETTINGS, trials=4))
    assert (report.complete, report.best[0].trials) == (True, 4)
    smaller = run(losses=("ce",), settings=dataclasses.replace(SETTINGS, trials=2))
    assert first.complete
    assert (smaller.complete, smaller.best[0].trials) == (True, 4)


def test_a_time_limit_stops_it(run, monkeypatch):
    monkeypatch.setenv("EPOCH_S", "0.01")
    report = run(time_limit=0.3)
    assert (report.complete, report.stopped) == (False, "time limit")


def test_two_at_once_in_one_store_is_an_error(run, tmp_path):
    (tmp_path / "store" / "tune").mkdir(parents=True)
    with FileLock(tmp_path / "store" / "tune" / "tune.lock"):
        code = (
            "import sys; from gence.lab.sweep.tuning import _alone; from pathlib import Path\n"
            "with _alone(Path(sys.argv[1])): pass"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "store" / "tune")]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert StoreError.__name__ in done.stderr
    assert "another process is tuning" in done.stderr


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda base, path: tune(base, ["ce", "ce"], path), "different from each other"),
        (lambda base, path: tune(base, [], path), "got none"),
        (lambda base, path: tune(base, ["ec"], path), "loss is 'ec'"),
        (
            lambda base, path: tune(base, ["ce(label_smoothing=tune)", "gence(prior=tune)"], path),
            "asks to tune 'prior'",
        ),
        (lambda base, path: TuneSettings(metric="acuracy"), "did you mean 'accuracy'"),
        (lambda base, path: TuneSettings(rungs=(0.5,)), "end in 1.0"),
        (lambda base, path: TuneSettings(val_fraction=0), "val_fraction"),
        (lambda base, path: TuneSettings(trials=0), "trials is 0; expected at least 1"),
        (lambda base, path: TuneSettings(seeds=()), "seeds is empty"),
        (lambda base, path: tune(base, ["ce"], path, time_limit=-5), "time_limit is -5"),
    ],
)
def test_mistakes_are_named(base, tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(base, tmp_path / "store")
    assert not (tmp_path / "store" / "records").exists()
