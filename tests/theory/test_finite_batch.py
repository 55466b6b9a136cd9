"""Batches of B draws: exact expectations against brute force, and what finite batches do to the minimiser."""

import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gence import theory
from gence.losses import gen_cross_entropy
from gence.theory import (
    GenCE,
    Population,
    batch_risk,
    batch_size_table,
    brier,
    minimise_batch_risk,
    proportional_population,
    random_population,
    risk,
)
from gence.theory.finite_batch import batch_multisets, expected_batch_loss, multinomial_probabilities

POPULATION = random_population(4, 3, seed=1)


def brute_force(population, forecast, batch_size, anchor, prior):
    """Every ordered batch with every labelling, by the library's own loss."""
    total = torch.zeros((), dtype=torch.float64)
    points, classes = population.points, population.classes
    for x in itertools.product(range(points), repeat=batch_size):
        for y in itertools.product(range(classes), repeat=batch_size):
            pairs = list(zip(x, y, strict=True))
            probability = math.prod((population.weights[i] * population.kernel[i, k]).item() for i, k in pairs)
            logits, target = forecast.log()[list(x)], torch.tensor(y)
            total += probability * gen_cross_entropy(logits, target, anchor=anchor, prior=prior)
    return total.item()


@pytest.mark.parametrize("anchor", [0.0, 0.3])
@pytest.mark.parametrize("own_prior", [True, False])
def test_expectation_equals_brute_force(anchor, own_prior):
    population, forecast = random_population(2, 3, seed=5), random_population(2, 3, seed=6).kernel
    prior = None if own_prior else torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    expected = brute_force(population, forecast, 3, anchor, prior)
    assert batch_risk(population, forecast, 3, GenCE(anchor=anchor, prior=prior)) == pytest.approx(expected, abs=1e-12)


def test_batches_are_all_there():
    counts = batch_multisets(4, 5)
    assert counts.shape == (math.comb(8, 5), 4)
    assert len(counts.unique(dim=0)) == len(counts)
    assert counts.min() == 0
    torch.testing.assert_close(counts.sum(1), torch.full((len(counts),), 5.0).double())
    torch.testing.assert_close(multinomial_probabilities(counts, POPULATION.weights).sum(), torch.tensor(1.0).double())


@pytest.mark.parametrize("anchor", [0.0, 0.1, 1.0])
def test_no_bias_at_any_batch_size_with_the_batchs_own_prior(anchor):
    for row in batch_size_table(POPULATION, (2, 3, 8), GenCE(anchor=anchor)):
        assert row.minimiser_bias < 1e-8


def test_value_gap_falls_like_one_over_b():
    gaps = [row.value_gap for row in batch_size_table(POPULATION, (2, 4, 8, 16))]
    ratios = torch.tensor(gaps[1:]) / torch.tensor(gaps[:-1])
    torch.testing.assert_close(ratios, torch.full((3,), 0.5), atol=0.02, rtol=0)


def test_fixed_prior_biases_small_batches_and_the_bias_falls():
    rows = batch_size_table(POPULATION, (2, 4, 8, 16), GenCE(anchor=0.1, prior=POPULATION.prior))
    bias = [row.minimiser_bias for row in rows]
    assert bias[0] > 0.02
    assert all(later < 0.6 * earlier for earlier, later in itertools.pairwise(bias))


def test_an_incomplete_kernel_leaves_the_starts_apart():
    (row,) = batch_size_table(proportional_population(4, 3), (2,))
    assert row.spread > 0.01
    (row,) = batch_size_table(POPULATION, (2,))
    assert row.spread < 1e-8


def test_long_batches_of_few_inputs_cost_neither_time_nor_memory():
    """The table has a column for each input, not one for each draw. One input alone: GenCE is log B."""
    few = random_population(2, 2, seed=1)
    plain = batch_risk(few, few.kernel, 50_000) - math.log(50_000)
    assert plain == pytest.approx(risk(GenCE(), few, few.kernel), abs=1e-4)
    one = random_population(1, 2, seed=1)
    assert batch_risk(one, one.kernel, 100_000) == pytest.approx(math.log(100_000), abs=1e-9)


def test_a_class_that_never_occurs_is_no_trouble():
    population = Population(torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0]]).double())
    assert math.isfinite(batch_risk(population, population.kernel, 3, GenCE(anchor=0.1)))


def test_a_certain_class_is_no_trouble():
    """Weights that sum to 1 only up to rounding: the class's prior is 1 + 2e-16 for some of them."""
    kernel, forecast = torch.tensor([[1.0, 0.0]]).repeat(5, 1), torch.tensor([[0.9, 0.1]]).repeat(5, 1)
    for seed in range(50):
        weights = torch.rand(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        population = Population(kernel, weights / weights.sum())
        # Every batch shows the certain class alone: GenCE log 3, and KL(certain || forecast) = -log 0.9.
        expected = math.log(3) - 0.1 * math.log(0.9)
        assert batch_risk(population, forecast, 3, GenCE(anchor=0.1)) == pytest.approx(expected, abs=1e-6), seed


@pytest.mark.parametrize("anchor", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("own_prior", [True, False])
def test_a_forecast_that_gives_an_occurring_label_zero_costs_infinity(anchor, own_prior):
    score = GenCE(anchor=anchor, prior=None if own_prior else POPULATION.prior)
    never = torch.tensor([[0.5, 0.5, 0.0]]).repeat(4, 1)
    once = POPULATION.kernel.clone()
    once[0] = torch.tensor([0.0, 0.5, 0.5])
    for forecast in (never, once):
        assert batch_risk(POPULATION, forecast, 2, score) == math.inf


def test_limits_are_named():
    with pytest.raises(ValueError, match="use fewer inputs"):
        batch_risk(random_population(20, 3), random_population(20, 3).kernel, 20)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        minimise_batch_risk(POPULATION, 1)
    for refused in (
        lambda B: batch_risk(POPULATION, POPULATION.kernel, B),
        lambda B: minimise_batch_risk(POPULATION, B),
    ):
        with pytest.raises(ValueError, match="batch_size: expected at least 1, got 0"):
            refused(0)
        with pytest.raises(TypeError, match=r"batch_size: expected a whole number, at least 1, got 2\.5"):
            refused(2.5)
    with pytest.raises(TypeError, match=r"score: expected GenCE.*got Pointwise"):
        batch_risk(POPULATION, POPULATION.kernel, 2, brier())
    with pytest.raises(ValueError, match=r"prior: expected shape \(3,\).*got \(2,\)"):
        batch_risk(POPULATION, POPULATION.kernel, 2, GenCE(anchor=0.1, prior=torch.tensor([0.5, 0.5])))


def test_batch_sizes_may_be_a_tensor():
    rows = batch_size_table(random_population(3, 2), torch.tensor([2, 3]))
    assert [type(row.batch_size) for row in rows] == [int, int]


def test_one_batch_size_is_no_table_of_them():
    population = theory.random_population(3, 2)
    with pytest.raises(TypeError, match=r"batch_sizes: expected several, such as \(2, 4, 8\), got 4"):
        theory.batch_size_table(population, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda kernel: theory.risk(theory.GenCE(), kernel, kernel),
        lambda kernel: theory.minimise(theory.GenCE(), kernel),
        lambda kernel: theory.equivalence_family(kernel),
        lambda kernel: theory.batch_risk(kernel, kernel, 2),
        lambda kernel: theory.log_sum_terms(kernel, kernel),
    ],
)
def test_a_kernel_alone_is_no_population(call):
    with pytest.raises(TypeError, match="population: expected a Population, got Tensor; Population"):
        call(torch.full((3, 2), 0.5))


@pytest.mark.parametrize("own_prior", [True, False])
@pytest.mark.parametrize("anchor", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("spread", [1.0, 500.0])
def test_derivatives_are_those_of_the_function(anchor, own_prior, spread):
    """Spread 500: exponentials underflow, and only sums in log space are right."""
    score = GenCE(anchor=anchor, prior=None if own_prior else torch.tensor([0.2, 0.3, 0.5]).double())
    objective = expected_batch_loss(POPULATION, 3, score)
    logits = spread * torch.randn(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def value(flat):
        """The definition, a log-sum a batch."""
        u = flat.view(4, 3).log_softmax(1)
        sums = (objective.counts.log()[:, :, None] + u).logsumexp(1)
        return objective.constant - (objective.linear * u).sum() + (objective.weights * sums).sum()

    for point, f, slope, curvature in zip(
        logits, objective.values(logits), objective.gradients(logits), objective.hessians(logits), strict=True
    ):
        torch.testing.assert_close(f, value(point), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(slope, torch.func.grad(value)(point), rtol=0, atol=1e-13)
        expected = torch.func.jacrev(torch.func.grad(value))(point)
        torch.testing.assert_close(curvature, expected, rtol=0, atol=1e-13)


class LargestTensor(TorchDispatchMode):
    """Notes how many entries the largest result of any operation has."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.entries = max(self.entries, result.numel())
        return result


def test_minimisation_holds_no_table_for_each_row_of_the_hessian():
    """20,349 batches of 6 inputs, 3 classes: one table has 366,282 entries, one for each row and start 26 million."""
    population = random_population(6, 3, seed=1)
    with LargestTensor() as largest:
        found = minimise_batch_risk(population, 16)
    assert found.distance_to(population.kernel) < 1e-8
    assert largest.entries <= 2_000_000


def test_sizes_of_a_minimisation_are_limited():
    many = random_population(100, 20, seed=1)
    with pytest.raises(ValueError, match=r"population: 100 inputs of 20 classes .*for 4 starts.*use fewer inputs"):
        minimise_batch_risk(many, 1, GenCE(anchor=0.1))
    one = random_population(1, 2, seed=1)
    for anchor in (0.0, 0.1):
        with pytest.raises(ValueError, match=r"batch_size: 20000000 draws show a class in .*use a smaller batch"):
            batch_risk(one, one.kernel, 20_000_000, GenCE(anchor=anchor))


def test_a_minimisation_that_gives_up_says_what_to_change():
    with pytest.warns(RuntimeWarning, match=r"at most 2 steps .* Raise max_steps"):
        minimise_batch_risk(POPULATION, 3, max_steps=2)
    assert minimise_batch_risk(POPULATION, 3, tolerance=1e-6).tolerance == 1e-6
