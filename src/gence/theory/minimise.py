"""Numerical minimisation of a risk over all forecasts, from many random starts, to float64 accuracy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gence.losses import check_number
from gence.theory._checks import check_tensor, checked_count, checked_seed
from gence.theory.populations import Population, check_population, completeness
from gence.theory.scores import Score, check_score, expected_score

_STEP_SIZES = tuple(2.0**-i for i in range(12))
_LONGEST_STEP = 4.0  # in logits: a risk that is minimised at infinity must not overflow on the way
MOST_STEPS = 2000  # most starts need some tens; the curved valley of a nearly incomplete kernel takes hundreds
_EQUAL_RISKS = 1e-10  # starts that reached the minimum agree to rounding, about 1e-15


@dataclass(frozen=True, eq=False)
class Minimisers:
    """Where each start ended.

    Attributes:
        forecasts: (starts, m, K) forecasts.
        risks: (starts,) their risks.
        gradient_norm: the largest gradient entry left over all starts, in logits.
        tolerance: the gradient entry at which a start was to stop.
    """

    forecasts: Tensor
    risks: Tensor
    gradient_norm: float
    tolerance: float

    @property
    def converged(self) -> bool:
        """Whether every start stopped for want of a gradient, and all at the same risk.

        The second is needed because plain GenCE has plateaus: a start that has made a class vanishingly rare has
        almost no gradient left, yet a risk above the minimum. ``forecasts[risks.argmin()]`` is the best one found.
        """
        return self.gradient_norm <= self.tolerance and self.risk_gap <= _EQUAL_RISKS

    @property
    def risk_gap(self) -> float:
        """Highest minus lowest risk of the starts."""
        return (self.risks.max() - self.risks.min()).item()

    @property
    def spread(self) -> float:
        """Largest difference between the forecasts of any two starts: 0 when the minimiser is unique."""
        return (self.forecasts.amax(0) - self.forecasts.amin(0)).max().item()

    def distance_to(self, forecast: Tensor) -> float:
        """Largest entry by which any start's forecast differs from ``forecast`` (m, K)."""
        check_tensor("forecast", forecast, "(m, K)")
        if forecast.shape != self.forecasts.shape[1:]:
            expected, seen = tuple(self.forecasts.shape[1:]), tuple(forecast.shape)
            raise ValueError(f"forecast: expected {expected}, the shape of those found, got {seen}.")
        return (self.forecasts - forecast).abs().max().item()


def minimise(
    score: Score,
    population: Population,
    *,
    starts: int = 6,
    seed: int = 0,
    tolerance: float = 1e-13,
    max_steps: int = MOST_STEPS,
) -> Minimisers:
    """Minimise the population risk of ``score`` over all forecasts.

    Forecasts are softmax(logits), so each stays inside the simplex. A minimiser on its boundary is approached until the
    gradient there is below ``tolerance``: MAE's to about 1e-10 (less closely where two classes are nearly tied), but a
    certain class under Brier to 1e-6 and under focal to 1e-4, whose gradients in logits vanish faster.

    Args:
        score: scoring rule.
        population: P_X and q.
        starts: number of random starts (standard normal logits, doubled).
        seed: of the starts.
        tolerance: a start stops when none of its gradient entries exceeds it; >= 0.
        max_steps: give up after this many steps.

    Returns:
        Where the starts ended. If not all of them reached the minimum, a RuntimeWarning says so, and ``converged`` is
        False.
    """
    check_population(population)
    check_score(score)
    shape = population.points, population.classes

    def value(flat: Tensor) -> Tensor:
        return expected_score(score, population, flat.view(shape).log_softmax(1))

    return minimise_objective(
        Differentiated(value),
        shape,
        starts=starts,
        seed=seed,
        tolerance=tolerance,
        max_steps=max_steps,
    )


class Objective(Protocol):
    """A smooth function of logits, at many of them at once: (n, m * K)."""

    def values(self, logits: Tensor) -> Tensor:
        """Return (n,) values."""
        ...

    def gradients(self, logits: Tensor) -> Tensor:
        """Return (n, m * K) gradients."""
        ...

    def hessians(self, logits: Tensor) -> Tensor:
        """Return (n, m * K, m * K) Hessians."""
        ...


class Differentiated:
    """The objective that automatic differentiation makes of a function of logits (m * K,)."""

    def __init__(self, value: Callable[[Tensor], Tensor]) -> None:
        self.values = torch.func.vmap(value)
        self.gradients = torch.func.vmap(torch.func.grad(value))
        self.hessians = torch.func.vmap(torch.func.jacrev(torch.func.grad(value)))


def minimise_objective(
    objective: Objective,
    shape: tuple[int, int],
    *,
    starts: int = 6,
    seed: int = 0,
    tolerance: float = 1e-13,
    max_steps: int = MOST_STEPS,
) -> Minimisers:
    """Minimise any smooth function of the logits of (m, K) forecasts by Newton's method, all starts at once.

    The Newton step uses |eigenvalue| of the Hessian, so that it leaves saddles instead of walking into them, and each
    start takes the best of twelve step lengths. L-BFGS stalls near 1e-6 in flat valleys such as an incomplete
    kernel's. A start that has arrived stands still: further steps along such a valley would follow rounding errors.
    """
    m, K = shape
    starts, max_steps = checked_count("starts", starts, 1), checked_count("max_steps", max_steps, 0)
    check_number("tolerance", tolerance, "a gradient entry >= 0")
    if not tolerance >= 0:
        raise ValueError(f"tolerance: expected a gradient entry >= 0, got {tolerance}.")
    generator = torch.Generator().manual_seed(checked_seed(seed))
    logits = 2 * torch.randn(starts, m * K, generator=generator, dtype=torch.float64)
    sizes = torch.tensor((*_STEP_SIZES, 0.0), dtype=torch.float64)  # 0: stay, where no step helps

    gradient = objective.gradients(logits)
    for _ in range(max_steps):
        moving = torch.nonzero(gradient.abs().amax(1) > tolerance)[:, 0]  # (moving,): the starts that still move
        if len(moving) == 0:
            break
        here, slope = logits[moving], gradient[moving]
        eigenvalues, vectors = torch.linalg.eigh(objective.hessians(here))
        scale = eigenvalues.abs().clamp_min(1e-14)
        step = -(vectors @ ((vectors.mT @ slope[..., None]) / scale[..., None]))[..., 0]  # (moving, mK)
        step = step * (_LONGEST_STEP / step.abs().amax(1, keepdim=True).clamp_min(_LONGEST_STEP))
        candidates = here + sizes[:, None, None] * step  # (sizes, moving, mK)
        candidate_values = objective.values(candidates.flatten(0, 1)).view(len(sizes), len(moving))
        # Near the minimum values tie to rounding; there the full Newton step is the accurate one.
        best = candidate_values.amin(0)
        close = candidate_values[0] <= best + 1e-15 * (1 + best.abs())
        chosen = torch.where(close, 0, candidate_values.argmin(0))
        logits[moving] = candidates[chosen, torch.arange(len(moving))]
        gradient[moving] = objective.gradients(logits[moving])
    found = Minimisers(
        forecasts=logits.view(starts, m, K).softmax(-1),
        risks=objective.values(logits),
        gradient_norm=gradient.abs().max().item(),
        tolerance=tolerance,
    )
    if not found.converged:
        warnings.warn(
            f"Not every start reached the minimum: after at most {max_steps} steps the largest gradient is "
            f"{found.gradient_norm:.1e} (tolerance {tolerance:.1e}) and the risks of {starts} starts differ by up to "
            f"{found.risk_gap:.1e}. {_what_to_do(found)}",
            RuntimeWarning,
            stacklevel=3,  # the caller of minimise or of minimise_batch_risk
        )
    return found


def _what_to_do(found: Minimisers) -> str:
    lowest = "use the start of the lowest risk, forecasts[risks.argmin()]."
    if math.isnan(found.gradient_norm):
        return "The score is NaN, or its gradient is, at forecasts inside the simplex: correct it there."
    if found.gradient_norm > found.tolerance:
        return f"Raise max_steps, or tolerance if the gradient falls no further; or {lowest}"
    return f"No start has a gradient left, so that more steps do not help: lower tolerance, or {lowest}"


def equivalence_family(population: Population, *, members: int = 5, seed: int = 0) -> Tensor:
    """Forecasts that GenCE cannot tell from the truth, (members, m, K): each column scaled by its own constant.

    For alpha in the kernel's null space, p_k = (1 + t alpha_k) q_k still sums to 1 at every input, and dividing by
    the marginal removes the scale: all members have the truth's risk. A class that never occurs has no column to
    scale, but can take mass: any p_k = c_k q_k with sum_k c_k q_k <= 1 at every input will do, if such classes get
    what is missing. Member i goes so far along a random direction of this kind that its most shrunken column keeps
    between 90 % (the first) and 10 % (the last) of its mass.

    Raises:
        ValueError: the kernel is complete, so that the family is the truth alone; or ``members`` is below 1.
    """
    check_population(population)
    members = checked_count("members", members, 1)
    kernel = population.kernel
    null_space = completeness(kernel).null_space  # (K, K - rank)
    if null_space.shape[1] == 0:
        raise ValueError(
            "population: its kernel is complete, so GenCE has no other minimiser than the truth; "
            "proportional_population makes an incomplete one."
        )
    generator = torch.Generator().manual_seed(checked_seed(seed))
    mixture = torch.randn(null_space.shape[1], members, generator=generator, dtype=torch.float64)
    alpha = (null_space @ mixture).T  # (members, K)
    never = kernel.amax(0) == 0  # (K,)
    if bool(never.any()):
        # Less alpha gives up mass at every input; what it has for a class that never occurs scales nothing.
        alpha = (alpha - torch.rand(alpha.shape, generator=generator, dtype=torch.float64)).masked_fill(never, 0.0)
    most = -alpha.amin(1, keepdim=True)  # > 0: a null alpha has both signs where q > 0, and less of it is lower still
    shrink = torch.linspace(0.1, 0.9, members, dtype=torch.float64)[:, None]
    family = (1 + alpha * (shrink / most))[:, None, :] * kernel  # (members, m, K)
    if bool(never.any()):
        share = torch.rand(members, int(never.sum()), generator=generator, dtype=torch.float64)
        missing = (1 - family.sum(2, keepdim=True)).clamp_min(0)  # (members, m, 1)
        family[:, :, never] = missing * (share / share.sum(1, keepdim=True))[:, None, :]
    return family
