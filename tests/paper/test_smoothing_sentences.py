"""What the documentation says in words of label smoothing is so in the records."""

from __future__ import annotations

import statistics

import pytest

from gence.lab.store.store import Store
from gence.paper.exhibits.smoothing import smoothing
from gence.paper.records import Reader, default_results
from gence.paper.studies.evidence import read_courses

SMALL, LARGE = "cifar10-2000-resnet50", "cifar100-2000-resnet50"

Metrics = dict[str, list[dict[str, float]]]


@pytest.fixture(scope="module")
def metrics() -> dict[str, Metrics]:
    """The metrics of each recorded seed, by row and column."""
    exhibit, reader = smoothing(), Reader(Store(default_results()))
    return {
        row.name: {
            column.name: [dict(record.result.metrics) for spec in row.specs(column) if (record := reader.record(spec))]
            for column in exhibit.columns
        }
        for row in exhibit.selected([SMALL, LARGE])
    }


def of(metrics: Metrics, column: str, name: str) -> list[float]:
    assert len(metrics[column]) == 5
    return [100 * found[name] for found in metrics[column]]


def mean(metrics: Metrics, column: str, name: str) -> float:
    return statistics.fmean(of(metrics, column, name))


def test_smoothing_hardly_changes_the_accuracy_on_cifar100_alone(metrics) -> None:
    for plain, smoothed in (("ce", "ce_ls"), ("gence", "gence_ls")):
        apart = mean(metrics[LARGE], plain, "accuracy") - mean(metrics[LARGE], smoothed, "accuracy")
        assert abs(apart) < statistics.stdev(of(metrics[LARGE], plain, "accuracy"))
    cost = mean(metrics[SMALL], "ce", "accuracy") - mean(metrics[SMALL], "ce_ls", "accuracy")
    assert cost == pytest.approx(5, abs=0.5)


def test_supcon_reaches_its_printed_value_on_cifar100_and_is_best_on_cifar10(metrics) -> None:
    rows = {row.name: row.printed["supcon"].mean for row in smoothing().selected([SMALL, LARGE])}
    assert abs(mean(metrics[LARGE], "supcon", "accuracy") - rows[LARGE]) < 0.5
    assert rows[SMALL] - mean(metrics[SMALL], "supcon", "accuracy") == pytest.approx(2.3, abs=0.05)
    means = {name: mean(metrics[SMALL], name, "accuracy") for name in metrics[SMALL]}
    assert max(means, key=means.__getitem__) == "supcon"


def test_smoothing_does_not_repair_the_drift(metrics) -> None:
    (setting,) = read_courses(smoothing(), Store(default_results()), rows=[LARGE])
    for name in ("gence", "gence_ls"):
        assert len(setting.by_column[name]) == 5
        assert all(course.epochs_out for course in setting.by_column[name])
        assert min(course.drift[-1] for course in setting.by_column[name]) > 0.5
        assert sum(value < 10.5 for value in of(metrics[SMALL], name, "accuracy")) == 1


@pytest.mark.parametrize(("row", "ce", "anchored", "cost"), [(LARGE, 0.5, 0.06, 1), (SMALL, 0.33, 0.46, 2)])
def test_smoothing_lowers_the_calibration_error_of_networks_that_learnt(metrics, row, ce, anchored, cost) -> None:
    found = metrics[row]
    for name in ("ce", "anchored", "anchored_ls"):
        assert min(of(found, name, "train_accuracy")) > 85
    assert mean(found, "ce_ls", "ece") / mean(found, "ce", "ece") == pytest.approx(ce, abs=0.1)
    assert mean(found, "anchored_ls", "ece") / mean(found, "anchored", "ece") == pytest.approx(anchored, abs=0.04)
    apart = mean(found, "anchored", "accuracy") - mean(found, "anchored_ls", "accuracy")
    assert apart == pytest.approx(cost, abs=0.5)


def test_with_smoothing_the_anchored_error_is_below_cross_entropys_on_cifar100_alone(metrics) -> None:
    ratios = {row: mean(found, "anchored_ls", "ece") / mean(found, "ce_ls", "ece") for row, found in metrics.items()}
    assert ratios[LARGE] < 0.2
    assert 1 < ratios[SMALL] < 1.5
