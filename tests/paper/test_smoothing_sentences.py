"""What the documentation says in words of label smoothing is so in the records."""

from __future__ import annotations

import statistics

import pytest

from gence.lab.store.store import Store
from gence.paper.exhibits.smoothing import smoothing
from gence.paper.records import Reader, default_results
from gence.paper.studies.evidence import read_courses

ROW = "cifar100-2000-resnet50"


@pytest.fixture(scope="module")
def metrics() -> dict[str, list[dict[str, float]]]:
    """The metrics of each recorded seed, by column."""
    exhibit, reader = smoothing(), Reader(Store(default_results()))
    (row,) = exhibit.selected([ROW])
    return {
        column.name: [dict(record.result.metrics) for spec in row.specs(column) if (record := reader.record(spec))]
        for column in exhibit.columns
    }


def of(metrics: dict[str, list[dict[str, float]]], column: str, name: str) -> list[float]:
    return [100 * found[name] for found in metrics[column]]


def test_smoothing_hardly_changes_the_accuracy_of_cross_entropy_or_gence(metrics) -> None:
    for plain, smoothed in (("ce", "ce_ls"), ("gence", "gence_ls")):
        before, after = (of(metrics, name, "accuracy") for name in (plain, smoothed))
        assert len(before) == len(after) == 5
        assert abs(statistics.fmean(before) - statistics.fmean(after)) < statistics.stdev(before)


def test_smoothing_does_not_repair_the_drift() -> None:
    (setting,) = read_courses(smoothing(), Store(default_results()), rows=[ROW])
    for name in ("gence", "gence_ls"):
        assert len(setting.by_column[name]) == 5
        assert all(course.epochs_out for course in setting.by_column[name])
        assert min(course.drift[-1] for course in setting.by_column[name]) > 0.5


def test_smoothing_lowers_the_calibration_error_of_networks_that_learnt(metrics) -> None:
    assert len(metrics["anchored_ls"]) == 4
    for name in ("ce", "ce_ls", "anchored", "anchored_ls"):
        assert min(of(metrics, name, "train_accuracy")) > 95
    errors = {name: statistics.fmean(of(metrics, name, "ece")) for name in metrics if metrics[name]}
    assert errors["ce_ls"] / errors["ce"] == pytest.approx(0.5, abs=0.1)
    assert errors["anchored_ls"] / errors["anchored"] < 0.1
    assert errors["anchored_ls"] / errors["ce_ls"] < 0.2
    cost = statistics.fmean(of(metrics, "anchored", "accuracy")) - statistics.fmean(
        of(metrics, "anchored_ls", "accuracy")
    )
    assert cost == pytest.approx(1, abs=0.5)
