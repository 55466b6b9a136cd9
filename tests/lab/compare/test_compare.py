from __future__ import annotations

import dataclasses
import inspect
import io
import math
import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.compare.auto import choose_device, choose_image_size
from gence.lab.compare.comparison import LiveTable, compare
from gence.lab.compare.options import DEFAULT_LOSSES, CompareOptions, flags
from gence.lab.data import DataError
from gence.lab.report import train_command
from gence.lab.report.page import build_report, render, write_report
from gence.lab.spec.fields import SpecError
from gence.lab.spec.recipe import RECIPES
from gence.lab.spec.run import RunSpec
from gence.lab.store import record as records
from gence.lab.store.files import StoreError
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep.run import GridProgress
from gence.lab.train import load_model
from tests.lab.small_runs import planned


def quiet():
    return Console(file=io.StringIO(), width=120)


def test_with_no_argument_it_is_the_documented_comparison():
    plan = planned()
    assert plan.summary() == (
        "digits, 100 labels, 10 classes: 7 losses x 5 seeds, small_cnn, recipe tiny, 40 epochs, batch 50, on cpu"
    )
    assert [str(loss) for loss in plan.losses] == list(DEFAULT_LOSSES)
    assert len(plan.specs()) == 35
    assert [spec.seed for spec in plan.specs()[:7]] == [0] * 7
    assert plan.concerns == ()


def test_wrong_arguments_are_named_before_anything_is_trained():
    for wrong, message in [
        ({"losses": ["gense"]}, "did you mean 'gence'"),
        ({"losses": []}, "losses is empty"),
        ({"seeds": 0}, "seeds is 0"),
        ({"n": 5}, "5 cannot be split evenly over 10 classes"),
        ({"data": np.zeros((3, 2))}, r"array of shape \(3, 2\) without labels.*numpy.savez"),
        ({"n": "many"}, "n is 'many'"),
        ({"recipe": "tinny"}, "did you mean 'tiny'"),
        ({"data": "no-such-folder", "model": "small_cn"}, "unknown model 'small_cn'; the nearest is 'small_cnn'"),
        ({"data": "no-such-folder", "device": "gpu"}, "device is 'gpu'"),
        ({"model": "vgg19"}, "vgg19"),
    ]:
        with pytest.raises(ValueError, match=message):
            planned(**wrong)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="sees no GPU here"):
            planned("no-such-folder", device="cuda")
    with pytest.raises(DataError, match="unknown data set"):
        planned("no-such-folder")
    with pytest.raises(DataError, match="unknown data set"):
        planned(ood=["no-such-folder"])
    with pytest.raises(SpecError, match="log"):
        compare(log="wandb")
    with pytest.raises(SpecError, match="workers is 0"):
        compare(workers=0, console=quiet())
    with pytest.raises(SpecError, match=r"leaves anchor to tuning, but nothing is tuned: add --tune N .* a number"):
        compare("no-such-folder", losses=["gence(anchor=tune)", "ce"], console=quiet())
    with pytest.raises(SpecError, match=r"gamma is .a.; expected a number, such as gamma=0\.5$"):
        planned(losses=["focal(gamma=a)"])
    with pytest.raises(SpecError, match="tune_trials is -1"):
        compare(tune_trials=-1, console=quiet())


def test_labels_are_rounded_down_to_as_many_per_class_and_it_is_said():
    plan = planned(n=105)
    assert plan.base.subset.n == 100
    assert plan.notes == ("n = 105 is not a multiple of the 10 classes: 100 labels are used, 10 per class",)
    assert planned(n=100).notes == ()


def test_what_is_skipped_is_a_note_that_is_said_once(image_folder):
    data = image_folder(["a", "b"], 6)
    (data / "labels.csv").write_text("a,b\n")
    plan = planned(str(data), ood=[str(data)], model="mlp", device="cpu")
    assert plan.notes == (f"{data}: skipped labels.csv: not images",)
    assert not any("labels.csv" in concern for concern in plan.concerns)


@pytest.mark.parametrize("n", ["0", "50,0", "-5", "many"])
def test_numbers_of_labels_that_make_no_sense_are_named_in_the_commands_words(n):
    with pytest.raises(SpecError, match=r"n is '.*'; expected at least 1 label, several numbers as in \"50,100,200\""):
        CompareOptions(n=n).label_counts()


def test_epochs_shorten_the_warm_up_too():
    plan = planned(epochs=4, batch_size=5)
    assert plan.base.recipe.warmup_epochs == pytest.approx(0.2)
    assert "--batch-size 20" in plan.concerns[0]


def test_image_size_is_chosen_by_looking(image_folder, tmp_path):
    small = image_folder(["a", "b"], 3)
    assert choose_image_size("digits", "cpu") is None
    assert choose_image_size(str(small), "cpu") is None
    Image.fromarray(np.zeros((40, 30, 3), dtype=np.uint8)).save(small / "a" / "wide.png")
    assert choose_image_size(str(small), "cpu") == 32
    assert choose_image_size(str(small), "cuda") == 64
    assert choose_image_size(str(small), "cpu", n=200) == 48
    (small / "a" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png is not a readable image"):
        choose_image_size(str(small), "cpu")
    assert choose_device("cuda:1", 8) == "cuda:1"
    assert choose_device("auto", 8) == "cpu"


def test_a_folder_of_images_with_another_as_ood(image_folder, tmp_path, monkeypatch):
    """300 images in 3 classes, names that would be markup or leave the folder, and out-of-distribution images."""
    monkeypatch.chdir(tmp_path)
    names = ["<script>alert(1)<", "$x$ & 'y'", "x..⁄..⁄x"]
    data = image_folder(names, 100)
    image_folder(["t-shirt"], 40, tmp_path / "else" / "x")
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    (tmp_path / "sub").mkdir()
    found = compare(
        str(data), losses=["gence", "ce"], seeds=2, epochs=4, ood=["sub/../else/x"], out="sub/out", device="cpu",
        console=quiet(),
    )  # fmt: skip
    assert found.complete
    assert len(found.frame) == 4
    assert found.report.chapters[0].classes == tuple(sorted(names))
    assert found.frame["ood/x/auroc_entropy"].between(0, 1).all()
    new = {p for p in tmp_path.rglob("*") if p.is_file()} - before
    assert all((tmp_path / "sub" / "out") in p.parents for p in new)
    page = found.page.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;ale…" in page  # on the axes of figures, where long names are cut
    assert found.report.chapters[0].mistakes is not None


@pytest.mark.usefixtures("_undrawn")
def test_it_goes_on_where_it_stopped(tmp_path):
    options = {"losses": ["ce", "gence"], "seeds": 2, "epochs": 2, "out": tmp_path, "device": "cpu", "files": False}
    first = compare(**{**options, "seeds": 1}, console=quiet())
    assert len(first.runs.done) == 2
    records = {p: p.stat().st_mtime_ns for p in (tmp_path / "store" / "records").rglob("*.json")}
    second = compare(**options, console=quiet())
    assert len(second.runs.done) == 2
    assert len(second.runs.skipped) == 2
    assert {p: p.stat().st_mtime_ns for p in records} == records
    assert len(second.frame) == 4


def test_a_time_limit_reports_what_there_is(tmp_path):
    options = {"losses": ["ce", "gence"], "epochs": 2, "out": tmp_path, "device": "cpu", "files": False}
    nothing = compare(**options, seeds=1, time_limit=1e-6, console=quiet())
    assert nothing.report is None
    assert nothing.runs.stopped == "time limit"
    assert len(nothing.frame) == 0
    assert "No run was finished" in nothing._repr_html_()
    assert "stopped by time limit; run it again to resume" in repr(nothing)
    compare(**options, seeds=1, console=quiet())
    partly = compare(**options, seeds=3, time_limit=1e-3, console=quiet())
    assert not partly.complete
    assert len(partly.frame) == 2
    assert partly.page.exists()


@pytest.mark.usefixtures("_undrawn")
def test_two_processes_give_the_same_numbers_as_one(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    frames = []
    try:
        torch.set_num_threads(1)  # as each of several processes has
        for workers in (1, 2):
            options = {"losses": ["ce", "gence"], "seeds": 1, "epochs": 2, "workers": workers, "device": "cpu"}
            found = compare(**options, out=tmp_path / str(workers), files=False, console=quiet())
            frames.append(found.frame.set_index("key")[["accuracy", "nll", "ece"]])
    finally:
        torch.set_num_threads(threads)
    assert "OMP_NUM_THREADS" not in os.environ
    pd.testing.assert_frame_equal(frames[0], frames[1], check_exact=True)


@pytest.mark.usefixtures("_undrawn")
def test_tuning_comes_first_and_its_runs_stay_out_of_the_report(tmp_path):
    found = compare(
        losses=["ce", "focal"], seeds=2, epochs=2, tune_trials=2, out=tmp_path, device="cpu", files=False,
        console=quiet(),
    )  # fmt: skip
    assert found.complete
    assert set(found.frame["loss.name"]) == {"ce", "focal"}
    assert len(found.frame) == 4
    assert found.frame["loss.gamma"].notna().sum() == 2
    assert len(found.report.chapters) == 1
    assert len(Store(tmp_path / "store").frame()) > 4


@pytest.mark.usefixtures("_undrawn")
def test_curves_reach_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    compare(
        losses=["gence(anchor=0.1)"], seeds=1, epochs=3, log="tensorboard", out=tmp_path, device="cpu", files=False,
        console=quiet(),
    )  # fmt: skip
    (run,) = (tmp_path / "tensorboard").iterdir()
    events = accumulator.EventAccumulator(str(run)).Reload()
    assert [event.step for event in events.Scalars("train/accuracy")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("test/accuracy")] == [3]


@pytest.fixture
def read_keys(monkeypatch) -> Counter:
    """How often the text of each record is verified and parsed in this process."""
    counted, parsed = Counter(), records._verified

    def counting(line, where):
        counted[records.key_of_line(line)] += 1
        return parsed(line, where)

    monkeypatch.setattr(records, "_verified", counting)
    return counted


@pytest.mark.parametrize("workers", [1, 2])
def test_each_record_is_read_once_and_the_data_are_checked_once(tmp_path, monkeypatch, read_keys, workers):
    def again(*_arguments):
        raise AssertionError("the images were compared with the records before the first run")

    monkeypatch.setattr("gence.lab.store.provenance.checksums_at_hand", again)
    options = {"losses": ["ce", "gence"], "epochs": 1, "out": tmp_path, "device": "cpu", "workers": workers}
    first = compare(**options, seeds=1, files=False, console=quiet())
    assert first.report.chapters[0].mistakes is not None  # predictions belong to records too
    assert dict(read_keys) == dict.fromkeys(first.runs.done, 1)
    read_keys.clear()
    second = compare(**options, seeds=2, files=False, console=quiet())
    assert (len(second.runs.done), len(second.runs.skipped)) == (2, 2)
    assert dict(read_keys) == dict.fromkeys([*second.runs.done, *second.runs.skipped], 1)


def test_the_options_are_those_of_the_call_and_of_the_command_line():
    listed = {option.name for option in dataclasses.fields(CompareOptions)}
    parameters = inspect.signature(compare).parameters
    assert set(parameters) == {*listed, "console"}
    assert {name: one.default for name, one in parameters.items() if name in listed} == {
        option.name: option.default for option in dataclasses.fields(CompareOptions)
    }
    assert all(f"    {name}: " in compare.__doc__ for name in parameters)
    assert {option.name for option, _, _ in flags()} == listed - {"files", "cache_dir"}
    with pytest.raises(TypeError, match="'epoch'"):
        compare(epoch=3)


def test_live_table_counts_what_the_store_has(compared):
    store = Store(compared.page.parent / "store")
    specs = [store.read(key).spec for key in compared.frame["key"]]
    more = [spec.replace(seed=99) for spec in specs[:1]]
    table = LiveTable(store, specs + more)
    table.update(GridProgress(runs=1, completed=0.5, recorded=()))
    console = quiet()
    console.print(table.render())
    text = console.file.getvalue()
    assert "9 of 10 runs" in text
    assert "●●●·" in text
    accuracy = compared.frame.loc[compared.frame["loss"] == "ce", "accuracy"].mean()
    assert f"{100 * accuracy:.1f}" in text


def test_a_notebook_shows_table_and_figures(compared):
    html = compared._repr_html_()
    assert html.count("<img ") == 3
    assert "GenCE (anchor 0.1)" in html
    assert "<script" not in html
    assert "page=" in repr(compared)


@pytest.mark.usefixtures("_undrawn")
def test_a_store_without_its_images_still_has_a_report(compared, tmp_path):
    store = Store(compared.page.parent / "store")
    away = Store(tmp_path / "store")
    for record in store.records():
        gone = record.spec.replace(data="folder-that-is-gone")
        away.write(gone, record.result, record.environment)
    report = build_report(away)
    assert report.chapters[0].mistakes is None
    assert "The data are not available" in write_report(report, tmp_path / "out", files=False).read_text("utf-8")


def test_an_empty_store_and_a_file_in_the_way_are_explained(tmp_path, compared):
    with pytest.raises(StoreError, match="has no finished run"):
        build_report(Store(tmp_path))
    with pytest.raises(StoreError, match="there is no store"):
        build_report(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="expected a folder"):
        write_report(compared.report, tmp_path / "file")
    with pytest.raises(StoreError, match="expected a folder"):
        compare(out=tmp_path / "file" / "below", store=tmp_path / "store", console=quiet())
    assert not (tmp_path / "store").exists()  # said before anything was trained


def test_diverged_runs_are_shown_and_not_judged(compared, tmp_path):
    store, broken = Store(compared.page.parent / "store"), Store(tmp_path)
    for record in store.records():
        result = record.result
        if str(record.spec.loss) == "gence" and record.spec.seed == 0:
            result = dataclasses.replace(result, status="diverged", metrics={"accuracy": 0.1}, tables={}, curves={})
        broken.write(record.spec, result, record.environment)
    chapter = build_report(broken).chapters[0]
    row = next(row for row in chapter.tables[0].rows if row.loss == "gence")
    assert row.cells[3].text.endswith("(2 of 3)")
    assert "GenCE: 1 of 3 runs diverged" in chapter.concerns[0]
    assert not math.isnan(chapter.verdict.of("nll").summaries["gence"].mean)


@pytest.mark.usefixtures("_undrawn")
def test_records_of_other_images_do_not_stand_in(image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = image_folder(["a", "b"], 20)
    options = {"losses": ["ce"], "seeds": 1, "epochs": 1, "batch_size": 8, "device": "cpu", "files": False}
    compare("photos", **options, out="r1", console=quiet())
    for spelling in ("photos/", "./photos"):
        again = compare(spelling, **options, out="r1", console=quiet())
        assert (len(again.runs.done), len(again.runs.skipped)) == (0, 1)
    for image in data.rglob("*.png"):
        pixels = np.asarray(Image.open(image))
        Image.fromarray(255 - pixels).save(image)
    report = build_report("r1/store")
    assert report.chapters[0].mistakes is None  # what was mistaken is not to be seen any more
    with pytest.raises(
        DataError, match=r"photos has changed since the run .* in r1/store was recorded .the training images"
    ):
        compare("photos", **options, out="r1", console=quiet())
    with pytest.raises(DataError, match="photos has changed"):
        compare("photos", **options, tune_trials=1, out="r1", console=quiet())
    assert len(compare("photos", **options, out="r2", console=quiet()).runs.done) == 1


@pytest.mark.usefixtures("_undrawn")
def test_one_store_for_two_folders_of_one_name(image_folder, tmp_path, monkeypatch):
    options = {"losses": ["ce"], "seeds": 1, "epochs": 1, "batch_size": 8, "device": "cpu", "files": False}
    for folder, classes in (("one", ["a", "b"]), ("two", ["a", "c"])):
        image_folder(classes, 20, tmp_path / folder / "photos")
    monkeypatch.chdir(tmp_path / "one")
    compare("photos", **options, store=tmp_path / "store", console=quiet())
    monkeypatch.chdir(tmp_path / "two")
    with pytest.raises(DataError, match=r"Name another folder \(--store"):
        compare("photos", **options, store=tmp_path / "store", console=quiet())


def test_losses_with_rates_of_their_own_are_drawn_against_the_labels(tmp_path):
    store = Store(tmp_path)
    base = {"data": "digits", "model": "small_cnn", "recipe": "tiny"}
    for loss, lr in (("ce", 0.1), ("gence", 0.05)):
        for n, seed in ((50, 0), (50, 1), (100, 0), (100, 1)):
            spec = RunSpec.from_dict({**base, "subset": n, "loss": loss, "seed": seed}).replace(**{"recipe.lr": lr})
            store.write(spec, RunResult(metrics={"accuracy": n / 200}), {"device": "cpu", "commit": None})
    report = build_report(store)
    chapter = report.chapters[0]
    parts = re.findall(r"<h3[^>]*>(.*?)</h3>", render(report))
    assert parts[:2] == ["Summary", "More labels, larger batches"]  # what several numbers were run for stands first
    (panel,) = [panel for panel, _ in chapter.panels if panel.name == "s1-accuracy-by-labels"]
    assert panel.description == "From 50 to 100: GenCE 25.0 to 50.0, CE 25.0 to 50.0."
    # A second rate of one loss is not mixed into its mean.
    other = RunSpec.from_dict({**base, "subset": 100, "loss": "ce", "seed": 0}).replace(**{"recipe.lr": 0.2})
    store.write(other, RunResult(metrics={"accuracy": 0.9}), {"device": "cpu", "commit": None})
    described = [panel.description for c in build_report(store).chapters for panel, _ in c.panels]
    assert "From 50 to 100: GenCE 25.0 to 50.0, CE 25.0 to 50.0." in described


def test_captions_say_how_many_seeds_each_loss_has(tmp_path):
    store = Store(tmp_path)
    base = {"data": "digits", "model": "small_cnn", "recipe": "tiny", "subset": 50}
    for loss, seed in [("ce", 0), ("ce", 1), ("ce", 2), ("gence", 0), ("gence", 1)]:
        spec = RunSpec.from_dict({**base, "loss": loss, "seed": seed})
        store.write(spec, RunResult(metrics={"accuracy": 0.5 + 0.1 * seed, "nll": 1.0 + seed}))
    described = {panel.name: panel.description for panel, _ in build_report(store).chapters[0].panels}
    assert described["accuracy"] == "Mean Accuracy, % ↑: GenCE 55.0 (2 seeds), CE 60.0 (3 seeds)."
    assert described["accuracy-difference"] == "Mean difference in Accuracy, % ↑ over 2 seeds: GenCE +0.0."


def test_runs_that_all_diverged_have_no_best_and_no_empty_figures(tmp_path):
    recipe = RECIPES["tiny"].replace(lr=1e9, epochs=2, warmup_epochs=0)
    found = compare(losses=["ce", "gence"], seeds=2, recipe=recipe, out=tmp_path, device="cpu", console=quiet())
    chapter = found.report.chapters[0]
    assert "2 of 2 of GenCE" in chapter.verdict.headline
    assert not any(cell.best for row in chapter.tables[0].rows for cell in row.cells)
    names = {panel.name for panel, _ in chapter.panels}
    assert "accuracy" in names
    assert not names & {"nll", "ece", "accuracy-difference"}


def test_arguments_may_be_written_as_people_do(image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    image_folder(["a", "b"], 10)
    (tmp_path / "other").mkdir()
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(tmp_path / "other" / "0.png")
    options = {"epochs": 1, "batch_size": 4, "device": "cpu"}
    plan = planned(Path("photos"), losses="gence(anchor=0.1, prior=train),ce", ood="other", seeds=np.int64(2),
                           n=np.int64(4), **options)  # fmt: skip
    assert (plan.base.data, plan.base.ood, plan.seeds, plan.base.subset.n) == ("photos", ("other",), (0, 1), 4)
    assert [str(loss) for loss in plan.losses] == ["gence(anchor=0.1,prior=train)", "ce"]
    assert planned(losses="ce", seeds=np.arange(3), ood=Path("other")).seeds == (0, 1, 2)
    found = compare(losses="ce", seeds=1, epochs=1, out=tmp_path / "out", files=False, device="cpu", console=quiet())
    assert found.complete
    for wrong, message in [
        ({"seeds": 2.5}, "seeds is 2.5"),
        ({"seeds": "2"}, "seeds is '2'"),
        ({"data": 3}, "data is 3"),
    ]:
        with pytest.raises(SpecError, match=message):
            planned(**wrong)


def test_a_package_that_is_not_there_is_named_once(monkeypatch):
    for package, options, extra in [
        ("optuna", {"tune_trials": 2, "model": "small_cnn"}, "tune"),
        ("tensorboard", {"log": "tensorboard"}, "tensorboard"),
    ]:
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
        with pytest.raises(ValueError, match=rf"needs the package {package}.*gence\[{extra}\]"):
            compare("no-such-folder", **options, console=quiet())


def test_figures_of_an_earlier_comparison_do_not_stay(compared, tmp_path):
    write_report(compared.report, tmp_path)
    names = {"figures/confusion-3.svg", "figures/auroc-1.png", "tables/runs.md"}
    assert all((tmp_path / name).exists() for name in names)
    old = ["figures/s2-accuracy-by-labels.svg", "figures/confusion-9.png", "tables/s2-losses.tex"]
    own = ["figures/mine.svg", "figures/accuracy.svg.txt", "tables/notes.md", "accuracy.png"]
    for name in old + own:
        (tmp_path / name).write_text("x")
    write_report(compared.report, tmp_path)
    assert not any((tmp_path / name).exists() for name in old)
    assert all((tmp_path / name).read_text() == "x" for name in own)
    assert all((tmp_path / name).exists() for name in names)


def test_every_file_of_a_report_is_known_as_one(compared):
    from gence.lab.report.page import _OWN_FILES

    for part, names in _OWN_FILES.items():
        assert all(names.fullmatch(path.name) for path in (compared.page.parent / part).iterdir())


@pytest.mark.usefixtures("_undrawn")
def test_a_store_with_runs_of_different_images_says_so(compared, tmp_path):
    store, mixed = Store(compared.page.parent / "store"), Store(tmp_path / "mixed")
    for record in store.records():
        data = {**record.result.data, "test": "0" * 64} if record.spec.seed == 2 else record.result.data
        mixed.write(record.spec, dataclasses.replace(record.result, data=data), record.environment)
    assert not any("different images" in concern for concern in build_report(store).chapters[0].concerns)
    (concern,) = [c for c in build_report(mixed).chapters[0].concerns if "different images" in c]
    assert "the test images differ" in concern
    shown = CliRunner().invoke(create_app(), ["show", str(tmp_path / "mixed")], env={"COLUMNS": "200"})
    assert "used different images: the test images" in shown.output


@pytest.mark.usefixtures("_undrawn")
def test_several_numbers_of_labels_are_one_report_and_the_best_is_kept(tmp_path):
    options = {"model": "mlp", "epochs": 2, "losses": "gence,ce", "seeds": 2, "console": quiet(), "files": False}
    found = compare("digits", n="50, 105", out=tmp_path / "out", save_best=tmp_path / "best", **options)
    printed = options["console"].file.getvalue().splitlines()
    assert [line for line in printed if line.startswith(("Note:", "Warning:")) and printed.count(line) > 1] == []
    assert found.complete
    assert len(found.runs.done) == 8
    assert [chapter.setting.frame["subset.n"].iloc[0] for chapter in found.report.chapters] == [50, 100]
    assert found.recommended.subset.n == 100
    saved = load_model(found.saved, "cpu")
    assert (found.saved.name, saved.spec) == ("best.safetensors", found.recommended)
    stopped = compare("digits", n=[50, 100, 150], out=tmp_path / "out", time_limit=1e-9, **options)
    assert (len(stopped.runs.skipped), len(stopped.runs.left), stopped.runs.stopped) == (8, 4, "time limit")


def test_the_command_that_repeats_a_run_has_its_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = compare(
        "digits", n=20, model="mlp", epochs=1, losses="gence(anchor=0.1)", seeds=1, files=False, console=quiet()
    )
    words = shlex.split(train_command(found.recommended))[1:]
    told = CliRunner().invoke(create_app(), [*words, "--store", "gence-report/store"], catch_exceptions=False)
    assert f"{found.recommended.key} is already recorded in gence-report/store" in told.output


def own_network(num_classes, in_channels):
    return torch.nn.Sequential(
        torch.nn.Conv2d(in_channels, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, num_classes)
    )


def with_softmax(num_classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes), torch.nn.Softmax(1))


@pytest.mark.usefixtures("_undrawn")
def test_networks_of_ones_own(tmp_path):
    options = {"epochs": 1, "losses": "ce", "seeds": 1, "out": tmp_path / "out", "console": quiet(), "files": False}
    found = compare("digits", n=20, model=own_network, save_best=tmp_path, **options)
    assert re.fullmatch(rf"own:{__name__}:own_network#[0-9a-f]{{8}}", found.recommended.model)
    with pytest.raises(ValueError, match=rf"holds a network that is built by code, own:{__name__}:own_network; if you"):
        load_model(found.saved, "cpu")
    assert load_model(found.saved, "cpu", own_code=True).spec == found.recommended
    for model, message in [
        (with_softmax, "does not come from an nn.Linear with 10 outputs"),
        (lambda: None, "a function at the top level of a module"),
        ("own:no_such_module:make", "cannot import no_such_module"),
        ("own:tests:make", "the module tests has no make"),
    ]:
        with pytest.raises(ValueError, match=message):
            compare("digits", n=20, model=model, **options)
