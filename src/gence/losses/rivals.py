"""Six later losses that GenCE is measured against, most of them made for calibration; called and reduced as baselines.

Penalties that do not depend on the label are weighted by the row's label mass tau_i = sum_k w_k t_ik (1 for a plain
label). So class weights, smoothing and soft targets mean what they mean for cross-entropy, and ignored rows cost 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gence.losses import _checks
from gence.losses.baselines import LikeCrossEntropy, cost_of_log_probs, directions
from gence.losses.targets import (
    Target,
    class_mass,
    prepare_rows,
    reduce_rows,
    target_mass,
    target_matrix,
    target_sum,
)


def mdca_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    beta: float = 1.0,
) -> Tensor:
    r"""Cross-entropy and the gap between mean confidence and class accuracy (MDCA) in the batch.

    .. math::
        \ell_i = -\log p_{i y_i} + \beta\, \tau_i \frac{1}{K} \sum_k
            \left| \frac{1}{n} \sum_j p_{jk} - \frac{1}{n} \sum_j t_{jk} \right|

    Hebbalaguppe, Prakash, Madan, Arora: A stitch in time saves nine (CVPR 2022). The second term couples the batch; it
    is the same for all rows, so that "mean" adds it once. Class weights do not enter the gap: it compares
    probabilities. A class masked by a logit of -inf still counts in K.

    Args:
        input: logits (n, K), (N, K, d1, ...) or unbatched (K,).
        target: as for cross-entropy.
        weight: class weights (K,).
        ignore_index: rows with this index take no part, neither in the loss nor in the gap.
        reduction: as for cross-entropy.
        label_smoothing: as for cross-entropy; the gap then compares with the smoothed frequencies.
        beta: weight of the gap, >= 0; 0 is cross-entropy.

    >>> import torch, gence
    >>> z, y = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])  # confidence 1/2 each, frequencies 3/4 and 1/4
    >>> torch.testing.assert_close(gence.mdca_loss(z, y), gence.cross_entropy(z, y) + 0.25)
    """
    _checks.check_at_least("beta", beta, 0)
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    log_p, valid, count = rows.values().log_softmax(1), rows.valid(), rows.count().clamp_min(1)  # (n, K), (n,), ()
    p = log_p.exp() if valid is None else log_p.exp() * valid[:, None]
    gap = (p.sum(0) - class_mass(replace(rows, weight=None))).abs().mean() / count
    return reduce_rows(rows, target_sum(rows, log_p, torch.neg) + beta * gap * target_mass(rows))


def poly1_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    epsilon: float = 1.0,
) -> Tensor:
    r"""Poly-1 :math:`-\log p_y + \varepsilon (1 - p_y)`: cross-entropy with another first coefficient in 1 - p_y.

    Leng, Tan, Liu, Cubuk, Shi, Cheng, Anguelov: PolyLoss (ICLR 2022).

    Args:
        input: logits (n, K), (N, K, d1, ...) or unbatched (K,).
        target: as for cross-entropy.
        weight: class weights (K,).
        ignore_index: as for cross-entropy.
        reduction: as for cross-entropy.
        label_smoothing: as for cross-entropy.
        epsilon: >= -1; 0 is cross-entropy.

    >>> import torch, gence
    >>> z, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    >>> expected = gence.cross_entropy(z, y) + 2 * gence.mae_loss(z, y) / 2  # MAE is 2 (1 - p_y)
    >>> torch.testing.assert_close(gence.poly1_loss(z, y, epsilon=2.0), expected)
    """
    _checks.check_at_least("epsilon", epsilon, -1)
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    return cost_of_log_probs(lambda log_p: -log_p - epsilon * log_p.expm1(), rows)


def squentropy_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Squentropy :math:`-\log p_y + \frac{1}{K-1} \sum_{k \ne y} z_k^2`: the other classes' logits are drawn to 0.

    Hui, Belkin, Wright: Cut your losses with squentropy (ICML 2023). It reads the logits themselves, so a constant
    added to a row matters, a logit of -inf costs infinitely much, and float16 overflows for logits over 250.

    >>> import torch, gence
    >>> z, y = torch.tensor([[2.0, 1.0, 3.0]]), torch.tensor([0])
    >>> torch.testing.assert_close(gence.squentropy_loss(z, y), gence.cross_entropy(z, y) + (1 + 9) / 2)
    """
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    z = rows.values()  # (n, K)
    others = target_mass(rows)[:, None] - target_matrix(rows)  # (n, K): exactly 0 for the class of a plain label
    squares = (z.square() * others).sum(1) / max(rows.num_classes - 1, 1)  # (n,)
    return reduce_rows(rows, target_sum(rows, z.log_softmax(1), torch.neg) + squares)


def mbls_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    alpha: float = 0.1,
    margin: float = 10.0,
) -> Tensor:
    r"""Margin-based label smoothing: cross-entropy and a penalty on logits further than a margin below the largest.

    .. math:: \ell_i = -\log p_{i y_i} + \alpha\, \tau_i \sum_k \max(0, \max_j z_{ij} - z_{ik} - m)

    Liu, Ben Ayed, Galdran, Dolz: The devil is in the margin (CVPR 2022). The sum over the classes is the paper's
    equation; code that averages over them has an alpha K times as large.

    Args:
        input: logits (n, K), (N, K, d1, ...) or unbatched (K,). A logit of -inf costs infinitely much.
        target: as for cross-entropy.
        weight: class weights (K,).
        ignore_index: as for cross-entropy.
        reduction: as for cross-entropy.
        label_smoothing: as for cross-entropy, and beside the margin's penalty.
        alpha: weight of the penalty, >= 0; 0 is cross-entropy.
        margin: the distance m that is free, >= 0.

    >>> import torch, gence
    >>> z, y = torch.tensor([[5.0, 3.0, 0.0]]), torch.tensor([0])  # 2 and 5 below the largest
    >>> loss = gence.mbls_loss(z, y, alpha=0.5, margin=3.0)
    >>> torch.testing.assert_close(loss, gence.cross_entropy(z, y) + 0.5 * 2)
    """
    _checks.check_at_least("alpha", alpha, 0)
    _checks.check_at_least("margin", margin, 0)
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    z = rows.values()  # (n, K)
    penalty = (z.amax(1, keepdim=True) - z - margin).relu().sum(1)  # (n,)
    losses = target_sum(rows, z.log_softmax(1), torch.neg) + alpha * penalty * target_mass(rows)
    return reduce_rows(rows, losses)


def logit_norm_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    tau: float = 0.04,
) -> Tensor:
    r"""LogitNorm: cross-entropy of :math:`z / (\tau \lVert z \rVert)`, so that logits cannot grow to lower it.

    Wei, Xie, Cheng, Feng, An, Li: Mitigating neural network overconfidence with logit normalization (ICML 2022). The
    length of z is not trained at all: softmax(z) is not a calibrated probability, and needs a temperature fitted
    afterwards. Not invariant to a constant added to a row; a logit of -inf has no direction.

    Args:
        input: logits (n, K), (N, K, d1, ...) or unbatched (K,).
        target: as for cross-entropy.
        weight: class weights (K,).
        ignore_index: as for cross-entropy.
        reduction: as for cross-entropy.
        label_smoothing: as for cross-entropy.
        tau: temperature, > 0; 0.04 in the paper's comparison on CIFAR-10.

    >>> import torch, gence
    >>> z, y = torch.tensor([[3.0, 4.0]]), torch.tensor([1])  # of length 5
    >>> torch.testing.assert_close(gence.logit_norm_loss(z, y, tau=0.2), gence.cross_entropy(z, y))
    """
    _checks.check_temperature(tau, "tau")
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    log_p = (directions(rows.values()) / tau).log_softmax(1)  # (n, K)
    return reduce_rows(rows, target_sum(rows, log_p, torch.neg))


def dual_focal_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    gamma: float = 2.0,
) -> Tensor:
    r"""Dual focal loss :math:`-(1 - p_y + p_j)^\gamma \log p_y`, with p_j the largest probability below p_y.

    Tao, Dong, Xu: Dual focal loss for calibration (ICML 2023). Where no class is below the right one, p_j is 0 and
    the loss is the focal loss.

    Args:
        input: logits (n, K), (N, K, d1, ...) or unbatched (K,).
        target: as for cross-entropy.
        weight: class weights (K,).
        ignore_index: as for cross-entropy.
        reduction: as for cross-entropy.
        label_smoothing: as for cross-entropy.
        gamma: >= 0; 0 is cross-entropy.

    >>> import torch, gence
    >>> z, y = torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0])
    >>> by_hand = -((1 - torch.tensor(0.5) + 0.3) ** 2) * torch.tensor(0.5).log()
    >>> torch.testing.assert_close(gence.dual_focal_loss(z, y), by_hand)
    """
    _checks.check_gamma(gamma)
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    log_p = rows.values().log_softmax(1)  # (n, K)
    masked = log_p == -torch.inf  # a masked class costs inf where it is named, and has no slope otherwise
    u = -log_p.masked_fill(masked, 0.0)  # (n, K) >= 0
    # As in the focal loss: the slope at p = 1 is finite, and numbers this small are 0 beside any other.
    small = u < 1e-8
    near, far = torch.where(small, u, 0.0), torch.where(small, 1.0, u)  # the branch not taken stays finite
    miss = -(-far).expm1() + next_below(log_p).masked_fill(small, 0.0)
    costs = torch.where(small, near ** (gamma + 1), miss**gamma * far).masked_fill(masked, torch.inf)  # (n, K)
    return reduce_rows(rows, target_sum(rows, costs))


def next_below(log_p: Tensor) -> Tensor:
    """For each class the largest probability that is smaller than its own, and 0 where none is -> the input's shape."""
    ordered = log_p.sort(dim=-1, stable=True).values  # (..., K); of equal ones the last gets the gradient
    below = torch.searchsorted(ordered.detach().contiguous(), log_p.detach().contiguous())  # how many are smaller
    found = ordered.gather(-1, (below - 1).clamp_min(0))
    return found.exp().masked_fill(below == 0, 0.0)


class MDCALoss(LikeCrossEntropy, function=mdca_loss):
    """Cross-entropy and the batch's gap of confidence and accuracy; see :func:`mdca_loss`."""

    def __init__(self, *args: Any, beta: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_at_least("beta", beta, 0)
        self.beta = beta


class Poly1Loss(LikeCrossEntropy, function=poly1_loss):
    """Cross-entropy and epsilon (1 - p); see :func:`poly1_loss`."""

    def __init__(self, *args: Any, epsilon: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_at_least("epsilon", epsilon, -1)
        self.epsilon = epsilon


class SquentropyLoss(LikeCrossEntropy, function=squentropy_loss):
    """Cross-entropy and the other classes' squared logits; see :func:`squentropy_loss`."""


class MbLSLoss(LikeCrossEntropy, function=mbls_loss):
    """Margin-based label smoothing; see :func:`mbls_loss`."""

    def __init__(self, *args: Any, alpha: float = 0.1, margin: float = 10.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_at_least("alpha", alpha, 0)
        _checks.check_at_least("margin", margin, 0)
        self.alpha, self.margin = alpha, margin


class LogitNormLoss(LikeCrossEntropy, function=logit_norm_loss):
    """Cross-entropy of logits of one length; see :func:`logit_norm_loss`."""

    def __init__(self, *args: Any, tau: float = 0.04, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_temperature(tau, "tau")
        self.tau = tau


class DualFocalLoss(LikeCrossEntropy, function=dual_focal_loss):
    """Focal loss that also looks at the runner-up; see :func:`dual_focal_loss`."""

    def __init__(self, *args: Any, gamma: float = 2.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_gamma(gamma)
        self.gamma = gamma
