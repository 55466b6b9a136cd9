"""Scoring rules on a finite input space, pointwise and non-local, each as a table of scores; and their risks.

A score is called with log-forecasts (m, K) and the population, and returns (m, K): entry (x, k) is what the forecast
pays when label k is seen at input x (the paper's non-local scoring rule S(p, x, y)). A pointwise rule looks at row x
alone. Below stand the population risk, the excess risk, and the proof's decomposition of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gence.losses import check_gamma, check_number, prior_divergence
from gence.theory._checks import checked_anchor, checked_prior
from gence.theory.populations import Population, check_forecast, check_kernel


class Score(Protocol):
    """A scoring rule; any callable of this shape can be given to ``risk`` and ``minimise``."""

    def __call__(self, log_forecast: Tensor, population: Population) -> Tensor:
        """Return the (m, K) table of scores."""
        ...


@dataclass(frozen=True)
class Pointwise:
    """A classical scoring rule: ``rule`` maps log-forecasts (m, K) to scores (m, K), row by row."""

    rule: Callable[[Tensor], Tensor]

    def __call__(self, log_forecast: Tensor, population: Population) -> Tensor:
        """Return the (m, K) table of scores; the population has no say."""
        del population
        return self.rule(log_forecast)


def check_score(score: Any) -> None:
    """``score`` must be a rule and not what makes one: ``brier`` for ``brier()`` is a frequent slip."""
    expected = "score: expected a rule of (log_forecast, population), such as GenCE() or brier()"
    if isinstance(score, type) or not callable(score):
        raise TypeError(f"{expected}, got {score!r}.")
    try:
        signature = inspect.signature(score)
    except ValueError:  # of a function that is not written in Python
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        name = getattr(score, "__name__", type(score).__name__)
        raise TypeError(f"{expected}, got {name}, called so: {error}. Does it make a rule? Then call it.") from None


def cross_entropy() -> Pointwise:
    """-log p_y. Strictly proper."""
    return Pointwise(torch.neg)


def brier() -> Pointwise:
    """sum_k (p_k - 1[k = y])^2 = sum_k p_k^2 - 2 p_y + 1. Strictly proper."""

    def rule(log_forecast: Tensor) -> Tensor:
        p = log_forecast.exp()
        return p.square().sum(1, keepdim=True) - 2 * p + 1

    return Pointwise(rule)


def mean_absolute_error() -> Pointwise:
    """2 (1 - p_y). Not proper: linear in p, so its minimiser is the mode with certainty."""

    def rule(log_forecast: Tensor) -> Tensor:
        return -2 * torch.expm1(log_forecast)

    return Pointwise(rule)


def generalised_cross_entropy(q: float = 0.7) -> Pointwise:
    """(1 - p_y^q) / q. Not proper for 0 < q < 1: its minimiser is ``generalised_cross_entropy_minimiser``."""
    _check_exponent(q)

    def rule(log_forecast: Tensor) -> Tensor:
        return -torch.expm1(q * log_forecast) / q

    return Pointwise(rule)


def focal(gamma: float = 2.0) -> Pointwise:
    """-(1 - p_y)^gamma log p_y. Not proper for gamma > 0: its minimiser is mostly flatter than the truth."""
    check_gamma(gamma)

    def rule(log_forecast: Tensor) -> Tensor:
        return -((-torch.expm1(log_forecast)) ** gamma) * log_forecast

    return Pointwise(rule)


@dataclass(frozen=True, eq=False)
class GenCE:
    """GenCE as a non-local score, anchored if asked: S(p, x, k) = -log p(k|x) + log s_k + anchor * KL(prior || s).

    s_k = E_x p(k|x). With ``prior=None`` the anchor is the labels' own distribution: the population's class marginal
    here, the batch's label distribution in a finite batch.

    Where p(k|x) = 0 the score of k is +inf, as cross-entropy's is. If p(k|x) = 0 at every input, s_k is 0 too and the
    ratio 0/0; the score is +inf then as well, by convention, so that never to predict a class is not a way out.

    Attributes:
        anchor: strength a >= 0, finite; 0 is the paper's loss.
        prior: (K,) class distribution the anchor pulls to. A prior that is not the population's makes the score
            improper.

    >>> population = Population(torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64))
    >>> certain = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    >>> GenCE()(certain.log(), population)[:, 1]
    tensor([inf, inf], dtype=torch.float64)
    """

    anchor: float = 0.0
    prior: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "anchor", checked_anchor(self.anchor))
        prior = checked_prior(self.prior)
        if prior is not None:
            object.__setattr__(self, "prior", prior / prior.sum())

    def __call__(self, log_forecast: Tensor, population: Population) -> Tensor:
        """Return the (m, K) table of scores."""
        log_s = log_marginal(log_forecast, population)  # (K,)
        score = torch.where(log_forecast == -torch.inf, torch.inf, log_s - log_forecast)  # not inf - inf
        return score if self.anchor == 0 else score + self.anchor * prior_divergence(self.prior_of(population), log_s)

    def prior_of(self, population: Population) -> Tensor:
        """Return the prior (K,) of the anchor: the one given, or the population's class marginal.

        Raises:
            ValueError: the prior given is one over another number of classes.
        """
        prior = checked_prior(self.prior, population.classes)
        return population.prior if prior is None else prior


def log_marginal(log_forecast: Tensor, population: Population) -> Tensor:
    """Log of the predicted class marginal, log s_k = log E_x p(k|x), (K,)."""
    return (log_forecast + population.weights.log()[:, None]).logsumexp(0)


def generalised_cross_entropy_minimiser(kernel: Tensor, q: float = 0.7) -> Tensor:
    """Closed form of what generalised CE elicits: p_k proportional to q(k|x)^(1/(1-q)), for 0 < q < 1.

    Lagrange: q(k|x) p_k^(q-1) is the same for all k. The exponent exceeds 1, so the forecast is sharper than the truth.
    """
    _check_exponent(q)
    return (check_kernel(kernel).log() / (1 - q)).softmax(1)


def mean_absolute_error_minimiser(kernel: Tensor) -> Tensor:
    """Closed form of what MAE elicits: probability 1 on the likeliest class (ties go to the first)."""
    kernel = check_kernel(kernel)
    return torch.nn.functional.one_hot(kernel.argmax(1), kernel.shape[1]).to(torch.float64)


def _check_exponent(q: float) -> None:
    check_number("q", q, "a number in (0, 1)")
    if not 0 < q < 1:
        raise ValueError(f"q: expected 0 < q < 1 (the limits are cross-entropy at 0 and MAE at 1), got {q}.")


def expected_score(score: Score, population: Population, log_forecast: Tensor) -> Tensor:
    """Risk as a differentiable function of log-forecasts (m, K); ``risk`` is the checked way in."""
    table = score(log_forecast, population)  # (m, K)
    weights = population.weights[:, None] * population.kernel
    if not isinstance(table, Tensor) or table.shape != weights.shape:
        seen = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(
            f"score: expected a table of shape {tuple(weights.shape)}, a score for each label, got {seen}."
        )
    # A label that never occurs costs nothing even where its score is infinite: 0 * inf = 0, as in the proof.
    return torch.where(weights > 0, weights * table, 0.0).sum()


def risk(score: Score, population: Population, forecast: Tensor) -> float:
    """Population risk R(S; P_X, q, p) = E_x E_{y ~ q(.|x)} S(p, x, y) (paper, definition of population risk).

    Args:
        score: pointwise or non-local scoring rule.
        population: P_X and the true posterior q.
        forecast: p (m, K), rows on the simplex.

    Returns:
        The risk; +inf for a logarithmic score if the forecast gives 0 to a label that occurs.

    >>> from gence.theory import GenCE, Population
    >>> population = Population(torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64))
    >>> round(risk(GenCE(), population, population.kernel), 6)  # minus the mutual information of x and y
    -0.275396
    """
    log_forecast = checked_log_forecast(population, forecast)
    check_score(score)
    return expected_score(score, population, log_forecast).item()


def excess_risk(score: Score, population: Population, forecast: Tensor) -> float:
    """Risk of a forecast minus the risk of the truth; never negative for a proper score.

    The truth's own risk is +inf where an anchor's prior has a class that never occurs: -inf then, or NaN.
    """
    return risk(score, population, forecast) - risk(score, population, population.kernel)


def log_sum_terms(population: Population, forecast: Tensor) -> Tensor:
    """Split GenCE's excess risk into the proof's K log-sum terms, (K,), each >= 0.

    Term k is E_x[q_k log(q_k / p_k)] - pi_k log(pi_k / s_k), which is pi_k KL(q(x|k) || p(x|k)): how badly the
    forecast's class-conditional distribution over inputs misses the true one. Nothing in it sees the scale of column
    k. It is +inf if the forecast gives 0 to k at an input where k occurs, at that one alone or at all.
    """
    log_p = checked_log_forecast(population, forecast)
    weights = population.weights[:, None]
    log_s = log_marginal(log_p, population)  # (K,)
    joint = weights * population.kernel  # (m, K)
    log_q_given_k = joint.log() - population.prior.log()  # (m, K): log q(x|k)
    log_p_given_k = torch.where(log_p == -torch.inf, log_p, weights.log() + log_p - log_s)  # not inf - inf
    return torch.where(joint > 0, joint * (log_q_given_k - log_p_given_k), 0.0).sum(0)


def anchor_term(population: Population, forecast: Tensor, prior: Tensor | None = None) -> float:
    """KL(prior || s): what the anchor adds to the K log-sum terms, once for each unit of anchor.

    Finite wherever s_k > 0 for the classes of the prior, even if the forecast gives 0 at single inputs.

    Args:
        population: P_X and q.
        forecast: p (m, K).
        prior: (K,); the population's class marginal when None.
    """
    log_s = log_marginal(checked_log_forecast(population, forecast), population)  # (K,)
    return prior_divergence(GenCE(prior=prior).prior_of(population), log_s).item()


def checked_log_forecast(population: Population, forecast: Tensor) -> Tensor:
    """Log of a forecast (m, K) after checking that it is one for this population."""
    return check_forecast(population, forecast).log()
