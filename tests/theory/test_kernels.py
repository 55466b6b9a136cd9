"""Populations, completeness, and the two sufficient conditions."""

import math

import pytest
import torch

from gence.theory import (
    Population,
    anchor_point_population,
    completeness,
    distinct_gaussians,
    gaussian_population,
    has_anchor_points,
    proportional_population,
    random_population,
)

GRID = torch.linspace(-3, 3, 9, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (torch.ones(3), "kernel: expected shape"),
        (torch.ones(3, 1), "K >= 2"),
        (torch.tensor([[1.2, -0.2]]), "probabilities >= 0"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.4]]), "row 1 sums to 0.9"),
        (torch.tensor([[float("nan"), 1.0]]), "finite"),
    ],
)
def test_bad_kernels_are_named(kernel, message):
    with pytest.raises(ValueError, match=message):
        Population(kernel.double())


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.0], "expected shape"), ([1.0, 0.0], "drop the inputs"), ([0.6, 0.6], "sum to 1.2")],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        Population(torch.eye(2), torch.tensor(weights))


def test_random_kernel_is_complete_and_too_few_inputs_are_not():
    assert completeness(random_population(5, 3).kernel).complete
    few = completeness(random_population(2, 3).kernel)
    assert (few.rank, few.complete, few.smallest_singular_value) == (2, False, 0.0)
    torch.testing.assert_close(random_population(2, 3).kernel @ few.null_space, torch.zeros(2, 1).double())


@pytest.mark.parametrize("seed", range(20))
def test_anchor_points_imply_completeness(seed):
    found = completeness(anchor_point_population(4, 4, strength=0.501, seed=seed).kernel)
    assert found.has_anchor_points
    assert found.complete


def test_half_is_not_enough_for_an_anchor_point():
    # q(k|x) = 1/2 exactly: the paper's condition is strict, and this kernel shows why.
    kernel = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 0.5, 0.0], [0.0, 0.5, 0.0, 0.5]])
    assert not has_anchor_points(kernel)
    assert completeness(kernel).rank == 3


def test_proportional_columns_are_incomplete():
    population = proportional_population(6, 4, ratio=0.25)
    torch.testing.assert_close(population.kernel[:, 3], 0.25 * population.kernel[:, 2])
    found = completeness(population.kernel)
    assert (found.rank, found.complete) == (3, False)


def test_distinct_gaussians_are_complete_and_equal_ones_are_not():
    means, covariances = torch.tensor([[-1.0], [0.0], [0.0]]), torch.tensor([[[1.0]], [[1.0]], [[2.0]]])
    assert distinct_gaussians(means, covariances)
    assert completeness(gaussian_population(GRID, means, covariances).kernel).complete
    covariances[2] = 1.0
    assert not distinct_gaussians(means, covariances)
    assert not completeness(gaussian_population(GRID, means, covariances).kernel).complete


def test_gaussian_population_is_bayes_rule():
    means = torch.tensor([[0.0, 1.0], [1.0, -1.0]]).double()
    covariances = torch.tensor([[[1.0, 0.3], [0.3, 2.0]], [[0.5, 0.0], [0.0, 0.5]]]).double()
    priors = torch.tensor([0.3, 0.7]).double()
    grid = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).double()
    population = gaussian_population(grid, means, covariances, priors)
    components = [torch.distributions.MultivariateNormal(m, c) for m, c in zip(means, covariances, strict=True)]
    joint = torch.stack([p * c.log_prob(grid).exp() for p, c in zip(priors, components, strict=True)], dim=1)
    torch.testing.assert_close(population.kernel, joint / joint.sum(1, keepdim=True))
    torch.testing.assert_close(population.weights, joint.sum(1) / joint.sum())


def test_constructors_refuse_what_they_cannot_make():
    with pytest.raises(ValueError, match="1/2 < strength"):
        anchor_point_population(4, 4, strength=0.5)
    with pytest.raises(ValueError, match="at least 4 inputs"):
        anchor_point_population(3, 4)
    with pytest.raises(ValueError, match="not positive definite"):
        gaussian_population(GRID, torch.zeros(2, 1), torch.tensor([[[1.0]], [[-1.0]]]))
    with pytest.raises(ValueError, match="ratio"):
        proportional_population(3, 3, ratio=0.0)


def test_marginals():
    population = Population(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double(), torch.tensor([0.25, 0.75]).double())
    torch.testing.assert_close(population.prior, torch.tensor([0.375, 0.625]).double())
    assert math.isclose(population.marginal(torch.full((2, 2), 0.5).double())[0].item(), 0.5)
