"""Numerical minimisation of a risk over all forecasts, from many random starts, to float64 accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gence.theory.completeness import completeness
from gence.theory.kernels import Population
from gence.theory.risk import expected_score
from gence.theory.scores import Score

_STEP_SIZES = tuple(2.0**-i for i in range(12))
_LONGEST_STEP = 4.0  # in logits: a risk that is minimised at infinity must not overflow on the way


@dataclass(frozen=True, eq=False)
class Minimisers:
    """Where each start ended.

    Attributes:
        forecasts: (starts, m, K) forecasts.
        risks: (starts,) their risks.
        gradient_norm: the largest gradient entry left over all starts, in logits.
    """

    forecasts: Tensor
    risks: Tensor
    gradient_norm: float

    @property
    def spread(self) -> float:
        """Largest difference between the forecasts of any two starts: 0 when the minimiser is unique."""
        return (self.forecasts.amax(0) - self.forecasts.amin(0)).max().item()

    def distance_to(self, forecast: Tensor) -> float:
        """Largest entry by which any start's forecast differs from ``forecast`` (m, K)."""
        return (self.forecasts - forecast).abs().max().item()


def minimise(
    score: Score,
    population: Population,
    *,
    starts: int = 6,
    seed: int = 0,
    tolerance: float = 1e-13,
    max_steps: int = 300,
) -> Minimisers:
    """Minimise the population risk of ``score`` over all forecasts.

    Forecasts are softmax(logits), so each stays inside the simplex; a minimiser on its boundary (MAE's) is approached
    to about 1e-10.

    Args:
        score: scoring rule.
        population: P_X and q.
        starts: number of random starts (standard normal logits, doubled).
        seed: of the starts.
        tolerance: stop when no gradient entry of any start exceeds it.
        max_steps: give up after this many steps; look at ``gradient_norm``.
    """
    return minimise_objective(
        lambda log_forecast: expected_score(score, population, log_forecast),
        (population.points, population.classes),
        starts=starts,
        seed=seed,
        tolerance=tolerance,
        max_steps=max_steps,
    )


def minimise_objective(
    objective: Callable[[Tensor], Tensor],
    shape: tuple[int, int],
    *,
    starts: int = 6,
    seed: int = 0,
    tolerance: float = 1e-13,
    max_steps: int = 300,
) -> Minimisers:
    """Minimise any smooth function of log-forecasts (m, K) by Newton's method, all starts at once.

    The Newton step uses |eigenvalue| of the Hessian, so that it leaves saddles instead of walking into them, and each
    start takes the best of twelve step lengths. L-BFGS stalls near 1e-6 in flat valleys such as an incomplete
    kernel's.
    """
    m, K = shape
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(starts, m * K, generator=generator, dtype=torch.float64)

    def value(flat: Tensor) -> Tensor:
        return objective(flat.view(m, K).log_softmax(1))

    values = torch.func.vmap(value)
    gradients = torch.func.vmap(torch.func.grad(value))
    hessians = torch.func.vmap(torch.func.jacrev(torch.func.grad(value)))
    sizes = torch.tensor((*_STEP_SIZES, 0.0), dtype=torch.float64)  # 0: stay, where no step helps

    gradient = gradients(logits)
    for _ in range(max_steps):
        if gradient.abs().max() <= tolerance:
            break
        eigenvalues, vectors = torch.linalg.eigh(hessians(logits))
        scale = eigenvalues.abs().clamp_min(1e-14)
        step = -(vectors @ ((vectors.mT @ gradient[..., None]) / scale[..., None]))[..., 0]  # (starts, mK)
        step = step * (_LONGEST_STEP / step.abs().amax(1, keepdim=True).clamp_min(_LONGEST_STEP))
        candidates = logits + sizes[:, None, None] * step  # (sizes, starts, mK)
        candidate_values = values(candidates.flatten(0, 1)).view(len(sizes), starts)
        # Near the minimum values tie to rounding; there the full Newton step is the accurate one.
        best = candidate_values.amin(0)
        close = candidate_values[0] <= best + 1e-15 * (1 + best.abs())
        chosen = torch.where(close, 0, candidate_values.argmin(0))
        logits = candidates[chosen, torch.arange(starts)]
        gradient = gradients(logits)
    return Minimisers(
        forecasts=logits.view(starts, m, K).softmax(-1),
        risks=values(logits),
        gradient_norm=gradient.abs().max().item(),
    )


def equivalence_family(population: Population, *, members: int = 5, seed: int = 0) -> Tensor:
    """Forecasts that GenCE cannot tell from the truth, (members, m, K): each column scaled by its own constant.

    For alpha in the kernel's null space, p_k = (1 + t alpha_k) q_k still sums to 1 at every input, and dividing by
    the marginal removes the scale: all members have the truth's risk. Member i scales a random null direction so far
    that its most shrunken column keeps between 10 % and 90 % of its mass.

    Raises:
        ValueError: the kernel is complete, so that the family is the truth alone.
    """
    null_space = completeness(population.kernel).null_space  # (K, K - rank)
    if null_space.shape[1] == 0:
        raise ValueError(
            "population: its kernel is complete, so GenCE has no other minimiser than the truth; "
            "proportional_population makes an incomplete one."
        )
    generator = torch.Generator().manual_seed(seed)
    mixture = torch.randn(null_space.shape[1], members, generator=generator, dtype=torch.float64)
    alpha = (null_space @ mixture).T  # (members, K)
    shrink = torch.linspace(0.1, 0.9, members, dtype=torch.float64)[:, None]
    most = -alpha.amin(1, keepdim=True)  # a null alpha has both signs, as q >= 0, unless a class never occurs
    scaled = alpha * (shrink / torch.where(most > 0, most, 1.0))
    return (1 + scaled)[:, None, :] * population.kernel
