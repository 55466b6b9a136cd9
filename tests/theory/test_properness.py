"""The paper's theorem and our extension of it, each by the minimiser that a risk really has."""

import functools
import math

import pytest
import torch

from gence import losses
from gence.losses import gen_cross_entropy
from gence.theory import (
    GenCE,
    Minimisers,
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

TWINS = proportional_population(5, 3)
GRID = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
COMPLETE = {
    "random": random_population(5, 3, seed=1),
    "square": random_population(3, 3, seed=5),
    "sharp": random_population(5, 3, sharpness=4.0, seed=2),
    "anchor points": anchor_point_population(6, 4),
    "gaussians": gaussian_population(GRID, torch.tensor([[-1.0], [0.0], [1.0]]), torch.ones(3, 1, 1)),
}
INCOMPLETE = {
    "proportional columns": TWINS,
    "two of four": proportional_population(6, 4, ratio=2.0),
    "fewer inputs than classes": random_population(2, 3),
    "one input": random_population(1, 3),
    "a class that never occurs": Population(torch.tensor([[0.7, 0.3, 0.0], [0.2, 0.8, 0.0]]).double()),
    "two that never occur": Population(torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.2, 0.8, 0.0, 0.0]]).double()),
    "a certain class": Population(torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()),
    "twins and a class that never occurs": Population(
        torch.cat([TWINS.kernel, torch.zeros(5, 1)], 1).double(), TWINS.weights
    ),
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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", INCOMPLETE)
def test_family_shrinks_a_column_as_far_as_it_says(name, seed):
    """Only columns of classes that occur count: the others have nothing to shrink."""
    population = INCOMPLETE[name]
    family = equivalence_family(population, members=5, seed=seed)
    assert family.min() >= 0
    occurs = population.prior > 0
    kept = (family[:, :, occurs] / population.kernel[:, occurs]).amin((1, 2))
    torch.testing.assert_close(kept, torch.linspace(0.9, 0.1, 5, dtype=torch.float64))


def test_nearly_incomplete_kernel_is_minimised_to_the_end():
    """Smallest singular value 5e-6: a curved valley in which a start needs some hundred steps."""
    population = random_population(3, 3, sharpness=6, seed=0)
    found = minimise(GenCE(), population)
    assert found.converged
    assert found.distance_to(population.kernel) < 1e-8


@pytest.mark.parametrize(
    "score",
    [None, "gence", GenCE, brier, focal, lambda log_forecast: log_forecast],
    ids=["none", "text", "class", "brier", "focal", "one argument"],
)
def test_what_is_no_score_is_named(score):
    """A maker of scores that was not called is the frequent slip."""
    population = COMPLETE["random"]
    for refused in (lambda: risk(score, population, population.kernel), lambda: minimise(score, population)):
        with pytest.raises(TypeError, match=r"score: expected a rule of .*such as GenCE\(\) or brier\(\), got"):
            refused()


def test_a_score_may_be_any_callable_of_two_arguments():
    population = COMPLETE["random"]
    expected = risk(cross_entropy(), population, population.kernel)
    keywords = functools.partial(lambda p, population, sign: sign * p, sign=-1)
    for score in (lambda p, _: -p, keywords, lambda *arguments: -arguments[0]):
        assert risk(score, population, population.kernel) == expected


def test_a_start_that_stands_on_a_plateau_is_not_told_to_go_on():
    """More steps change nothing where no gradient is left."""
    population = COMPLETE["random"]
    with pytest.warns(RuntimeWarning, match=r"more steps do not help: lower tolerance, or .*risks\.argmin\(\)"):
        minimise(GenCE(), population, tolerance=1e-3)
    with pytest.warns(RuntimeWarning, match="The score is NaN, or its gradient is"):
        minimise(lambda p, _: p * math.nan, population)


def test_giving_up_is_said():
    with pytest.warns(RuntimeWarning, match=r"Not every start reached .* at most 3 steps .* Raise max_steps"):
        found = minimise(GenCE(), COMPLETE["random"], max_steps=3)
    assert not found.converged


@pytest.mark.parametrize(
    ("risks", "gradient", "converged"),
    [([0.5, 0.5], 1e-14, True), ([0.5, 0.5], 1e-12, False), ([0.5, 0.6], 1e-14, False), ([0.5, 0.5], math.nan, False)],
)
def test_converged_needs_a_vanishing_gradient_and_equal_risks(risks, gradient, converged):
    forecasts = torch.full((2, 1, 2), 0.5).double()
    found = Minimisers(forecasts=forecasts, risks=torch.tensor(risks), gradient_norm=gradient, tolerance=1e-13)
    assert found.converged is converged


def test_a_certain_class_is_approached_as_far_as_the_gradient_reaches():
    """On the boundary the gradient of focal and of Brier vanishes faster than that of the others."""
    certain = Population(torch.eye(3))
    reached = {}
    for name, score in (("ce", cross_entropy()), ("gence", GenCE()), ("brier", brier()), ("focal", focal())):
        found = minimise(score, certain)
        assert found.converged
        reached[name] = found.distance_to(certain.kernel)
    assert max(reached["ce"], reached["gence"]) < 1e-10, reached
    assert 1e-8 < reached["brier"] < 1e-6 < reached["focal"] < 1e-4, reached


def test_arguments_of_a_minimisation_are_checked():
    population = COMPLETE["random"]
    with pytest.raises(ValueError, match="starts: expected at least 1, got 0"):
        minimise(GenCE(), population, starts=0)
    with pytest.raises(ValueError, match="max_steps: expected at least 0, got -1"):
        minimise(GenCE(), population, max_steps=-1)
    for tolerance in (-1.0, math.nan):
        with pytest.raises(ValueError, match=f"tolerance: .*got {tolerance}"):
            minimise(GenCE(), population, tolerance=tolerance)
    with pytest.raises(TypeError, match="tolerance: expected a gradient entry >= 0, got str"):
        minimise(GenCE(), population, tolerance="small")
    with pytest.raises(TypeError, match="seed: expected a whole number, got 'a'"):
        minimise(GenCE(), population, seed="a")
    found = minimise(cross_entropy(), population, starts=1)
    with pytest.raises(ValueError, match=r"forecast: expected \(5, 3\).*got \(3,\)"):
        found.distance_to(torch.full((3,), 1 / 3))
    with pytest.raises(ValueError, match="members: expected at least 1, got 0"):
        equivalence_family(TWINS, members=0)


@pytest.mark.parametrize("table", [lambda p, _: -p.sum(1), lambda p, _: -p.sum(1, keepdim=True), lambda *_: 1.0])
def test_a_score_of_another_shape_is_refused(table):
    """Broadcast, a score for each input would be read as one for each label."""
    population = Population(torch.full((3, 3), 1 / 3))
    for refused in (lambda: risk(table, population, population.kernel), lambda: minimise(table, population)):
        with pytest.raises(ValueError, match=r"score: expected a table of shape \(3, 3\)"):
            refused()


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


@pytest.mark.parametrize(
    ("score", "loss"),
    [
        (cross_entropy(), losses.cross_entropy),
        (brier(), losses.brier_loss),
        (mean_absolute_error(), losses.mae_loss),
        (generalised_cross_entropy(0.3), functools.partial(losses.generalized_cross_entropy, q=0.3)),
        (focal(1.5), functools.partial(losses.focal_loss, gamma=1.5)),
    ],
    ids=["cross-entropy", "brier", "mae", "generalised", "focal"],
)
def test_pointwise_risk_is_the_loss_of_that_name(score, loss):
    population, forecast = random_population(4, 3, seed=3), random_population(4, 3, seed=4).kernel
    rows = loss(forecast.log(), population.kernel, reduction="none")
    assert risk(score, population, forecast) == pytest.approx((population.weights @ rows).item(), abs=1e-12)


def test_labels_that_never_occur_cost_nothing():
    population = Population(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double())
    assert risk(cross_entropy(), population, population.kernel) == pytest.approx(0.5 * math.log(2))
    assert log_sum_terms(population, population.kernel).abs().max() < 1e-15


@pytest.mark.parametrize("anchor", [0.0, 0.1, 1.0])
def test_a_class_that_occurs_and_is_never_predicted_costs_infinity(anchor):
    """As under cross-entropy. Plain GenCE has 0/0 here, which counts as infinity too."""
    population = COMPLETE["random"]
    never = torch.tensor([[0.5, 0.5, 0.0]]).repeat(5, 1).double()
    assert risk(GenCE(anchor=anchor), population, never) == math.inf
    assert excess_risk(GenCE(anchor=anchor), population, never) == math.inf
    assert risk(cross_entropy(), population, never) == math.inf
    terms = log_sum_terms(population, never)
    assert terms[2] == math.inf
    assert terms[:2].isfinite().all()
    assert anchor_term(population, never) == math.inf


def test_anchor_term_is_finite_where_the_forecast_is_zero_at_one_input():
    population = COMPLETE["random"]
    forecast = population.kernel.clone()
    forecast[0] = torch.tensor([0.0, 0.5, 0.5])
    expected = (population.prior * (population.prior / population.marginal(forecast)).log()).sum().item()
    assert anchor_term(population, forecast) == pytest.approx(expected, abs=1e-15)
    assert risk(GenCE(), population, forecast) == math.inf
    assert log_sum_terms(population, forecast)[0] == math.inf
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    given = (uniform * (uniform / population.marginal(forecast)).log()).sum().item()
    assert anchor_term(population, forecast, uniform) == pytest.approx(given, abs=1e-15)


def test_the_right_order_is_not_enough():
    """GenCE looks at the ratios within a column and not at its order alone."""
    population = Population(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]).double())
    sharper = torch.tensor([[0.99, 0.01], [0.6, 0.4], [0.02, 0.98]]).double()
    assert torch.equal(population.kernel.argsort(0), sharper.argsort(0))
    assert log_sum_terms(population, sharper).min() > 0.05


def test_a_prior_that_sums_to_one_only_nearly_is_divided_by_its_sum():
    """Otherwise the divergence from it could be negative."""
    population = COMPLETE["random"]
    rounded = (population.prior * 1.0005).float()
    assert anchor_term(population, population.kernel, rounded) == pytest.approx(0, abs=1e-13)


def test_priors_are_checked():
    population = COMPLETE["random"]
    four = torch.full((4,), 0.25)
    with pytest.raises(ValueError, match=r"prior: expected shape \(3,\).*got \(4,\)"):
        risk(GenCE(anchor=0.1, prior=four), population, population.kernel)
    with pytest.raises(ValueError, match=r"prior: expected shape \(3,\).*got \(4,\)"):
        anchor_term(population, population.kernel, four)
    with pytest.raises(ValueError, match=r"prior: .*sum of 6"):
        GenCE(anchor=0.1, prior=torch.tensor([1.0, 2.0, 3.0]))


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
    with pytest.raises(TypeError, match=r"q: expected a number .*got str"):
        generalised_cross_entropy("0.7")
    for gamma in (-1.0, math.nan):
        with pytest.raises(ValueError, match=f"gamma: .*got {gamma}"):
            focal(gamma)
    for minimiser in (generalised_cross_entropy_minimiser, mean_absolute_error_minimiser):
        with pytest.raises(ValueError, match="kernel: row 0 sums to 8"):
            minimiser(torch.tensor([[3.0, 5.0]]))
