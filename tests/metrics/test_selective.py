"""The risk-coverage curve: by hand, over all orders of ties, and its bounds."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

from gence.metrics import (
    area_under_risk_coverage,
    classification_metrics,
    excess_area_under_risk_coverage,
    risk_coverage_curve,
)
from tests.metrics.strategies import predictions


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


def test_curve_by_hand():
    curve = risk_coverage_curve(f64([0.2, 0.9, 0.5, 0.7]), torch.tensor([False, True, True, False]))
    assert_close(curve.coverage, f64([0.25, 0.5, 0.75, 1.0]))
    assert_close(curve.risk, f64([0.0, 1 / 2, 1 / 3, 1 / 2]))


def test_ties_are_the_mean_over_all_their_orders():
    confidence, correct = f64([0.9, 0.5, 0.5, 0.5, 0.5, 0.1]), torch.tensor([True, False, True, False, True, False])
    # Distinct confidences in place of the ties, in every order.
    curves = []
    for order in itertools.permutations([0.50, 0.51, 0.52, 0.53]):
        broken = f64([0.9, *order, 0.1])
        curves.append(risk_coverage_curve(broken, correct).risk)
    assert_close(risk_coverage_curve(confidence, correct).risk, torch.stack(curves).mean(0))


@pytest.mark.parametrize(("correct", "expected"), [([True] * 3, 0.0), ([False] * 3, 1.0), ([True, False], 0.5)])
def test_constant_confidence_gives_the_error_rate(correct, expected):
    assert_close(area_under_risk_coverage(torch.full((len(correct),), 0.5), torch.tensor(correct)), f64(expected))


def test_one_row():
    assert area_under_risk_coverage(f64([0.3]), torch.tensor([False])).item() == 1.0
    assert excess_area_under_risk_coverage(f64([0.3]), torch.tensor([False])).item() == 0.0


def test_perfect_confidence_has_no_excess():
    generator = torch.Generator().manual_seed(0)
    correct = torch.rand(100, generator=generator) < 0.7
    confidence = correct.double() + 0.5 * torch.rand(100, generator=generator, dtype=torch.float64)
    assert_close(excess_area_under_risk_coverage(confidence, correct), f64(0.0))
    # The usual closed form of the perfect area is its limit for many rows: e + (1 - e) log(1 - e).
    error = (~correct).double().mean().item()
    limit = error + (1 - error) * math.log(1 - error)
    assert_close(area_under_risk_coverage(confidence, correct), f64(limit), rtol=0, atol=0.02)


@given(predictions())
def test_bounded_and_free_of_the_order_of_the_rows(sample):
    logits, target = sample
    confidence, correct = logits.double().softmax(1).amax(1), logits.argmax(1) == target
    area = area_under_risk_coverage(confidence, correct)
    excess = excess_area_under_risk_coverage(confidence, correct)
    assert 0 <= area.item() <= 1
    assert -1e-12 <= excess.item() <= area.item() + 1e-12
    assert_close(area_under_risk_coverage(confidence.flip(0), correct.flip(0)), area)
    assert_close(classification_metrics(logits, target)["aurc"], area.item())
    last = risk_coverage_curve(confidence, correct).risk[-1]
    assert_close(last, (~correct).double().mean())


@pytest.mark.parametrize(
    ("confidence", "correct", "error", "words"),
    [
        (torch.zeros(2), torch.zeros(2), TypeError, "correct: dtype torch.float32"),
        (torch.zeros(2), torch.zeros(3).bool(), ValueError, r"correct: shape \(3,\)"),
        (torch.zeros(2, 2), torch.zeros(2).bool(), ValueError, r"confidence: shape \(2, 2\)"),
        (torch.tensor([math.nan]), torch.zeros(1).bool(), ValueError, "confidence: row 0 is NaN"),
    ],
)
def test_refuses_with_a_clear_error(confidence, correct, error, words):
    with pytest.raises(error, match=words):
        risk_coverage_curve(confidence, correct)
