"""Population risk, excess risk, and the proof's decomposition of it."""

from __future__ import annotations

import torch
from torch import Tensor

from gence.theory.populations import Population, check_forecast
from gence.theory.scores import GenCE, Score, check_score, kl_from_logs, log_marginal


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
    return kl_from_logs(GenCE(prior=prior).prior_of(population), log_s).item()


def checked_log_forecast(population: Population, forecast: Tensor) -> Tensor:
    """Log of a forecast (m, K) after checking that it is one for this population."""
    return check_forecast(population, forecast).log()
