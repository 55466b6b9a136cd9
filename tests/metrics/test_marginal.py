"""The predicted marginal and its divergence from the prior."""

import math

import pytest
import torch
from torch.testing import assert_close

from gence.metrics import label_distribution, marginal_divergence, predicted_marginal


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


def test_agrees_with_the_definition():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    prior = torch.rand(4, generator=generator, dtype=torch.float64)
    prior /= prior.sum()
    marginal = logits.softmax(1).mean(0)
    assert_close(predicted_marginal(logits), marginal)
    assert_close(marginal_divergence(logits, prior), (prior * (prior / marginal).log()).sum())
    assert_close(marginal_divergence(logits, marginal), f64(0.0))


def test_collapse_into_one_class_is_finite():
    # Every row sure of class 0 by 1e4: the other marginals underflow, their logarithms do not.
    logits = torch.tensor([[1e4, 0.0]]).expand(7, 2)
    assert predicted_marginal(logits).tolist() == [1.0, 0.0]
    assert_close(marginal_divergence(logits, f64([0.5, 0.5])), f64(0.5 * 1e4 - math.log(2)))


def test_a_class_of_prior_zero_adds_nothing():
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    assert_close(marginal_divergence(logits, f64([0.5, 0.5, 0.0])), f64(0.0))
    assert marginal_divergence(logits, f64([0.5, 0.25, 0.25])).item() == math.inf


def test_label_distribution():
    assert_close(label_distribution(torch.tensor([3, 3, 0]), 4), f64([1 / 3, 0, 0, 2 / 3]))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: marginal_divergence(torch.zeros(2, 3), f64([0.5, 0.5])), ValueError, r"prior: \(2,\) was given"),
        (lambda: marginal_divergence(torch.zeros(2, 2), f64([0.5, 0.6])), ValueError, "prior: row 0"),
        (lambda: marginal_divergence(torch.zeros(2, 2), [0.5, 0.5]), ValueError, "prior: list"),
        (lambda: label_distribution(torch.tensor([2]), 2), ValueError, "target: class indices"),
        (lambda: label_distribution(torch.tensor([0]), 0), ValueError, "classes: 0"),
        (lambda: label_distribution(torch.zeros(0).long(), 2), ValueError, r"target: shape \(0,\)"),
    ],
)
def test_refuses_with_a_clear_error(call, error, words):
    with pytest.raises(error, match=words):
        call()
