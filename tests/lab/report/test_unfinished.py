"""A comparison that was stopped, or in which runs failed: what it says of itself, on the page and at its end."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from gence.lab.compare.comparison import compare
from gence.lab.data import DataError
from gence.lab.report.warnings import data_concerns, unfinished_concerns
from gence.lab.store.files import StoreError
from gence.lab.train import cohort
from tests.lab.small_runs import planned

NO_TIME = 1e-3


def quiet() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.fixture
def options(tmp_path):
    """A short comparison of digits into a folder of the test."""
    return {"epochs": 2, "out": tmp_path / "out", "device": "cpu", "files": False}


def text_of(page) -> str:
    """A page's text without its tags and line ends."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.read_text("utf-8")).replace("&#39;", "'"))


@pytest.mark.usefixtures("_undrawn")
def test_the_page_says_what_is_missing(options):
    compare(losses="ce,gence", seeds=1, **options, console=quiet())
    compare(losses="ce", seeds=2, **options, console=quiet())
    found = compare(losses="ce,gence,brier", seeds=2, **options, time_limit=NO_TIME, console=quiet())
    (chapter,) = found.report.chapters
    (unfinished,) = [concern for concern in chapter.concerns if "not finished" in concern]
    assert unfinished.startswith(
        "This comparison is not finished: 3 of 6 runs are there (GenCE 1 of 2, CE 2 of 2, Brier 0 of 2). "
    )
    assert unfinished in text_of(found.page)
    assert "Rerun the same command to resume" in unfinished
    assert not found.complete
    complete = compare(losses="ce,gence,brier", seeds=2, **options, console=quiet())
    assert complete.complete
    assert "not finished" not in text_of(complete.page)


@pytest.mark.usefixtures("_undrawn")
def test_a_loss_whose_runs_all_failed_is_named_on_the_page(options, monkeypatch):
    trained = cohort.train_cohort

    def broken(specs, **rest):
        if specs[0].loss.name == "brier":
            raise RuntimeError("no such kernel")
        return trained(specs, **rest)

    monkeypatch.setattr(cohort, "train_cohort", broken)
    found = compare(losses="ce,gence,brier", seeds=2, **options, console=quiet())
    (concern,) = [c for c in found.report.chapters[0].concerns if "not finished" in c]
    assert "4 of 6 runs are there (GenCE 2 of 2, CE 2 of 2, Brier 0 of 2)" in concern
    assert "Runs that failed: 2 of Brier; the folder failures/ of the store says why." in concern
    assert concern in text_of(found.page)


def test_nothing_is_missing_of_what_is_complete():
    specs = planned(losses="ce,gence", seeds=2).specs()
    assert unfinished_concerns(specs, [spec.key for spec in specs]) == []


@pytest.mark.usefixtures("_undrawn")
def test_a_comparison_without_time_counts_what_was_there(options):
    compare(losses="ce,gence", seeds=1, **options, console=quiet())
    found = compare(losses="ce,gence", seeds=3, **options, time_limit=NO_TIME, console=quiet())
    assert (len(found.runs.done), len(found.runs.skipped), len(found.runs.left)) == (0, 2, 4)
    assert "2 already there, 4 left: stopped by time limit" in found.summary()


@pytest.mark.usefixtures("_undrawn")
def test_tuning_without_time_leaves_all_final_runs(options):
    compare(losses="ce,gence", seeds=2, **options, console=quiet())
    found = compare(losses="ce,gence", seeds=2, tune_trials=2, **options, time_limit=NO_TIME, console=quiet())
    assert found.summary() == (
        "Tuning is not complete (CE has no finished trial, GenCE has no finished trial). Final runs: 0 done in 0 s, "
        "0 already there, 4 left: stopped by time limit; run it again to resume"
    )
    assert found.summary() in repr(found)
    assert not found.complete
    assert found.report is None  # the runs that are there were not tuned


@pytest.mark.usefixtures("_undrawn")
def test_losses_that_are_not_tuned_to_the_end_are_shown_as_such(options):
    tuned = compare(losses="ce,focal", seeds=1, tune_trials=1, **options, console=quiet())
    assert tuned.complete
    assert tuned.tuning is None
    found = compare(losses="ce,focal", seeds=1, tune_trials=3, **options, time_limit=NO_TIME, console=quiet())
    assert not found.complete
    assert (len(found.runs.skipped), len(found.runs.left)) == (2, 0)
    (concern,) = [c for c in found.report.chapters[0].concerns if "Tuning" in c]
    assert concern.startswith("Tuning is not complete (CE 1 of 3 trials, Focal 1 of 3 trials): ")


def test_classes_too_small_to_be_divided_are_named_before_any_trial(image_folder, tmp_path, options):
    with pytest.raises(DataError, match=r"n = 10, 10 of 10 classes have fewer: 0 \(1\), .* and 5 more; use --n 20 or"):
        compare(n=10, tune_trials=2, losses="ce", **options, console=quiet())
    assert not (tmp_path / "out").exists()
    planned(n=10, losses="ce")
    planned(n=20, losses="ce", tune_trials=1)
    one = image_folder(["a", "b"], 20)
    image_folder(["c"], 2, one)  # one to train on, one for the test
    with pytest.raises(DataError, match=r"with all labels, 1 of 3 classes have fewer: c \(1\); label more of them"):
        planned(one, losses="ce", tune_trials=1)
    with pytest.raises(DataError, match=r"with n = 3, 3 of 3 classes have fewer: .*; label more of them"):
        planned(one, n=3, losses="ce", tune_trials=1)


def test_more_labels_are_advised_where_there_are_more(image_folder):
    (concern,) = planned(image_folder(["a", "b"], 4), losses="ce").concerns
    assert "label more of them, or merge or remove these classes." in concern
    assert "--n" not in concern
    (drawn,) = planned(n=20, losses="ce").concerns
    assert drawn.endswith("label more of them, merge or remove these classes, or raise --n.")
    assert "--n" not in data_concerns([3, 20], ["cat", "dog"], batch_size=10, losses=[])[0]


def test_a_message_after_the_table_begins_a_line(options, monkeypatch):
    def refused(*_arguments, **_options):
        raise StoreError("no space left")

    monkeypatch.setattr("gence.lab.compare.comparison.run_grid", refused)
    console = quiet()
    with pytest.raises(StoreError, match="no space left"):
        compare(losses="ce", seeds=1, **options, console=console)
    text = console.file.getvalue()
    assert "0 of 1 runs" in text
    assert text.endswith("\n")
