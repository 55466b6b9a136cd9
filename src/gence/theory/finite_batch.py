"""GenCE on a batch of B i.i.d. draws: the exact expectation over batches, and what minimises it.

The marginal of a batch is a sum over B inputs rather than an expectation, so the loss that training minimises is not
the population risk. On a small space the expectation over batches is a finite sum over multisets of inputs; labels
enter linearly and need no enumeration.

Two facts can be read off here (both are tests). For i.i.d. batches the minimiser of plain GenCE is the truth at EVERY
B >= 2, not only in the limit: given the label k, which of the batch's inputs it belongs to has posterior q(k|x_i) /
sum_j q(k|x_j), and the loss is the cross-entropy of guessing it. So is that of GenCE anchored to the batch's own
labels, which is (1 - a) GenCE + a CE. Anchored to a fixed prior, the loss asks each small batch to show that prior,
which the truth does not: a bias that falls like 1/B.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, combinations

import torch
from torch import Tensor

from gence.theory._checks import checked_count
from gence.theory.kernels import Population, check_population
from gence.theory.minimise import Minimisers, minimise_objective
from gence.theory.risk import checked_log_forecast, risk
from gence.theory.scores import GenCE

MOST_ENTRIES = 2_000_000  # of the (batches, m, K) table that an expectation sums; a minimisation holds many of them


def batch_multisets(points: int, batch_size: int) -> Tensor:
    """All ways to draw ``batch_size`` inputs when order does not matter: counts (batches, m), as float64.

    B stars in a row and m - 1 bars among them: the stars between two bars count one input. Nothing here is as long as
    a batch, so that two inputs can be drawn a hundred thousand times.
    """
    length = points + batch_size - 1
    number = math.comb(length, points - 1)
    places = chain.from_iterable(combinations(range(length), points - 1))
    bars = torch.tensor(list(places), dtype=torch.float64).view(number, points - 1)
    edges = torch.cat([bars.new_full((number, 1), -1), bars, bars.new_full((number, 1), length)], dim=1)
    return edges.diff(dim=1) - 1


def multinomial_probabilities(counts: Tensor, weights: Tensor) -> Tensor:
    """Probability of each multiset (batches, m) under i.i.d. draws from ``weights`` (m,)."""
    log_orders = torch.lgamma(counts.sum(1) + 1) - torch.lgamma(counts + 1).sum(1)
    return (log_orders + counts @ weights.log()).exp()


@dataclass(frozen=True, eq=False)
class BatchRisk:
    """Expected batch loss as a function of log-forecasts (m, K); see ``batch_risk``."""

    population: Population
    score: GenCE
    counts: Tensor  # (batches, m)
    probabilities: Tensor  # (batches,)

    @classmethod
    def of(cls, population: Population, batch_size: int, score: GenCE | None = None) -> BatchRisk:
        """Enumerate the batches of ``batch_size`` draws from ``population``."""
        check_population(population)
        batch_size = checked_count("batch_size", batch_size, 1)
        score = GenCE() if score is None else score
        if not isinstance(score, GenCE):
            raise TypeError(
                f"score: expected GenCE, which batches change, got {score!r}; a pointwise score has risk()."
            )
        points, K = population.points, population.classes
        number = math.comb(points + batch_size - 1, batch_size)
        if number * points * K > MOST_ENTRIES:
            raise ValueError(
                f"batch_size: {points} inputs give {number} different batches of {batch_size}, with {K} classes a "
                f"table of {number * points * K} numbers, more than {MOST_ENTRIES}; use fewer inputs or a smaller "
                "batch."
            )
        score.prior_of(population)  # a prior of another number of classes is named before it is multiplied
        counts = batch_multisets(points, batch_size)
        return cls(population, score, counts, multinomial_probabilities(counts, population.weights))

    @property
    def batch_size(self) -> int:
        """B."""
        return int(self.counts[0].sum())

    def __call__(self, log_forecast: Tensor) -> Tensor:
        """Exact expected loss: CE + E[T_k log S_k] / B, plus the anchor; +inf where a label that occurs is given 0."""
        population, B = self.population, self.batch_size
        # log sum_j p_jk; an input that the batch lacks has log 0 = -inf and drops out of the sum.
        log_s = (self.counts.log()[:, :, None] + log_forecast).logsumexp(1)  # (batches, K)
        label_mass = self.counts @ population.kernel / B  # (batches, K): E[T_k / B] given the batch's inputs
        weights = population.weights[:, None] * population.kernel
        cross_entropy = -torch.where(weights > 0, weights * log_forecast, 0.0).sum()
        generative: Tensor = cross_entropy + self.probabilities @ _product(label_mass, log_s).sum(1)
        # inf - inf otherwise. The same convention as the score's: 0/0 is +inf.
        generative = torch.where(cross_entropy == torch.inf, torch.inf, generative)
        if self.score.anchor == 0:
            return generative
        prior = label_mass if self.score.prior is None else self.score.prior
        cross: Tensor = self.probabilities @ _product(prior, log_s - math.log(B)).sum(1)
        divergence: Tensor = self._prior_information() - cross
        return generative + self.score.anchor * divergence

    def _prior_information(self) -> Tensor:
        """E sum_k pi_k log pi_k of the anchor's prior; the batch's own label counts are binomial(B, pi_k)."""
        if self.score.prior is not None:
            return torch.xlogy(self.score.prior, self.score.prior).sum()
        B, pi = self.batch_size, self.population.prior[:, None]
        counts = torch.arange(B + 1, dtype=torch.float64)  # (B + 1,)
        log_choose = torch.lgamma(torch.tensor(B + 1.0, dtype=torch.float64))
        log_choose = log_choose - torch.lgamma(counts + 1) - torch.lgamma(B - counts + 1)
        rest = (1 - pi).clamp_min(0)  # weights that sum to 1 + 2e-16 give a certain class a pi above 1
        probability = (log_choose + torch.xlogy(counts, pi) + torch.xlogy(B - counts, rest)).exp()  # (K, B + 1)
        share = counts / B
        return (probability * torch.xlogy(share, share)).sum()


def _product(mass: Tensor, log_values: Tensor) -> Tensor:
    """mass * log_values with 0 * -inf = 0: a class that the batch cannot show costs nothing."""
    return torch.where(mass > 0, mass * log_values, 0.0)


def batch_risk(population: Population, forecast: Tensor, batch_size: int, score: GenCE | None = None) -> float:
    """Exact expected loss of batches of ``batch_size`` i.i.d. draws with their labels, "mean" reduction.

    Args:
        population: P_X and q; m <= 6 with B <= 8, or m = 3 with B = 100, take well under a second.
        forecast: p (m, K).
        batch_size: B.
        score: GenCE with its anchor; plain GenCE when None.

    Returns:
        The expected loss, +inf if the forecast gives 0 to a label that occurs. Subtract log B to compare it with the
        population risk, which averages where a batch sums.
    """
    return BatchRisk.of(population, batch_size, score)(checked_log_forecast(population, forecast)).item()


def minimise_batch_risk(
    population: Population, batch_size: int, score: GenCE | None = None, *, starts: int = 4, seed: int = 0
) -> Minimisers:
    """Minimise the expected batch loss over all forecasts from random starts."""
    objective = BatchRisk.of(population, batch_size, score)
    if objective.batch_size < 2 and objective.score.anchor == 0:
        raise ValueError("batch_size: expected at least 2, got 1; one row alone has loss 0 whatever the forecast.")
    return minimise_objective(objective, (population.points, population.classes), starts=starts, seed=seed)


@dataclass(frozen=True, kw_only=True)
class BatchSizeRow:
    """One line of the batch-size table.

    Attributes:
        batch_size: B.
        value_gap: expected batch loss of the truth minus log B minus its population risk; falls like 1/B.
        minimiser_bias: largest entry by which the minimiser of the expected batch loss misses the truth.
        spread: largest difference between the minimisers of two starts.
    """

    batch_size: int
    value_gap: float
    minimiser_bias: float
    spread: float


def batch_size_table(
    population: Population, batch_sizes: Iterable[int] = (2, 4, 8), score: GenCE | None = None
) -> list[BatchSizeRow]:
    """How the expected batch loss and its minimiser depend on B."""
    if not isinstance(batch_sizes, Iterable):
        raise TypeError(f"batch_sizes: expected several, such as (2, 4, 8), got {batch_sizes!r}.")
    score = GenCE() if score is None else score
    rows = []
    for B in batch_sizes:
        found = minimise_batch_risk(population, B, score)
        truth = batch_risk(population, population.kernel, B, score)
        rows.append(
            BatchSizeRow(
                batch_size=B,
                value_gap=truth - math.log(B) - risk(score, population, population.kernel),
                minimiser_bias=found.distance_to(population.kernel),
                spread=found.spread,
            )
        )
    return rows
