"""Completeness of a kernel, the condition of the paper's theorem, and the two sufficient conditions it gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gence.losses import check_number
from gence.theory.populations import SIMPLEX_TOLERANCE, check_gaussians, check_kernel


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
