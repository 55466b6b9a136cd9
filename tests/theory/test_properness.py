"""The paper's theorem and our extension of it, each by the minimiser that a risk really has."""

import math

import pytest
import torch

from gence.losses import gen_cross_entropy
from gence.theory import (
    GenCE,
    Population,
    anchor_point_population,
    anchor_term,
    brier,
    cross_entropy,
    equivalence_family,
    excess_risk,
    focal,
    gaussian_population,
    generalised_cross_entropy,
    generalised_cross_entropy_minimiser,
    log_sum_terms,
    mean_absolute_error,
    mean_absolute_error_minimiser,
    minimise,
    proportional_population,
    random_population,
    risk,
)

GRID = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
COMPLETE = {
    "random": random_population(5, 3, seed=1),
    "square": random_population(3, 3, seed=5),
    "sharp": random_population(5, 3, sharpness=4.0, seed=2),
    "anchor points": anchor_point_population(6, 4),
    "gaussians": gaussian_population(GRID, torch.tensor([[-1.0], [0.0], [1.0]]), torch.ones(3, 1, 1)),
}
INCOMPLETE = {
    "proportional columns": proportional_population(5, 3),
    "two of four": proportional_population(6, 4, ratio=2.0),
    "fewer inputs than classes": random_population(2, 3),
    "one input": random_population(1, 3),
}
ALL = {**COMPLETE, **INCOMPLETE}


@pytest.mark.parametrize("name", COMPLETE)
def test_complete_kernel_has_one_minimiser_the_truth(name):
    population = COMPLETE[name]
    found = minimise(GenCE(), population, starts=8)
    assert found.distance_to(population.kernel) < 1e-8
    assert abs(found.risks.max().item() - risk(GenCE(), population, population.kernel)) < 1e-12


@pytest.mark.parametrize("name", INCOMPLETE)
def test_incomplete_kernel_has_a_family_of_minimisers(name):
    population = INCOMPLETE[name]
    family = equivalence_family(population, members=5)
    for forecast in family:
        assert abs(excess_risk(GenCE(), population, forecast)) < 1e-12
        assert (forecast - population.kernel).abs().max() > 0.01
    torch.testing.assert_close(family.sum(2), torch.ones(family.shape[:2]).double())
    # Cross-entropy and the anchor tell its members from the truth.
    assert min(excess_risk(cross_entropy(), population, forecast) for forecast in family) > 1e-4
    assert min(anchor_term(population, forecast) for forecast in family) > 1e-4


@pytest.mark.parametrize("name", ["proportional columns", "fewer inputs than classes"])
def test_incomplete_kernel_different_starts_end_apart(name):
    population = INCOMPLETE[name]
    found = minimise(GenCE(), population)
    assert abs(found.risks.max().item() - risk(GenCE(), population, population.kernel)) < 1e-10
    assert found.spread > 0.1


def test_a_class_that_never_occurs_leaves_a_finite_family():
    kernel = torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0]], dtype=torch.float64)
    family = equivalence_family(Population(kernel))
    torch.testing.assert_close(family, kernel.expand_as(family))


def test_complete_kernel_has_no_family():
    with pytest.raises(ValueError, match="complete"):
        equivalence_family(COMPLETE["random"])


@pytest.mark.parametrize("anchor", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("name", ALL)
def test_anchor_makes_the_minimiser_unique(name, anchor):
    population = ALL[name]
    assert minimise(GenCE(anchor=anchor), population, starts=4).distance_to(population.kernel) < 1e-8


def test_anchor_to_a_wrong_prior_is_not_proper():
    population = COMPLETE["random"]
    wrong = torch.full((3,), 1 / 3).double()
    assert minimise(GenCE(anchor=0.1, prior=population.prior), population).distance_to(population.kernel) < 1e-8
    assert minimise(GenCE(anchor=0.1, prior=wrong), population).distance_to(population.kernel) > 1e-3


@pytest.mark.parametrize("score", [cross_entropy(), brier()], ids=["cross-entropy", "brier"])
@pytest.mark.parametrize("name", ["random", "proportional columns"])
def test_cross_entropy_and_brier_are_proper(name, score):
    assert minimise(score, ALL[name]).distance_to(ALL[name].kernel) < 1e-8


def test_mae_elicits_the_mode():
    population = COMPLETE["random"]
    found = minimise(mean_absolute_error(), population)
    assert found.distance_to(mean_absolute_error_minimiser(population.kernel)) < 1e-8
    assert found.risks.max() < risk(mean_absolute_error(), population, population.kernel) - 0.1


@pytest.mark.parametrize("q", [0.3, 0.7])
def test_generalised_cross_entropy_elicits_a_sharpened_power(q):
    population = COMPLETE["random"]
    found = minimise(generalised_cross_entropy(q), population)
    assert found.distance_to(generalised_cross_entropy_minimiser(population.kernel, q)) < 1e-8
    assert found.distance_to(population.kernel) > 0.05
    assert excess_risk(generalised_cross_entropy(q), population, found.forecasts[0]) < -1e-3


def test_focal_elicits_something_flatter():
    population = COMPLETE["random"]
    found = minimise(focal(2.0), population)
    assert found.spread < 1e-8
    assert excess_risk(focal(2.0), population, found.forecasts[0]) < -1e-3
    flatter = torch.special.entr(found.forecasts[0]).sum(1) - torch.special.entr(population.kernel).sum(1)
    assert flatter.min() > 0.01
    assert minimise(focal(0.0), population).distance_to(population.kernel) < 1e-8  # gamma = 0 is cross-entropy


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_log_sum_terms_are_the_excess_risk(name, seed):
    population = ALL[name]
    forecast = random_population(population.points, population.classes, seed=100 + seed).kernel
    terms = log_sum_terms(population, forecast)
    assert terms.min() >= -1e-15
    assert abs(terms.sum().item() - excess_risk(GenCE(), population, forecast)) < 1e-12
    anchored = terms.sum().item() + 0.3 * anchor_term(population, forecast)
    assert abs(anchored - excess_risk(GenCE(anchor=0.3), population, forecast)) < 1e-12


def test_log_sum_terms_do_not_see_the_scale_of_a_column():
    population = INCOMPLETE["proportional columns"]
    for forecast in equivalence_family(population):
        torch.testing.assert_close(log_sum_terms(population, forecast), torch.zeros(3).double(), atol=1e-14, rtol=0)


def test_population_risk_is_the_loss_on_the_whole_population():
    """The library's own loss, with the population written out as weighted rows of soft labels."""
    population, forecast = random_population(4, 3, seed=3), random_population(4, 3, seed=4).kernel
    copies = torch.tensor([1, 2, 3, 4])
    population = Population(population.kernel, copies.double() / 10)
    rows = torch.arange(4).repeat_interleave(copies)
    for anchor in (0.0, 0.1, 1.0):
        loss = gen_cross_entropy(forecast.log()[rows], population.kernel[rows], anchor=anchor)
        expected = risk(GenCE(anchor=anchor), population, forecast) + math.log(10)
        assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_labels_that_never_occur_cost_nothing():
    population = Population(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double())
    assert risk(cross_entropy(), population, population.kernel) == pytest.approx(0.5 * math.log(2))
    assert log_sum_terms(population, population.kernel).abs().max() < 1e-15


def test_forecasts_are_checked():
    population = COMPLETE["random"]
    with pytest.raises(ValueError, match="forecast: expected"):
        risk(GenCE(), population, torch.full((2, 3), 1 / 3).double())
    with pytest.raises(ValueError, match="forecast: row 0"):
        risk(GenCE(), population, torch.ones(5, 3))
    with pytest.raises(ValueError, match="anchor"):
        GenCE(anchor=-0.1)
    with pytest.raises(ValueError, match="q: expected"):
        generalised_cross_entropy(1.0)
