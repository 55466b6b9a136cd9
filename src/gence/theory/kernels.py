"""Populations on finite input spaces: input weights P_X, the true posterior q, and ways to make them."""

from __future__ import annotations

import torch
from torch import Tensor

SIMPLEX_TOLERANCE = 1e-6  # float32 input rounds by this much; it is normalised again in float64


def check_kernel(kernel: Tensor, name: str = "kernel") -> Tensor:
    """Return ``kernel`` in float64 after checking that each row is a probability vector.

    Args:
        kernel: (m, K), row x holds the class probabilities at input x.
        name: how an error message calls it.

    Raises:
        ValueError: not two-dimensional, fewer than two classes, a negative or non-finite entry, a row that does not
            sum to 1.
    """
    if kernel.dim() != 2 or kernel.shape[0] < 1 or kernel.shape[1] < 2:
        raise ValueError(f"{name}: expected shape (m, K) with m >= 1 and K >= 2, got {tuple(kernel.shape)}.")
    kernel = kernel.detach().to(torch.float64)
    if not bool(torch.isfinite(kernel).all()) or bool((kernel < 0).any()):
        raise ValueError(f"{name}: expected finite probabilities >= 0, got a minimum of {kernel.min().item():.3g}.")
    error = (kernel.sum(1) - 1).abs()
    if bool((error > SIMPLEX_TOLERANCE).any()):
        row = int(error.argmax())
        raise ValueError(
            f"{name}: row {row} sums to {kernel[row].sum().item():.12g}, expected 1; divide each row by its sum."
        )
    return kernel / kernel.sum(1, keepdim=True)


def check_weights(weights: Tensor, points: int, name: str = "weights") -> Tensor:
    """Return ``weights`` in float64 after checking that they are a distribution whose support is all ``points`` inputs.

    A point of weight zero is refused rather than ignored: the theory speaks of the support of P_X alone, and a point
    outside it would make a kernel look complete that is not.
    """
    if weights.shape != (points,):
        raise ValueError(f"{name}: expected shape ({points},), one weight an input, got {tuple(weights.shape)}.")
    weights = weights.detach().to(torch.float64)
    if not bool(torch.isfinite(weights).all()) or bool((weights <= 0).any()):
        raise ValueError(f"{name}: expected weights > 0; drop the inputs that have weight 0 from the kernel too.")
    if abs(weights.sum().item() - 1) > SIMPLEX_TOLERANCE:
        raise ValueError(f"{name}: sum to {weights.sum().item():.12g}, expected 1.")
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
        return self.weights @ forecast


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_population(points: int, classes: int, *, sharpness: float = 1.0, seed: int = 0) -> Population:
    """Draw a kernel softmax(sharpness * normal) and input weights: complete almost surely if points >= classes."""
    generator = _generator(seed)
    logits = sharpness * torch.randn(points, classes, generator=generator, dtype=torch.float64)
    weights = (0.5 * torch.randn(points, generator=generator, dtype=torch.float64)).softmax(0)
    return Population(logits.softmax(1), weights)


def anchor_point_population(points: int, classes: int, *, strength: float = 0.6, seed: int = 0) -> Population:
    """Draw a population whose input k has q(k | x_k) = ``strength`` > 1/2 for each class k; other inputs are random.

    Anchor points are the paper's first sufficient condition for completeness (appendix, example 1).
    """
    if not 0.5 < strength < 1:
        raise ValueError(f"strength: an anchor point needs 1/2 < strength < 1, got {strength}.")
    if points < classes:
        raise ValueError(f"points: {classes} classes need at least {classes} inputs to be anchors, got {points}.")
    population = random_population(points, classes, seed=seed)
    kernel = population.kernel.clone()
    own = torch.eye(classes, dtype=torch.float64)
    rest = kernel[:classes] * (1 - own)  # (K, K)
    kernel[:classes] = strength * own + (1 - strength) * rest / rest.sum(1, keepdim=True)
    return Population(kernel, population.weights)


def proportional_population(points: int, classes: int, *, ratio: float = 0.5, seed: int = 0) -> Population:
    """Draw an incomplete population: the last class is ``ratio`` times the one before it at every input.

    Two classes no input tells apart: alpha = (0, ..., ratio, -1) annihilates the kernel.
    """
    if ratio <= 0:
        raise ValueError(f"ratio: expected a ratio > 0 between the last two columns, got {ratio}.")
    if classes < 2:
        raise ValueError(f"classes: two proportional columns need at least 2 classes, got {classes}.")
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
        covariances: (K, d, d) positive definite component covariances.
        priors: (K,) mixing weights > 0; uniform when None.

    Returns:
        The population of the m grid points, exact for that discretised mixture.
    """
    if grid.dim() != 2 or means.dim() != 2 or grid.shape[1] != means.shape[1]:
        raise ValueError(f"grid, means: expected (m, d) and (K, d), got {tuple(grid.shape)} and {tuple(means.shape)}.")
    K, d = means.shape
    if covariances.shape != (K, d, d):
        raise ValueError(f"covariances: expected {(K, d, d)}, one matrix a component, got {tuple(covariances.shape)}.")
    grid, means = grid.to(torch.float64), means.to(torch.float64)
    mixing = torch.full((K,), 1.0 / K, dtype=torch.float64) if priors is None else priors.to(torch.float64)
    factor, failed = torch.linalg.cholesky_ex(covariances.to(torch.float64))
    if bool(failed.any()):
        raise ValueError(f"covariances: component {int(failed.ne(0).nonzero()[0])} is not positive definite.")
    centred = (grid[:, None, :] - means).movedim(0, -1)  # (K, d, m)
    whitened = torch.linalg.solve_triangular(factor, centred, upper=False)  # (K, d, m)
    log_scale = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (K,)
    log_density = -0.5 * whitened.square().sum(1).T - log_scale  # (m, K), up to a constant shared by all
    log_joint = check_weights(mixing, K, "priors").log() + log_density
    return Population(log_joint.softmax(1), log_joint.logsumexp(1).softmax(0))
