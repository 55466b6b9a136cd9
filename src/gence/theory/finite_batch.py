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
from gence.theory.minimise import MOST_STEPS, Minimisers, minimise_objective
from gence.theory.populations import Population, check_population
from gence.theory.scores import GenCE, checked_log_forecast, risk

_ENTRIES_AT_ONCE = 2_000_000  # of a (forecasts, batches, m, K) table: 16 MB, a few of which are held
_SMALLEST_SUM = 1e-290  # a sum of exponentials below it has lost digits, or all of them


@dataclass(frozen=True, eq=False)
class LogSumRisk:
    """A risk that is a sum of log-sums of a forecast, with gradient and Hessian in the logits z of p = softmax(z).

    With u = log p, the expected batch loss of GenCE is

        f(u) = constant - sum_xk linear_xk u_xk + sum_k sum_b weights_bk log sum_x counts_bx exp(u_xk),

    b running over batches. No log-sum couples two classes. For class k let omega_bx be counts_bx exp(u_xk) over its sum
    in x: the Hessian in u_k is diag(sum_b weights_bk omega_b) - sum_b weights_bk omega_b omega_b^T, a matrix product
    over one table. Automatic differentiation would take such a table for each of the mK rows of the Hessian, and hold
    them all.

    Attributes:
        constant: 0-dim, what does not depend on the forecast.
        linear: (m, K), not negative.
        counts: (batches, m), how often each input is in each batch.
        weights: (batches, K), of any sign.
    """

    constant: Tensor
    linear: Tensor
    counts: Tensor
    weights: Tensor

    def at(self, log_forecasts: Tensor) -> Tensor:
        """Return f at log-forecasts (n, m, K), (n,); +inf where a forecast gives 0 to a label that occurs."""
        return torch.cat([self._values(part) for part in self._parts(log_forecasts)])

    def values(self, logits: Tensor) -> Tensor:
        """Return f at logits (n, m * K), (n,)."""
        return self.at(self._log_forecasts(logits))

    def gradients(self, logits: Tensor) -> Tensor:
        """Return the gradients at logits (n, m * K), of their shape."""
        return torch.cat([self._gradients(part) for part in self._parts(self._log_forecasts(logits))])

    def hessians(self, logits: Tensor) -> Tensor:
        """Return the Hessians at logits (n, m * K), (n, m * K, m * K)."""
        return torch.cat([self._hessians(part) for part in self._parts(self._log_forecasts(logits))])

    def _log_forecasts(self, logits: Tensor) -> Tensor:
        return logits.view(-1, *self.linear.shape).log_softmax(2)  # (n, m, K)

    def _parts(self, log_forecasts: Tensor) -> tuple[Tensor, ...]:
        entries = self.counts.shape[0] * self.linear.numel()
        size = max(1, _ENTRIES_AT_ONCE // entries)
        return tuple(log_forecasts[i : i + size] for i in range(0, len(log_forecasts), size))

    def _values(self, u: Tensor) -> Tensor:
        linear = torch.where(self.linear > 0, self.linear * u, 0.0).sum((1, 2))  # (n,)
        # 0 * -inf = 0: a class that the batch cannot show costs nothing.
        log_sums = torch.where(self.weights != 0, self.weights * self._log_sums(u), 0.0).sum((1, 2))
        # inf - inf otherwise. The same convention as the score's: 0/0 is +inf.
        return torch.where(linear == -torch.inf, torch.inf, self.constant - linear + log_sums)

    def _log_sums(self, u: Tensor) -> Tensor:
        """Return log sum_x counts_bx exp(u_xk), (n, batches, K)."""
        top = u.amax(1, keepdim=True)  # (n, 1, K)
        top = torch.where(top == -torch.inf, 0.0, top)
        sums = self.counts @ (u - top).exp()
        if bool((sums > _SMALLEST_SUM).all()):
            return sums.log() + top
        # The same without a product of matrices, slower: exact however far a column's entries lie apart.
        return (self.counts.log()[:, :, None] + u[:, None]).logsumexp(2)

    def _shares(self, u: Tensor) -> Tensor:
        """Return omega, (n, K, batches, m): each input's share of the log-sum of its batch and class."""
        log_sums = self._log_sums(u).mT[..., None]  # (n, K, batches, 1)
        return (self.counts.log() + u.mT[:, :, None] - log_sums).exp()

    def _pull(self, shares: Tensor) -> Tensor:
        """Return the gradient of the log-sums in u, (n, K, m)."""
        return (self.weights.T[:, None] @ shares)[:, :, 0]

    def _gradients(self, u: Tensor) -> Tensor:
        slope = self._pull(self._shares(u)).mT - self.linear  # (n, m, K), in u
        return (slope - u.exp() * slope.sum(2, keepdim=True)).flatten(1)

    def _hessians(self, u: Tensor) -> Tensor:
        n, m, K = u.shape
        shares, p = self._shares(u), u.exp()
        pull = self._pull(shares)
        by_class = torch.diag_embed(pull) - (shares * self.weights.T[..., None]).mT @ shares  # (n, K, m, m), in u
        curvature = torch.diag_embed(by_class.permute(0, 2, 3, 1)).transpose(2, 3)  # (n, m, K, m, K)
        # From u to z, on both sides: row x of u moves by dz_x less its mean under p_x.
        curvature = curvature - p[:, :, :, None, None] * curvature.sum(2, keepdim=True)
        curvature = curvature - curvature.sum(4, keepdim=True) * p[:, None, None]
        # u is itself curved in z, by minus the covariance of p_x, in all classes alike.
        rows = torch.arange(m)
        slope = (pull.mT - self.linear).sum(2)[..., None, None]  # (n, m, 1, 1)
        covariance = torch.diag_embed(p) - p[..., None] * p[:, :, None]  # (n, m, K, K)
        curvature[:, rows, :, rows] -= (slope * covariance).transpose(0, 1)  # (m, n, K, K): so indexing orders them
        return curvature.reshape(n, m * K, m * K)


MOST_ENTRIES = 2_000_000  # of the (batches, m, K) table that an expectation sums
MOST_HESSIAN_ENTRIES = 4_000_000  # over all starts of a minimisation: 1000 entries of a forecast for four of them


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


def expected_batch_loss(population: Population, batch_size: int, score: GenCE | None = None) -> LogSumRisk:
    """Enumerate the batches of ``batch_size`` draws: the expected loss as a function of the forecast.

    It is CE + E[T_k log S_k] / B, plus the anchor; +inf where a label that occurs is given 0.
    """
    check_population(population)
    B = checked_count("batch_size", batch_size, 1)
    score = GenCE() if score is None else score
    if not isinstance(score, GenCE):
        raise TypeError(f"score: expected GenCE(), which batches change, got {score!r}; a pointwise score has risk().")
    _check_size(population, B)
    score.prior_of(population)  # a prior of another number of classes is named before it is multiplied
    counts = batch_multisets(population.points, B)
    probabilities = multinomial_probabilities(counts, population.weights)[:, None]
    label_mass = counts @ population.kernel / B  # (batches, K): E[T_k / B] given the batch's inputs
    prior = label_mass if score.prior is None else score.prior
    constant = score.anchor * (_prior_information(population, B, score) + math.log(B))  # KL(prior || S / B)
    return LogSumRisk(
        constant=constant,
        linear=population.weights[:, None] * population.kernel,
        counts=counts,
        weights=probabilities * (label_mass - score.anchor * prior),
    )


def _check_size(population: Population, B: int) -> None:
    points, K = population.points, population.classes
    number = math.comb(points + B - 1, B)
    if number * points * K > MOST_ENTRIES:
        raise ValueError(
            f"batch_size: {points} inputs give {number} different batches of {B}, with {K} classes a table of "
            f"{number * points * K} numbers, more than {MOST_ENTRIES}; use fewer inputs or a smaller batch."
        )
    if (B + 1) * K > MOST_ENTRIES:  # one input alone makes one batch, however long
        raise ValueError(
            f"batch_size: {B} draws show a class in {B + 1} ways, {K} classes in a table of {(B + 1) * K} numbers, "
            f"more than {MOST_ENTRIES}; use a smaller batch."
        )


def _prior_information(population: Population, B: int, score: GenCE) -> Tensor:
    """E sum_k pi_k log pi_k of the anchor's prior; the batch's own label counts are binomial(B, pi_k)."""
    if score.anchor == 0:
        return torch.zeros((), dtype=torch.float64)
    if score.prior is not None:
        return torch.xlogy(score.prior, score.prior).sum()
    pi = population.prior[:, None]
    counts = torch.arange(B + 1, dtype=torch.float64)  # (B + 1,)
    log_choose = torch.lgamma(torch.tensor(B + 1.0, dtype=torch.float64))
    log_choose = log_choose - torch.lgamma(counts + 1) - torch.lgamma(B - counts + 1)
    rest = (1 - pi).clamp_min(0)  # weights that sum to 1 + 2e-16 give a certain class a pi above 1
    probability = (log_choose + torch.xlogy(counts, pi) + torch.xlogy(B - counts, rest)).exp()  # (K, B + 1)
    share = counts / B
    return (probability * torch.xlogy(share, share)).sum()


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
    objective = expected_batch_loss(population, batch_size, score)
    return objective.at(checked_log_forecast(population, forecast)[None]).item()


def minimise_batch_risk(
    population: Population,
    batch_size: int,
    score: GenCE | None = None,
    *,
    starts: int = 4,
    seed: int = 0,
    tolerance: float = 1e-13,
    max_steps: int = MOST_STEPS,
) -> Minimisers:
    """Minimise the expected batch loss over all forecasts from random starts.

    Args:
        population: P_X and q; the largest that is taken needs some hundred MB and a minute or less.
        batch_size: B, at least 2 for plain GenCE.
        score: GenCE with its anchor; plain GenCE when None.
        starts, seed, tolerance, max_steps: those of ``minimise``.
    """
    objective = expected_batch_loss(population, batch_size, score)
    if batch_size < 2 and (score is None or score.anchor == 0):
        raise ValueError("batch_size: expected at least 2, got 1; one row alone has loss 0 whatever the forecast.")
    starts = checked_count("starts", starts, 1)
    size = population.points * population.classes
    if starts * size**2 > MOST_HESSIAN_ENTRIES:
        raise ValueError(
            f"population: {population.points} inputs of {population.classes} classes give Hessians of {size} x {size}, "
            f"{starts * size**2} numbers for {starts} starts, more than {MOST_HESSIAN_ENTRIES}; use fewer inputs, "
            "classes or starts."
        )
    return minimise_objective(
        objective,
        (population.points, population.classes),
        starts=starts,
        seed=seed,
        tolerance=tolerance,
        max_steps=max_steps,
    )


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
    for batch_size in batch_sizes:
        B = checked_count("batch_size", batch_size, 1)
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
