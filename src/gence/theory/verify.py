"""The theory's claims as checks: each computes a number and compares it with a bound. ``gence verify`` prints them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gence.losses import gen_cross_entropy
from gence.theory.drift import bias_curvature, toy_curvature, toy_logits, toy_plateau, toy_profile
from gence.theory.finite_batch import batch_size_table
from gence.theory.minimise import equivalence_family, minimise
from gence.theory.populations import (
    Population,
    anchor_point_population,
    completeness,
    gaussian_population,
    proportional_population,
    random_population,
)
from gence.theory.scores import (
    GenCE,
    Score,
    brier,
    cross_entropy,
    excess_risk,
    focal,
    generalised_cross_entropy,
    generalised_cross_entropy_minimiser,
    log_sum_terms,
    mean_absolute_error,
    mean_absolute_error_minimiser,
)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One verified claim.

    Attributes:
        name: short and unique.
        statement: the claim, in a sentence.
        measured: the number computed.
        relation: "<=" or ">=", how it must stand to ``bound``.
        bound: what it is compared with.
    """

    name: str
    statement: str
    measured: float
    relation: str
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the claim holds; NaN never does."""
        return self.measured <= self.bound if self.relation == "<=" else self.measured >= self.bound


def verify() -> list[Check]:
    """Compute every check, in a few seconds on one core.

    >>> checks = verify()
    >>> [check.name for check in checks if not check.passed]
    []
    """
    return [check() for check in CHECKS]


def _complete() -> Population:
    return random_population(5, 3, seed=1)


def _at_most(name: str, statement: str, measured: float, bound: float) -> Check:
    return Check(name=name, statement=statement, measured=measured, relation="<=", bound=bound)


def _at_least(name: str, statement: str, measured: float, bound: float) -> Check:
    return Check(name=name, statement=statement, measured=measured, relation=">=", bound=bound)


def log_sum_decomposition() -> Check:
    """The proof's K terms."""
    population, forecast = _complete(), random_population(5, 3, seed=2).kernel
    terms = log_sum_terms(population, forecast)
    gap = abs(terms.sum().item() - excess_risk(GenCE(), population, forecast))
    statement = "excess risk is a sum of K log-sum terms, none negative"
    return _at_most("log-sum decomposition", statement, max(gap, -terms.min().item()), 1e-12)


def properness_complete() -> Check:
    """The paper's theorem, on kernels of three kinds."""
    grid = torch.linspace(-3, 3, 7, dtype=torch.float64)[:, None]
    gaussians = gaussian_population(grid, torch.tensor([[-1.0], [0.0], [1.0]]), torch.ones(3, 1, 1))
    populations = (_complete(), anchor_point_population(6, 4), gaussians)
    worst = max(minimise(GenCE(), population).distance_to(population.kernel) for population in populations)
    statement = "complete kernel: GenCE's minimiser is the truth from every start"
    return _at_most("GenCE is strictly proper", statement, worst, 1e-8)


def family_risk() -> Check:
    """Incomplete kernel: equal risks."""
    population = proportional_population(5, 3)
    worst = max(abs(excess_risk(GenCE(), population, p)) for p in equivalence_family(population))
    statement = "incomplete kernel: a family of forecasts shares the truth's risk"
    return _at_most("family of minimisers, risk", statement, worst, 1e-12)


def family_distance() -> Check:
    """Incomplete kernel: different forecasts."""
    population = proportional_population(5, 3)
    distance = (equivalence_family(population) - population.kernel).abs().amax((1, 2)).max().item()
    statement = "and its members are different forecasts"
    return _at_least("family of minimisers, distance", statement, distance, 0.1)


def anchored_uniqueness() -> Check:
    """The extension: any anchor > 0."""
    populations = (_complete(), proportional_population(5, 3))
    worst = max(
        minimise(GenCE(anchor=a), population).distance_to(population.kernel)
        for a in (0.01, 0.1, 1.0)
        for population in populations
    )
    statement = "anchor > 0: the truth is the only minimiser, complete or not"
    return _at_most("anchored GenCE is strictly proper", statement, worst, 1e-8)


def completeness_conditions() -> Check:
    """Anchor points imply completeness."""
    found = [completeness(anchor_point_population(6, 4, strength=0.51, seed=s).kernel) for s in range(50)]
    smallest = min(c.smallest_singular_value for c in found if c.has_anchor_points)
    statement = "anchor points make a kernel complete (smallest singular value)"
    return _at_least("anchor points", statement, smallest, 1e-3)


def proper_pointwise() -> Check:
    """CE and Brier."""
    population = _complete()
    scores: tuple[Score, ...] = (cross_entropy(), brier())
    worst = max(minimise(score, population).distance_to(population.kernel) for score in scores)
    return _at_most("CE and Brier are proper", "their minimiser is the truth", worst, 1e-8)


def improper_mae() -> Check:
    """MAE."""
    population = _complete()
    distance = minimise(mean_absolute_error(), population).distance_to(mean_absolute_error_minimiser(population.kernel))
    return _at_most("MAE is not proper", "its minimiser puts all mass on the mode", distance, 1e-8)


def improper_generalised() -> Check:
    """Generalised CE."""
    population = _complete()
    elicited = generalised_cross_entropy_minimiser(population.kernel)
    distance = minimise(generalised_cross_entropy(), population).distance_to(elicited)
    statement = "its minimiser is proportional to q^(1/(1 - 0.7))"
    return _at_most("generalised CE is not proper", statement, distance, 1e-8)


def improper_focal() -> Check:
    """Focal."""
    population = _complete()
    found = minimise(focal(), population).forecasts
    entropy_gain = (torch.special.entr(found).sum(-1) - torch.special.entr(population.kernel).sum(-1)).min().item()
    statement = "its minimiser is flatter than the truth at every input (gain in entropy)"
    return _at_least("focal is not proper", statement, entropy_gain, 0.01)


def batch_unbiased() -> Check:
    """Finite batches: plain and own prior."""
    population = random_population(4, 3, seed=1)
    rows = [row for a in (0.0, 0.1) for row in batch_size_table(population, (2, 4, 8), GenCE(anchor=a))]
    statement = "i.i.d. batches of 2, 4, 8: the minimiser of the expected loss is the truth"
    return _at_most("no finite-batch bias", statement, max(row.minimiser_bias for row in rows), 1e-8)


def batch_fixed_prior() -> Check:
    """Finite batches: a fixed prior is biased, less so as B grows."""
    population = random_population(4, 3, seed=1)
    rows = batch_size_table(population, (4, 8), GenCE(anchor=0.1, prior=population.prior))
    statement = "anchored to a fixed prior, the bias falls like 1/B (B = 8 over B = 4)"
    ratio = rows[1].minimiser_bias / rows[0].minimiser_bias
    return _at_most("finite-batch bias of a fixed prior", statement, ratio, 0.6)


def curvature_formula() -> Check:
    """Closed form against autograd."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(24, 5, generator=generator, dtype=torch.float64)
    target = torch.randint(0, 5, (24,), generator=generator)

    def loss(b: torch.Tensor) -> torch.Tensor:
        return gen_cross_entropy(logits + b, target, anchor=0.1)

    hessian = torch.func.jacrev(torch.func.grad(loss))(torch.zeros(5, dtype=torch.float64))
    gap = (hessian - bias_curvature(logits, target, anchor=0.1)).abs().max().item()
    return _at_most("curvature along class biases", "its formula equals the loss's own Hessian", gap, 1e-12)


def curvature_ratio() -> Check:
    """The toy's curvature."""
    direction = torch.tensor([3.0, -1.0, -1.0, -1.0], dtype=torch.float64) / 12**0.5
    worst = 0.0
    for sharpness in (0.3, 0.6, 0.9, 0.99):
        curvature = direction @ bias_curvature(*toy_logits(4, sharpness)) @ direction
        worst = max(worst, abs(curvature.item() - toy_curvature(4, sharpness)))
    statement = "on the toy GenCE has r^2 of CE's curvature, r = 0 for a guess"
    return _at_most("flat while guessing", statement, worst, 1e-12)


def plateau() -> Check:
    """The bounded cost of predicting one class."""
    cost = toy_profile(10, 1 - 1e-9, torch.tensor([200.0])).item()
    statement = "predicting one class for everything costs (log K)/K, and no more"
    return _at_most("the plateau", statement, abs(cost - toy_plateau(10)), 1e-6)


CHECKS: tuple[Callable[[], Check], ...] = (
    log_sum_decomposition,
    properness_complete,
    family_risk,
    family_distance,
    anchored_uniqueness,
    completeness_conditions,
    proper_pointwise,
    improper_mae,
    improper_generalised,
    improper_focal,
    batch_unbiased,
    batch_fixed_prior,
    curvature_formula,
    curvature_ratio,
    plateau,
)
