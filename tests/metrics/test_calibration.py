"""Calibration errors: hand-made extremes, every bin edge, a naive oracle, and a second library."""

import math

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close
from torchmetrics.functional.classification import multiclass_calibration_error

from gence.metrics import (
    adaptive_calibration_error,
    classification_metrics,
    classwise_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    ks_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from tests.metrics.strategies import predictions

TOP_LABEL = [expected_calibration_error, maximum_calibration_error, adaptive_calibration_error]
ALL = [*TOP_LABEL, classwise_calibration_error]


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


def binary(confidence):
    """Probabilities of two classes, the first with the given confidence."""
    confidence = torch.as_tensor(confidence, dtype=torch.float64)
    return torch.stack([confidence, 1 - confidence], dim=1)


def naive_ece(probs, target, bins):
    """The definition, one row and one bin at a time, in Python's own floats."""
    total = 0.0
    for m in range(bins):
        rows = []
        for row, label in zip(probs.tolist(), target.tolist(), strict=True):
            confidence = max(row)
            above = confidence > m / bins or m == 0
            below = confidence <= (m + 1) / bins or m == bins - 1
            if above and below:
                rows.append((row.index(confidence) == label, confidence))
        if rows:
            right, sure = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
            total += len(rows) / len(probs) * abs(right - sure)
    return total


def naive_column(column, hits, bins):
    """ECE of one class's probabilities, bin by bin."""
    total = 0.0
    for m in range(bins):
        gaps = [
            hit - p
            for p, hit in zip(column, hits, strict=True)
            if (p > m / bins or m == 0) and (p <= (m + 1) / bins or m == bins - 1)
        ]
        total += abs(math.fsum(gaps)) / len(column)
    return total


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("n", [1, 2, 14, 15, 16, 100])
def test_sure_and_right_is_zero(metric, n):
    probs = torch.eye(10)[torch.arange(n) % 10]
    assert_close(metric(probs, torch.arange(n) % 10), f64(0.0))


@pytest.mark.parametrize("metric", TOP_LABEL)
@pytest.mark.parametrize("n", [1, 2, 14, 15, 16, 100])
def test_sure_and_wrong_is_one(metric, n):
    # The case that a half-open last bin loses: confidence 1.0 has to be in a bin.
    probs = torch.eye(10)[torch.arange(n) % 10]
    assert_close(metric(probs, (torch.arange(n) + 1) % 10), f64(1.0))


def test_classwise_sure_and_wrong():
    # Two classes, all mass on the first, all labels the second: both columns are wrong by 1.
    assert_close(classwise_calibration_error(binary([1.0, 1.0]), torch.tensor([1, 1])), f64(1.0))


@pytest.mark.parametrize("metric", ALL)
def test_one_class_is_always_right(metric):
    assert_close(metric(torch.ones(4, 1), torch.zeros(4, dtype=torch.long)), f64(0.0))


@pytest.mark.parametrize("m", range(8, 16))
def test_confidence_at_an_edge_belongs_to_the_bin_below(m):
    found = reliability_bins(binary([m / 15]), torch.tensor([0]), bins=15)
    assert found.count.nonzero().flatten().tolist() == [m - 1]
    above = reliability_bins(binary([min(1.0, math.nextafter(m / 15, 2))]), torch.tensor([0]), bins=15)
    assert above.count.nonzero().flatten().tolist() == [min(m, 14)]


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 49, 100])
def test_every_edge_of_every_number_of_bins(bins):
    # One row at the edge and its neighbour just above, one right and one wrong: in the same bin the gaps cancel, in
    # two bins they add.
    for m in range(bins + 1):
        above = math.nextafter(m / bins, 2) if m < bins else 1.0
        pair, target = binary([m / bins, above]), torch.tensor([0, 1])
        expected = naive_ece(pair, target, bins)
        assert_close(expected_calibration_error(pair, target, bins), f64(expected), rtol=1e-9, atol=1e-12)
        # The class-wise error bins every probability, down to 0 itself, which shares the first bin.
        gaps = [1 - m / bins, -above]
        together = m in (0, bins)
        first_class = (abs(sum(gaps)) if together else sum(map(abs, gaps))) / 2
        both = classwise_calibration_error(pair, target, bins)
        second = naive_column(pair[:, 1].tolist(), [0, 1], bins)
        assert_close(both, f64((first_class + second) / 2), rtol=1e-9, atol=1e-12)


def test_float32_is_compared_at_its_exact_value():
    directions = set()
    for m, bins in [*((m, 10) for m in range(6, 10)), *((m, 15) for m in range(8, 15))]:
        rounded = torch.tensor(m / bins, dtype=torch.float32)
        upwards = float(rounded) > m / bins
        directions.add(upwards)
        found = reliability_bins(torch.stack([rounded, 1 - rounded])[None], torch.tensor([0]), bins)
        assert found.count.nonzero().item() == (m if upwards else m - 1)
    assert directions == {True, False}  # both happen, so no fixed shift of the edges would do


def test_bins_hold_what_ece_is_made_of():
    probs, target = binary([0.6, 0.62, 0.95]), torch.tensor([0, 1, 0])
    found = reliability_bins(probs, target, bins=10)
    assert found.count.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 1]
    assert_close(found.edges, f64([m / 10 for m in range(11)]))
    assert_close(found.confidence[[5, 6, 9]], f64([0.6, 0.62, 0.95]))
    assert_close(found.accuracy[[5, 6, 9]], f64([1.0, 0.0, 1.0]))
    assert found.accuracy.isnan().tolist() == [count == 0 for count in found.count.tolist()]
    assert_close(found.expected_error, f64((0.4 + 0.62 + 0.05) / 3))
    assert_close(found.maximum_error, f64(0.62))
    lists = found.to_lists()
    assert lists["accuracy"][0] is None
    assert lists["accuracy"][5] == 1.0
    assert lists["count"][9] == 1


def test_a_mean_of_opposite_gaps_cancels_within_a_bin_only():
    same_bin, two_bins = binary([0.8, 0.8]), binary([0.7, 0.9])
    target = torch.tensor([0, 1])
    assert_close(expected_calibration_error(same_bin, target, 10), f64(0.3))
    assert_close(expected_calibration_error(two_bins, target, 10), f64((0.3 + 0.9) / 2))


def test_adaptive_bins_have_equal_mass():
    # Four rows, two bins: {0.6, 0.7} and {0.8, 0.9}.
    probs, target = binary([0.9, 0.6, 0.8, 0.7]), torch.tensor([0, 0, 1, 0])
    expected = (abs(1.0 - 0.65) * 2 + abs(0.5 - 0.85) * 2) / 4
    assert_close(adaptive_calibration_error(probs, target, bins=2), f64(expected))


def test_adaptive_ties_do_not_depend_on_the_order():
    probs = binary([0.75] * 4)
    for target in ([0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]):
        assert_close(adaptive_calibration_error(probs, torch.tensor(target), bins=3), f64(0.0))


def test_classwise_is_the_mean_of_the_columns():
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(200, 4, generator=generator, dtype=torch.float64).softmax(1)
    target = torch.randint(4, (200,), generator=generator)
    columns = []
    for k in range(4):
        index = (probs[:, k] * 15).ceil().clamp(1, 15) - 1
        gaps = [((target == k).double() - probs[:, k])[index == m].sum().abs() for m in range(15)]
        columns.append(torch.stack(gaps).sum() / 200)
    assert_close(classwise_calibration_error(probs, target), torch.stack(columns).mean())


def test_agrees_with_torchmetrics_away_from_the_edges():
    # torchmetrics 1.9 bins [lo, hi) and keeps confidence 1.0 in a bin of its own, so the two differ exactly where a
    # confidence equals an edge; random float64 confidences do not.
    generator = torch.Generator().manual_seed(1)
    probs = (2 * torch.randn(1000, 5, generator=generator, dtype=torch.float64)).softmax(1)
    target = torch.randint(5, (1000,), generator=generator)
    for ours, norm in ((expected_calibration_error, "l1"), (maximum_calibration_error, "max")):
        theirs = multiclass_calibration_error(probs, target, num_classes=5, n_bins=15, norm=norm)
        assert_close(ours(probs, target), theirs.double(), rtol=1e-6, atol=1e-7)


@given(predictions())
def test_equals_the_definition(sample):
    logits, target = sample
    probs = logits.double().softmax(1)
    assert_close(expected_calibration_error(probs, target), f64(naive_ece(probs, target, 15)), rtol=1e-9, atol=1e-12)


@given(predictions())
def test_summary_uses_the_same_functions(sample):
    logits, target = sample
    probs, found = logits.double().softmax(1), classification_metrics(logits, target, bins=7)
    names = ["ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece"]
    for name, metric in zip(names, [*ALL, debiased_calibration_error], strict=True):
        assert_close(found[name], metric(probs, target, 7).item())
    assert_close(found["ks"], ks_calibration_error(probs, target).item())


def rows_of(probs, target):
    """(confidence, right) row by row."""
    return [(max(p), p.index(max(p)) == y) for p, y in zip(probs.tolist(), target.tolist(), strict=True)]


@given(predictions())
def test_ks_equals_the_definition(sample):
    probs, target = sample[0].double().softmax(1), sample[1]
    rows = rows_of(probs, target)
    gaps = [abs(math.fsum(right - c for c, right in rows if c <= edge)) / len(rows) for edge, _ in rows]
    assert_close(ks_calibration_error(probs, target), f64(max(gaps)), rtol=1e-9, atol=1e-12)


def test_debiased_equals_the_definition():
    generator = torch.Generator().manual_seed(2)
    for n, bins in ((100, 7), (31, 4), (5, 15)):
        probs = torch.randn(n, 4, generator=generator, dtype=torch.float64).softmax(1)
        target = torch.randint(4, (n,), generator=generator)
        rows, total = sorted(rows_of(probs, target)), 0.0
        for m in range(min(n, bins)):
            part = rows[n * m // min(n, bins) : n * (m + 1) // min(n, bins)]
            if len(part) > 1:
                sure, right = (math.fsum(column) / len(part) for column in zip(*part, strict=True))
                total += len(part) / n * ((sure - right) ** 2 - right * (1 - right) / (len(part) - 1))
        expected = math.sqrt(max(total, 0.0))
        assert_close(debiased_calibration_error(probs, target, bins), f64(expected), rtol=1e-9, atol=1e-12)


def test_debiased_is_about_zero_where_the_plain_error_is_not():
    generator = torch.Generator().manual_seed(3)
    debiased, plain = [], []
    for _ in range(30):
        probs = torch.randn(300, 4, generator=generator, dtype=torch.float64).softmax(1)
        target = torch.multinomial(probs, 1, generator=generator).squeeze(1)  # perfectly calibrated
        debiased.append(float(debiased_calibration_error(probs, target)))
        plain.append(float(adaptive_calibration_error(probs, target)))
    assert sum(debiased) < sum(plain) / 2


@pytest.mark.parametrize("bins", [0, -1, 2.0, True])
@pytest.mark.parametrize("metric", [*ALL, reliability_bins])
def test_refuses_a_number_of_bins(metric, bins):
    with pytest.raises(ValueError, match="bins: "):
        metric(torch.ones(1, 1), torch.tensor([0]), bins)
