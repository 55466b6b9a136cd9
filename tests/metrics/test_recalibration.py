"""NLL and Brier score in parts: sums, signs, and what a change of confidence alone changes."""

import math

import pytest
import torch

from gence.metrics import best_temperature, brier_score, negative_log_likelihood, score_parts
from tests.calibrate.test_calibrators import drawn, hard_case


def test_parts_sum_to_the_scores_at_the_best_temperature():
    z, y = drawn(400, 6, 2.5)
    parts, t = score_parts(z, y), best_temperature(z, y)
    assert parts.nll_refinement == pytest.approx(float(negative_log_likelihood(z / t, y)))
    assert parts.nll_refinement + parts.nll_calibration == pytest.approx(float(negative_log_likelihood(z, y)))
    assert parts.brier_refinement == pytest.approx(float(brier_score((z / t).softmax(1), y)))
    assert parts.brier_refinement + parts.brier_calibration == pytest.approx(float(brier_score(z.softmax(1), y)))


def test_confidence_alone_changes_the_calibration_part_alone():
    z, y = drawn(400, 6, 1.0)
    calm, sure = score_parts(z, y), score_parts(5 * z, y)
    assert sure.nll_refinement == pytest.approx(calm.nll_refinement, rel=1e-6)
    assert sure.brier_refinement == pytest.approx(calm.brier_refinement, rel=1e-6)
    assert sure.nll_calibration > calm.nll_calibration + 0.5
    assert calm.nll_calibration == pytest.approx(0, abs=0.02)


def test_parts_of_hard_cases_are_finite_and_none_is_negative():
    for seed in range(100):
        parts = score_parts(*hard_case(seed))
        assert all(map(math.isfinite, parts)), seed
        assert parts.nll_calibration >= 0, seed


def test_a_class_that_is_ruled_out_and_comes_is_infinitely_wrong():
    z = torch.tensor([[0.0, -math.inf], [1.0, 0.0]])
    assert 0 < best_temperature(z, torch.tensor([1, 0])) < math.inf
    assert 0 < best_temperature(z, torch.tensor([0, 1])) < math.inf


def test_the_best_temperature_where_every_row_rules_a_class_out():
    logits = torch.tensor([[72.0, 12.0, 82.0, -torch.inf], [267.0, -80.0, -9.0, -torch.inf]])
    target = torch.tensor([1, 2])
    without = best_temperature(logits[:, :3], target)
    assert best_temperature(logits, target) == pytest.approx(without, rel=1e-7)
    assert without > 1e5
