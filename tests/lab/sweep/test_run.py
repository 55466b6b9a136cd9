from __future__ import annotations

import math
import os
import signal

import pytest
import torch

from gence.lab.data import DataError
from gence.lab.spec.fields import SpecError
from gence.lab.store.environment import environment_record
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep.claims import Failures
from gence.lab.sweep.engines import Capacity, create_engine
from gence.lab.sweep.run import RunReport, _cohort_size, run_grid
from gence.lab.sweep.worker import load_trainer, seconds_per_run
from tests.lab import tiny_trainer
from tests.lab.tiny_trainer import make_specs, train


@pytest.fixture
def run(tmp_path, quiet_console):
    def call(specs, trainer=train, **options) -> RunReport:
        options = {"device": "cpu", "console": quiet_console, **options}
        return run_grid(specs, tmp_path / "store", trainer=trainer, **options)

    return call


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def counting(trainer=train):
    """The trainer, and the sizes of the cohorts it was called with."""
    sizes = []

    def counted(specs, **options):
        sizes.append(len(specs))
        return trainer(specs, **options)

    return counted, sizes


@pytest.mark.parametrize("engine", ["local", create_engine("processes", workers=1)])
def test_the_caller_is_told_of_each_record_once_and_nothing_is_printed(tmp_path, capsys, engine):
    specs, heard = make_specs(3), []
    run_grid(specs[:2], tmp_path, trainer=train, device="cpu", on_progress=heard.append, engine=engine)
    assert [key for progress in heard for key in progress.recorded] == [spec.key for spec in specs[:2]]
    assert {progress.runs for progress in heard} == {2}
    completed = [progress.completed for progress in heard]
    assert completed == sorted(completed)
    assert (completed[0] > 0, completed[-1]) == (True, 2)
    heard.clear()
    run_grid(specs, tmp_path, trainer=train, device="cpu", on_progress=heard.append, engine=engine)
    assert sorted(key for progress in heard for key in progress.recorded) == sorted(spec.key for spec in specs[2:])
    assert capsys.readouterr() == ("", "")


def test_does_what_is_missing_and_skips_what_is_done(run, store, quiet_console):
    specs = make_specs(3)
    first = run(specs[:4])
    assert (len(first.done), len(first.skipped), first.complete) == (4, 0, True)
    counted, sizes = counting()
    second = run([*specs, *specs], trainer=counted, cohort_size=8)
    assert sorted(second.done) == sorted(spec.key for spec in specs[4:])
    assert sorted(second.skipped) == sorted(spec.key for spec in specs[:4])
    assert sizes == [2]
    assert store.missing(specs) == []
    printed = quiet_console.file.getvalue()
    assert "2 done" in printed
    assert "4 already there, none left" in printed


def test_cohorts_hold_compatible_runs_up_to_the_cap(run):
    specs = [*make_specs(5), *make_specs(3, epochs=10)]
    cohorts = []

    def watched(specs, **options):
        cohorts.append([spec.cohort_key for spec in specs])
        return train(specs, **options)

    run(specs, trainer=watched, cohort_size=4)
    assert sorted(map(len, cohorts)) == [2, 2, 4, 4, 4]
    assert all(len(set(keys)) == 1 for keys in cohorts)


def test_data_that_cannot_be_had_are_asked_for_once_and_the_others_trained(run, store):
    specs = make_specs(3)
    elsewhere = [spec.replace(data="svhn") for spec in specs[:2]]
    asked = []

    def offline(specs, **options):
        if specs[0].data == "svhn":
            return train(specs, **options)
        asked.append(len(specs))
        raise DataError("digits could not be downloaded")

    report = run([*specs, *elsewhere], trainer=offline, cohort_size=1, max_attempts=2)
    assert asked == [1]
    assert report.failed == {spec.key: "DataError: digits could not be downloaded" for spec in specs}
    assert set(report.done) == {spec.key for spec in elsewhere}
    assert sum(Failures(store.root).counts().values()) == 1
    assert len(run(specs).done) == len(specs)  # nothing is given up: the network may be back


def test_a_failing_run_is_found_retried_and_does_not_stop_the_others(run, store):
    specs = make_specs(4)
    bad = specs[5]
    tried = []

    def flawed(specs, **options):
        tried.append(len(specs))
        if bad in specs:
            raise FloatingPointError("seed 1 of gence goes wrong")
        return train(specs, **options)

    report = run(specs, trainer=flawed, cohort_size=8, max_attempts=3)
    assert len(report.done) == 7
    assert report.failed == {bad.key: "FloatingPointError: seed 1 of gence goes wrong"}
    assert not report.complete
    attempts = Failures(store.root).attempts(bad.key)
    assert len(attempts) == 3
    assert 'raise FloatingPointError("seed' in attempts[0]["traceback"]
    before = len(tried)
    again = run(specs, trainer=flawed, max_attempts=3)
    assert len(tried) == before, "the cap holds over restarts"
    assert set(again.failed) == {bad.key}
    healed = run(specs, retry_failed=True)
    assert healed.done == (bad.key,)
    assert Failures(store.root).counts() == {}


def test_a_run_that_fails_once_is_done_at_the_second_attempt(run):
    failed = []

    def shaky(specs, **options):
        if not failed:
            failed.append(1)
            raise OSError("the disk blinked")
        return train(specs, **options)

    assert run(make_specs(2), trainer=shaky).complete


def test_out_of_memory_halves_the_cohort_and_remembers(run, store):
    def greedy(specs, **options):
        if len(specs) > 3:
            raise torch.cuda.OutOfMemoryError(f"{len(specs)} do not fit")
        return train(specs, **options)

    counted, sizes = counting(greedy)
    report = run(make_specs(8), trainer=counted, cohort_size=8)
    assert report.complete
    assert sizes == [8, 4, 2, 2, 4, 2, 2, 2, 2, 2, 2]
    assert Failures(store.root).counts() == {}


def test_a_single_run_that_does_not_fit_has_failed(run):
    def huge(specs, **options):
        raise torch.cuda.OutOfMemoryError("never fits")

    report = run(make_specs(1), trainer=huge, cohort_size=2)
    assert set(report.failed.values()) == {"OutOfMemoryError: never fits"}


def test_a_trainer_that_miscounts_is_told(run):
    report = run(make_specs(1, losses=("ce",)), trainer=lambda specs, **_: [], max_attempts=1)
    assert "returned 0 results for 1 runs" in next(iter(report.failed.values()))


def test_the_time_limit_leaves_what_cannot_finish(run, store, monkeypatch):
    monkeypatch.setenv("EPOCH_S", "0.03")
    specs = make_specs(10)
    report = run(specs, time_limit=3.0)
    assert report.stopped == "time limit"
    assert 1 <= len(report.done) <= 5
    assert len(report.left) == 20 - len(report.done)
    assert f"{len(report.left)} left: stopped by time limit" in report.summary()
    counted, sizes = counting()
    # From the records a run takes 0.6 s or a little more, so that two or three fit into 2.1 s, and no fourth is begun.
    some = run(specs, trainer=counted, time_limit=2.1, cohort_size=8)
    assert sizes[0] in (2, 3)
    assert len(some.done) >= 1


def test_a_run_longer_than_any_limit_is_begun_all_the_same(run, store, monkeypatch):
    monkeypatch.setenv("EPOCH_S", "0.02")
    specs = make_specs(2)
    run(specs[:1])
    counted, sizes = counting()
    report = run(specs, trainer=counted, time_limit=0.2)
    assert (sizes, report.stopped, report.done) == ([1], "time limit", ())


def test_automatic_cohorts_keep_every_gpu_busy():
    sizes = [_cohort_size("auto", Capacity(cohorts=gpus, on_gpu=True), 35) for gpus in (1, 4, 8, 64)]
    assert sizes == [8, 8, 5, 1]
    assert _cohort_size("auto", Capacity(cohorts=1, on_gpu=False), 35) == 1
    assert _cohort_size(3, Capacity(cohorts=8, on_gpu=True), 35) == 3


def test_sigterm_ends_the_cohort_early_and_says_what_is_left(run, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(specs, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return train(specs, **options)

    report = run(make_specs(2), trainer=interrupted)
    assert (len(report.left), report.stopped, report.done) == (4, "SIGTERM", ())
    assert signal.getsignal(signal.SIGTERM) == before


def test_ctrl_c_stops_cleanly_and_twice_at_once(run, store):
    def once(specs, **options):
        os.kill(os.getpid(), signal.SIGINT)
        return train(specs, **options)

    assert run(make_specs(1), trainer=once).stopped == "interrupted"

    def twice(specs, **options):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        return train(specs, **options)

    with pytest.raises(KeyboardInterrupt):
        run(make_specs(1), trainer=twice)
    assert not list((store.root / "claims").glob("*.claim")), "claims end with the process's work"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("engine", ["local", create_engine("gpus", workers=1)])
def test_a_device_that_is_not_here_is_one_error_and_no_failed_run(run, store, engine):
    specs = make_specs(1)
    with pytest.raises(ValueError, match="sees no GPU here"):
        run(specs, device="cuda", engine=engine)
    assert Failures(store.root).counts() == {}
    assert run(specs, device="cpu").complete


def test_the_record_names_the_device_that_was_used(run, store, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {device or 'in use'}")
    spec, *others = make_specs(1)
    run([spec], device="cpu")
    assert store.read(spec.key).environment["device"] == "cpu"
    # How long a run takes is known from this device's records alone.
    known = [seconds_per_run(store, [spec.key], device) is not None for device in ("cpu", "auto", "cuda:1")]
    assert known == [True, False, False]
    run(others, device="auto")
    assert [store.read(other.key).environment["device"] for other in others] == ["GPU in use"]
    assert environment_record("cuda:1")["device"] == "GPU cuda:1"


def test_predictions_are_kept_unless_told_otherwise(run, store):
    specs = make_specs(1)
    run(specs[:1])
    run(specs, keep_predictions=False)
    assert [store.predictions(spec.key) is not None for spec in specs] == [True, False]


def test_the_trainer_may_be_an_import_path():
    assert load_trainer("tests.lab.tiny_trainer.train") is tiny_trainer.train
    assert load_trainer("tests.lab.tiny_trainer:train") is tiny_trainer.train
    with pytest.raises(ValueError, match="import path"):
        load_trainer("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "locl"}, "did you mean 'local'"),
        ({"cohort_size": 0}, "cohort_size is 0"),
        ({"cohort_size": "many"}, "cohort_size is 'many'"),
        ({"time_limit": 0}, "time_limit is 0"),
        ({"time_limit": math.nan}, "time_limit is nan; expected a positive number of seconds"),
        ({"max_attempts": 0}, "max_attempts is 0"),
    ],
)
def test_options_that_make_no_sense_are_named(run, options, message):
    with pytest.raises((ValueError, SpecError), match=message):
        run(make_specs(1), **options)
    with pytest.raises(ValueError, match="option of the engine 'ray'"):
        create_engine("local", address="auto")


def test_what_this_call_has_done_says_best_how_long_a_run_takes(run, store):
    old, new = make_specs(6, losses=("ce",)), make_specs(6, losses=("gence",))
    for spec, wall_s in zip(old, (90.0, 90.0, 90.0, 20.0, 20.0, 20.0), strict=True):
        store.write(spec, RunResult(metrics={}, wall_s=wall_s), environment_record("cpu"))
    store.write(old[0].replace(seed=9), RunResult(metrics={}, status="diverged", wall_s=1.0), environment_record("cpu"))
    peers = [spec.key for spec in (*old, old[0].replace(seed=9), *new)]
    assert (
        seconds_per_run(store, peers[2:], "cpu") == 20.0
    )  # the median, of those that were done and are on this device
    # By the old records, 55 s each, one run fits into 100 s; by what that one took, all the others do.
    counted, sizes = counting()
    report = run([*old, *new], trainer=counted, time_limit=100.0, cohort_size=3)
    assert (sizes, report.complete) == ([1, 3, 2], True)
    record_of(store, old[0]).write_text("damaged")
    assert seconds_per_run(store, peers, "cpu") is not None


def record_of(store, spec):
    return dict(store.loose_files())[spec.key]


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_that_cannot_be_read_is_named_and_neither_done_again_nor_lost(run, store, quiet_console, packed):
    specs = make_specs(2)
    run(specs[:3])
    if packed:
        store.pack()
    file = store.pack_path if packed else record_of(store, specs[1])
    whole = file.read_bytes()
    place = whole.index(b'"status"', whole.index(specs[1].key.encode()))
    damaged = whole[:place] + b'"Status"' + whole[place + 8 :]
    file.write_bytes(damaged)
    report = run(specs)
    assert (report.done, set(report.skipped)) == ((specs[3].key,), {specs[0].key, specs[2].key})
    assert list(report.unreadable) == [specs[1].key]
    assert not report.complete
    assert file.read_bytes() == damaged
    said = " ".join(quiet_console.file.getvalue().split())
    assert "was changed after it was written (its checksum does not match); restore it, or remove it" in said
    assert "2 already there, 1 cannot be read (gence store check), none left" in said
    file.write_bytes(whole)
    assert run(specs).complete
