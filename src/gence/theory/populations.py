"""Populations on finite input spaces: input weights P_X, the true posterior q, and ways to make them.

The condition of the paper's theorem is a property of q: `completeness`, and the two sufficient conditions it gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gence.losses import check_number
from gence.theory._checks import check_tensor, checked_count, checked_seed

SIMPLEX_TOLERANCE = 1e-6  # float32 input rounds by this much; it is normalised again in float64


def check_kernel(kernel: Tensor, name: str = "kernel") -> Tensor:
    """Return ``kernel`` in float64 after checking that each row is a probability vector.

    Args:
        kernel: (m, K), row x holds the class probabilities at input x.
        name: how an error message calls it.

    Raises:
        TypeError: not a tensor of real numbers.
        ValueError: not two-dimensional, fewer than two classes, a negative or non-finite entry, a row that does not
            sum to 1.
    """
    check_tensor(name, kernel, "(m, K)")
    if kernel.dim() != 2 or kernel.shape[0] < 1 or kernel.shape[1] < 2:
        raise ValueError(f"{name}: expected shape (m, K) with m >= 1 and K >= 2, got {tuple(kernel.shape)}.")
    kernel = kernel.detach().to(torch.float64)
    refused = torch.nonzero(~(torch.isfinite(kernel) & (kernel >= 0)))
    if len(refused):
        row, k = refused[0].tolist()
        seen = kernel[row, k].item()
        raise ValueError(f"{name}: expected finite probabilities >= 0, got {seen:.3g} in row {row}, class {k}.")
    error = (kernel.sum(1) - 1).abs()
    if bool((error > SIMPLEX_TOLERANCE).any()):
        row = int(error.argmax())
        total = kernel[row].sum().item()
        raise ValueError(f"{name}: row {row} sums to {total:.12g}, expected 1; divide each row by its sum, in float64.")
    return kernel / kernel.sum(1, keepdim=True)


def check_weights(weights: Tensor, points: int, name: str = "weights", each: str = "input") -> Tensor:
    """Return ``weights`` in float64 after checking that they are a distribution whose support is all ``points`` inputs.

    A point of weight zero is refused rather than ignored: the theory speaks of the support of P_X alone, and a point
    outside it would make a kernel look complete that is not.
    """
    check_tensor(name, weights, f"({points},)")
    if weights.shape != (points,):
        raise ValueError(f"{name}: expected shape ({points},), one for each {each}, got {tuple(weights.shape)}.")
    weights = weights.detach().to(torch.float64)
    refused = torch.nonzero(~(torch.isfinite(weights) & (weights > 0)))[:, 0]
    if len(refused):
        raise ValueError(
            f"{name}: expected finite weights > 0, got {weights[refused[0]].item():.3g} for {each} {int(refused[0])}; "
            f"drop the {each}s that have weight 0 from the other arguments too."
        )
    if abs(weights.sum().item() - 1) > SIMPLEX_TOLERANCE:
        raise ValueError(
            f"{name}: sum to {weights.sum().item():.12g}, expected 1; divide them by their sum, in float64."
        )
    return weights / weights.sum()


class Population:
    """A data distribution on m inputs, exact in float64.

    Args:
        kernel: the true posterior q (m, K), rows on the simplex.
        weights: P_X (m,), all > 0; uniform when None.

    >>> population = Population(torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64))
    >>> population.prior
    tensor([0.5500, 0.4500], dtype=torch.float64)
    """

    def __init__(self, kernel: Tensor, weights: Tensor | None = None) -> None:
        self.kernel = check_kernel(kernel)
        m = self.kernel.shape[0]
        self.weights = self.kernel.new_full((m,), 1.0 / m) if weights is None else check_weights(weights, m)

    @property
    def points(self) -> int:
        """Number of inputs m."""
        return self.kernel.shape[0]

    @property
    def classes(self) -> int:
        """Number of classes K."""
        return self.kernel.shape[1]

    @property
    def prior(self) -> Tensor:
        """True class marginal pi_k = E_x q(k|x), (K,)."""
        return self.weights @ self.kernel

    def marginal(self, forecast: Tensor) -> Tensor:
        """Predicted class marginal s_k = E_x p(k|x) of a forecast (m, K), (K,)."""
        return self.weights @ check_forecast(self, forecast)


def check_population(population: Any) -> None:
    """``population`` must be one; a kernel alone is a frequent slip."""
    if not isinstance(population, Population):
        seen = type(population).__name__
        raise TypeError(f"population: expected a Population, got {seen}; Population(kernel, weights) makes one.")


def check_forecast(population: Population, forecast: Tensor) -> Tensor:
    """Return ``forecast`` (m, K) in float64 after checking that it is one for this population."""
    check_population(population)
    forecast = check_kernel(forecast, "forecast")
    if forecast.shape != population.kernel.shape:
        expected, seen = tuple(population.kernel.shape), tuple(forecast.shape)
        raise ValueError(f"forecast: expected {expected}, the shape of the population's kernel, got {seen}.")
    return forecast


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(checked_seed(seed))


def random_population(points: int, classes: int, *, sharpness: float = 1.0, seed: int = 0) -> Population:
    """Draw a kernel softmax(sharpness * normal) and input weights: complete almost surely if points >= classes."""
    points, classes = checked_count("points", points, 1), checked_count("classes", classes, 2)
    check_number("sharpness", sharpness, "a finite factor of the logits")
    if not math.isfinite(sharpness):
        raise ValueError(f"sharpness: expected a finite factor of the logits, got {sharpness}.")
    generator = _generator(seed)
    logits = sharpness * torch.randn(points, classes, generator=generator, dtype=torch.float64)
    weights = (0.5 * torch.randn(points, generator=generator, dtype=torch.float64)).softmax(0)
    return Population(logits.softmax(1), weights)


def anchor_point_population(points: int, classes: int, *, strength: float = 0.6, seed: int = 0) -> Population:
    """Draw a population whose input k has q(k | x_k) = ``strength`` > 1/2 for each class k; other inputs are random.

    Anchor points are the paper's first sufficient condition for completeness (appendix, example 1).
    """
    population = random_population(points, classes, seed=seed)
    check_number("strength", strength, "a number in (1/2, 1)")
    if not 0.5 < strength < 1:
        raise ValueError(f"strength: an anchor point needs 1/2 < strength < 1, got {strength}.")
    if points < classes:
        raise ValueError(f"points: {classes} classes need at least {classes} inputs to be anchors, got {points}.")
    kernel = population.kernel.clone()
    own = torch.eye(classes, dtype=torch.float64)
    rest = kernel[:classes] * (1 - own)  # (K, K)
    kernel[:classes] = strength * own + (1 - strength) * rest / rest.sum(1, keepdim=True)
    return Population(kernel, population.weights)


def proportional_population(points: int, classes: int, *, ratio: float = 0.5, seed: int = 0) -> Population:
    """Draw an incomplete population: the last class is ``ratio`` times the one before it at every input.

    Two classes no input tells apart: alpha = (0, ..., ratio, -1) annihilates the kernel.
    """
    check_number("ratio", ratio, "a finite ratio > 0 between the last two columns")
    if not 0 < ratio < math.inf:
        raise ValueError(f"ratio: expected a finite ratio > 0 between the last two columns, got {ratio}.")
    population = random_population(points, classes, seed=seed)
    kernel = population.kernel.clone()
    both = kernel[:, -2] + kernel[:, -1]
    kernel[:, -2] = both / (1 + ratio)
    kernel[:, -1] = both * (ratio / (1 + ratio))
    return Population(kernel, population.weights)


def gaussian_population(grid: Tensor, means: Tensor, covariances: Tensor, priors: Tensor | None = None) -> Population:
    """Gaussian mixture read on a grid: P_X proportional to the mixture density, q by Bayes' rule.

    Args:
        grid: (m, d) inputs.
        means: (K, d) component means.
        covariances: (K, d, d) symmetric, positive definite component covariances.
        priors: (K,) mixing weights > 0; uniform when None.

    Returns:
        The population of the m grid points, exact for that discretised mixture.
    """
    check_tensor("grid", grid, "(m, d)")
    means, _, factor = check_gaussians(means, covariances)
    K = means.shape[0]
    if K < 2:
        raise ValueError(f"means: expected at least 2 components, one for each class, got {tuple(means.shape)}.")
    if grid.dim() != 2 or grid.shape[0] < 1 or grid.shape[1] != means.shape[1]:
        raise ValueError(
            f"grid, means: expected (m, d) with m >= 1 and (K, d), got {tuple(grid.shape)} and {tuple(means.shape)}."
        )
    grid = _finite("grid", grid)
    mixing = torch.full((K,), 1.0 / K, dtype=torch.float64) if priors is None else priors
    centred = (grid[:, None, :] - means).movedim(0, -1)  # (K, d, m)
    whitened = torch.linalg.solve_triangular(factor, centred, upper=False)  # (K, d, m)
    log_scale = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (K,)
    log_density = -0.5 * whitened.square().sum(1).T - log_scale  # (m, K), up to a constant shared by all
    log_joint = check_weights(mixing, K, "priors", "component").log() + log_density
    weights = log_joint.logsumexp(1).softmax(0)
    if bool((weights == 0).any()):
        raise ValueError(
            f"grid: point {int(weights.argmin())} lies so far from every mean that its share of the mixture is 0 in "
            "float64; remove it."
        )
    return Population(log_joint.softmax(1), weights)


def check_gaussians(means: Tensor, covariances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means (K, d), covariances (K, d, d) and their Cholesky factors in float64, after checking all of them."""
    check_tensor("means", means, "(K, d)")
    check_tensor("covariances", covariances, "(K, d, d)")
    if means.dim() != 2 or 0 in means.shape or covariances.shape != (*means.shape, means.shape[1]):
        raise ValueError(
            f"means, covariances: expected (K, d) and (K, d, d), one matrix per component, got {tuple(means.shape)} "
            f"and {tuple(covariances.shape)}."
        )
    means, covariances = _finite("means", means), _finite("covariances", covariances)
    asymmetric = (covariances - covariances.mT).abs().amax((1, 2)) > SIMPLEX_TOLERANCE * covariances.abs().amax((1, 2))
    if bool(asymmetric.any()):
        raise ValueError(f"covariances: component {int(asymmetric.nonzero()[0])} is not symmetric.")
    factor, failed = torch.linalg.cholesky_ex(covariances)
    if bool(failed.any()):
        raise ValueError(f"covariances: component {int(failed.ne(0).nonzero()[0])} is not positive definite.")
    return means, covariances, factor


def _finite(name: str, values: Tensor) -> Tensor:
    values = values.detach().to(torch.float64)
    refused = values[~values.isfinite()]
    if len(refused):
        raise ValueError(f"{name}: expected finite numbers, got {refused[0].item()}.")
    return values


@dataclass(frozen=True, eq=False)
class Completeness:
    """What the singular values of a kernel say about it.

    Attributes:
        classes: K.
        rank: numerical rank of the (m, K) matrix q.
        smallest_singular_value: 0 when m < K; how far q is from losing a rank otherwise.
        complete: rank == K, so that only alpha = 0 gives sum_k alpha_k q(k|x) = 0 everywhere.
        has_anchor_points: each class has an input with q(k|x) > 1/2; sufficient, not necessary.
        null_space: (K, K - rank) orthonormal columns: the alphas that annihilate q.
    """

    classes: int
    rank: int
    smallest_singular_value: float
    complete: bool
    has_anchor_points: bool
    null_space: Tensor


def completeness(kernel: Tensor, *, tolerance: float = 1e-10) -> Completeness:
    """Decide whether a kernel (m, K) is complete, which is to say that its columns are linearly independent.

    Args:
        kernel: rows on the simplex, one row for each input in the support of P_X.
        tolerance: a singular value at or below ``tolerance`` times the largest one counts as zero; in [0, 1).

    >>> completeness(torch.tensor([[0.9, 0.1], [0.2, 0.8]])).complete
    True
    >>> completeness(torch.tensor([[0.5, 0.5], [0.5, 0.5]])).rank
    1
    """
    kernel = check_kernel(kernel)
    m, K = kernel.shape
    check_number("tolerance", tolerance, "a fraction of the largest singular value in [0, 1)")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: expected a fraction of the largest singular value in [0, 1), got {tolerance}.")
    # full_matrices: with m < K the missing right singular vectors are null directions too.
    _, singular, right = torch.linalg.svd(kernel, full_matrices=True)
    rank = int((singular > tolerance * singular[0]).sum())
    return Completeness(
        classes=K,
        rank=rank,
        smallest_singular_value=singular[-1].item() if m >= K else 0.0,
        complete=rank == K,
        has_anchor_points=has_anchor_points(kernel),
        null_space=right[rank:].T.contiguous(),
    )


def has_anchor_points(kernel: Tensor) -> bool:
    """Whether each class k has an input with q(k|x) > 1/2 (paper, appendix, example 1): sufficient for completeness.

    More than 1/2 by more than 1e-6, which rounding can add: 1/2 itself is not enough, and a kernel whose anchor points
    are that close to it could be incomplete in float64.
    """
    return bool((check_kernel(kernel).amax(0) > 0.5 + SIMPLEX_TOLERANCE).all())


def distinct_gaussians(means: Tensor, covariances: Tensor) -> bool:
    """Whether no two Gaussian classes share mean and covariance (paper, appendix, example 2).

    Sufficient for completeness on the whole of R^d. Read on m < K grid points, the same mixture is incomplete. Numbers
    are compared as they are: components that differ by rounding alone are distinct, and their kernel hardly complete.

    Args:
        means: (K, d).
        covariances: (K, d, d), symmetric and positive definite.
    """
    means, covariances, _ = check_gaussians(means, covariances)
    parameters = torch.cat([means, covariances.flatten(1)], dim=1)  # (K, d + d*d)
    return bool(torch.unique(parameters, dim=0).shape[0] == means.shape[0])
