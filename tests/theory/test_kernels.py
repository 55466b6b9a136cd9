"""Populations, completeness, and the two sufficient conditions."""

import math

import numpy
import pytest
import torch

from gence.theory import (
    GenCE,
    Population,
    anchor_point_population,
    completeness,
    distinct_gaussians,
    gaussian_population,
    has_anchor_points,
    mean_absolute_error_minimiser,
    proportional_population,
    random_population,
    risk,
)

GRID = torch.linspace(-3, 3, 9, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (torch.ones(3), "kernel: expected shape"),
        (torch.ones(3, 1), "K >= 2"),
        (torch.tensor([[1.2, -0.2]]), "probabilities >= 0"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.4]]), "row 1 sums to 0.9"),
        (torch.tensor([[float("nan"), 1.0]]), "finite .*got nan in row 0, class 0"),
        (torch.tensor([[0.5, 0.5], [1.0, float("inf")]]), "finite .*got inf in row 1, class 1"),
    ],
)
def test_bad_kernels_are_named(kernel, message):
    with pytest.raises(ValueError, match=message):
        Population(kernel.double())


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "expected shape"),
        ([1.0, 0.0], "got 0 for input 1; drop the inputs"),
        ([math.nan, 1.0], "got nan for input 0"),
        ([1.5, -0.5], "got -0.5 for input 1"),
        ([0.6, 0.6], "sum to 1.2.*, expected 1; divide"),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        Population(torch.eye(2), torch.tensor(weights))


@pytest.mark.parametrize("kernel", [[[0.9, 0.1], [0.2, 0.8]], numpy.eye(2), None], ids=["list", "array", "None"])
def test_what_is_no_tensor_is_named(kernel):
    population = Population(torch.eye(2))
    for name, refused in (
        ("kernel", lambda: Population(kernel)),
        ("kernel", lambda: completeness(kernel)),
        ("kernel", lambda: mean_absolute_error_minimiser(kernel)),
        ("forecast", lambda: population.marginal(kernel)),
        ("forecast", lambda: risk(GenCE(), population, kernel)),
        ("means", lambda: distinct_gaussians(kernel, torch.ones(2, 2, 2))),
        ("grid", lambda: gaussian_population(kernel, torch.zeros(2, 1), torch.ones(2, 1, 1))),
    ):
        with pytest.raises(TypeError, match=rf"{name}: expected a tensor .*got {type(kernel).__name__}"):
            refused()
    with pytest.raises(TypeError, match=r"weights: expected a tensor \(2,\), got list"):
        Population(torch.eye(2), [0.5, 0.5])
    with pytest.raises(TypeError, match=r"kernel: .*real numbers, got dtype torch.complex64"):
        Population(torch.eye(2).to(torch.complex64))


def test_random_kernel_is_complete_and_too_few_inputs_are_not():
    assert completeness(random_population(5, 3).kernel).complete
    few = completeness(random_population(2, 3).kernel)
    assert (few.rank, few.complete, few.smallest_singular_value) == (2, False, 0.0)
    torch.testing.assert_close(random_population(2, 3).kernel @ few.null_space, torch.zeros(2, 1).double())


def test_random_inputs_differ_in_weight():
    weights = random_population(5, 3).weights
    assert weights.min() < 0.8 / 5 < 1.2 / 5 < weights.max()
    assert not torch.equal(weights, random_population(5, 3, seed=1).weights)


@pytest.mark.parametrize("strength", [0.51, 0.9])
def test_anchor_points_are_as_strong_as_asked(strength):
    kernel = anchor_point_population(6, 4, strength=strength).kernel
    torch.testing.assert_close(kernel[:4].diagonal(), torch.full((4,), strength).double())


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("small", [0.05, 0.1, 1 / 6, 0.15, 0.2, 0.22])
def test_rounding_makes_no_anchor_point_of_a_half(dtype, small):
    """Rows that sum to a little less than 1 are divided by that: 1/2 becomes more than 1/2."""
    large = 0.5 - small
    kernel = torch.tensor(
        [[0.5, 0, small, large], [0, 0.5, large, small], [small, large, 0.5, 0], [large, small, 0, 0.5]], dtype=dtype
    )
    found = completeness(kernel, tolerance=1e-7)
    assert not found.complete
    assert not found.has_anchor_points
    assert not has_anchor_points(kernel)


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


@pytest.mark.parametrize(
    ("means", "covariances", "message"),
    [
        (torch.tensor([[math.nan], [math.nan]]), torch.ones(2, 1, 1), "means: expected finite numbers, got nan"),
        (torch.zeros(2, 1), torch.full((2, 1, 1), math.inf), "covariances: expected finite numbers, got inf"),
        (torch.zeros(2, 1), torch.tensor([[[1.0]], [[-1.0]]]), "covariances: component 1 is not positive definite"),
        (torch.zeros(1, 2), torch.tensor([[[1.0, 0.5], [0.0, 1.0]]]), "covariances: component 0 is not symmetric"),
        (torch.tensor(0.0), torch.ones(1, 1, 1), r"means, covariances: expected \(K, d\)"),
        (torch.zeros(0, 1), torch.ones(0, 1, 1), r"means, covariances: expected \(K, d\)"),
        (torch.zeros(2, 1), torch.ones(2), r"one matrix per component, got \(2, 1\) and \(2,\)"),
    ],
)
def test_what_is_no_gaussian_is_named(means, covariances, message):
    """NaN is unlike NaN: without a look at it, two broken components would count as distinct."""
    with pytest.raises(ValueError, match=message):
        distinct_gaussians(means, covariances)
    with pytest.raises(ValueError, match=message):
        gaussian_population(torch.zeros(3, max(1, means.shape[-1] if means.dim() else 1)), means, covariances)


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
    for ratio in (0.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"ratio: .*got {ratio}"):
            proportional_population(3, 3, ratio=ratio)
    with pytest.raises(ValueError, match=r"sharpness: expected a finite factor.*got nan"):
        random_population(3, 3, sharpness=math.nan)
    with pytest.raises(TypeError, match=r"sharpness: expected a finite factor.*got str"):
        random_population(3, 3, sharpness="1")
    with pytest.raises(TypeError, match=r"strength: expected a number.*got NoneType"):
        anchor_point_population(3, 3, strength=None)
    with pytest.raises(TypeError, match=r"ratio: expected a finite ratio.*got str"):
        proportional_population(3, 3, ratio="1")
    for make in (random_population, anchor_point_population, proportional_population):
        with pytest.raises(TypeError, match=r"seed: expected a whole number, got 1\.5"):
            make(3, 3, seed=1.5)
        with pytest.raises(ValueError, match="points: expected at least 1, got -1"):
            make(-1, 2)
        with pytest.raises(ValueError, match="classes: expected at least 2, got 1"):
            make(3, 1)
        with pytest.raises(TypeError, match=r"points: expected a whole number, at least 1, got 2\.5"):
            make(2.5, 2)
    means, covariances = torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1, 1)
    with pytest.raises(ValueError, match="grid: point 9 lies so far"):
        gaussian_population(torch.cat([GRID, torch.tensor([[100.0]])]), means, covariances)
    with pytest.raises(ValueError, match="grid: expected finite numbers, got nan"):
        gaussian_population(GRID * math.nan, means, covariances)
    with pytest.raises(ValueError, match=r"grid, means: expected \(m, d\) with m >= 1 .*got \(0, 1\)"):
        gaussian_population(GRID[:0], means, covariances)
    with pytest.raises(ValueError, match=r"means: expected at least 2 components.*got \(1, 1\)"):
        gaussian_population(GRID, means[:1], covariances[:1])
    with pytest.raises(ValueError, match=r"priors: .*got 0 for component 1; drop the components"):
        gaussian_population(GRID, means, covariances, torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("tolerance", [-1.0, 1.0, math.nan])
def test_tolerance_is_checked(tolerance):
    with pytest.raises(ValueError, match=rf"tolerance: .*\[0, 1\), got {tolerance}"):
        completeness(torch.eye(2), tolerance=tolerance)


def test_a_tolerance_is_a_number():
    with pytest.raises(TypeError, match=r"tolerance: expected a fraction .*got str"):
        completeness(torch.eye(2), tolerance="small")


def test_half_precision_is_to_be_divided_in_float64():
    kernel = torch.tensor([[0.1, 0.2, 0.7]], dtype=torch.float16)
    with pytest.raises(ValueError, match=r"row 0 sums to 1\.0001.*divide each row by its sum, in float64"):
        Population(kernel)
    Population(kernel.double() / kernel.double().sum(1, keepdim=True))


def test_marginals():
    population = Population(torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double(), torch.tensor([0.25, 0.75]).double())
    torch.testing.assert_close(population.prior, torch.tensor([0.375, 0.625]).double())
    assert math.isclose(population.marginal(torch.full((2, 2), 0.5).double())[0].item(), 0.5)
    torch.testing.assert_close(population.marginal(torch.eye(2)), population.weights)  # float32 is taken, too
    with pytest.raises(ValueError, match=r"forecast: expected \(2, 2\).*got \(2, 4\)"):
        population.marginal(torch.full((2, 4), 0.25))
