"""The losses GenCE is compared with: one small function each, same call, same reductions, all linear in the target.

For class probabilities t every one of them is sum_k t_k loss(p, k): so label smoothing, MixUp's targets and class
weights mean the same thing for all (spec, section 4).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gence.losses import _checks, contrastive
from gence.losses.targets import (
    Rows,
    Target,
    check_call,
    compute_dtype,
    loss_dtype,
    prepare_rows,
    reduce_rows,
    target_mass,
    target_sum,
)


def cross_entropy(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""PyTorch's cross-entropy :math:`-\log p_y`, which also takes :class:`TwoHot` targets.

    >>> import torch, gence
    >>> z, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    >>> torch.testing.assert_close(gence.cross_entropy(z, y), torch.nn.functional.cross_entropy(z, y))
    """
    # PyTorch adds 0 times infinity for a class at -inf that a row names with probability 0, or smooths with weight 0.
    if not isinstance(target, Tensor) or target.is_floating_point() or (weight is not None and label_smoothing != 0):
        rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
        return cost_of_log_probs(torch.neg, rows)
    check_call(input, target, weight, ignore_index, reduction, label_smoothing)
    dtype = compute_dtype(input)  # PyTorch sums half types as they are on a CPU, where float16 overflows
    loss = F.cross_entropy(
        input.to(dtype),
        target.long(),
        None if weight is None else weight.to(dtype),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    return loss.to(loss_dtype(input))


def mae_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Mean absolute error :math:`\sum_k |p_k - 1[k=y]| = 2 (1 - p_y)`.

    >>> import torch, gence
    >>> float(gence.mae_loss(torch.zeros(1, 4), torch.tensor([2])))
    1.5
    """
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    return cost_of_log_probs(lambda log_p: -2 * log_p.expm1(), rows)


def brier_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Brier score :math:`\sum_k (p_k - 1[k=y])^2 = \sum_k p_k^2 - 2 p_y + 1`.

    >>> import torch, gence
    >>> float(gence.brier_loss(torch.zeros(1, 4), torch.tensor([2])))
    0.75
    """
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    p = rows.values().softmax(1)  # (n, K)
    losses = target_sum(rows, p, lambda p_k: 1 - 2 * p_k) + target_mass(rows) * p.square().sum(1)  # (n,)
    return reduce_rows(rows, losses)


def generalized_cross_entropy(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    q: float = 0.7,
) -> Tensor:
    r"""Generalised cross-entropy :math:`(1 - p_y^q) / q`: cross-entropy as q -> 0, half of MAE at q = 1.

    Computed as ``-expm1(q log p) / q``, which keeps its digits where p is near 1 or q near 0.

    >>> import torch, gence
    >>> z, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    >>> torch.testing.assert_close(gence.generalized_cross_entropy(z, y, q=1.0), gence.mae_loss(z, y) / 2)
    """
    _checks.check_q(q)
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    return cost_of_log_probs(lambda log_p: -(q * log_p).expm1() / q, rows)


def focal_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    gamma: float = 2.0,
) -> Tensor:
    r"""Focal loss :math:`-(1 - p_y)^\gamma \log p_y`; gamma = 0 is cross-entropy.

    The gradient stays finite as p -> 1 for every gamma >= 0: the plain power has an infinite slope there for gamma < 1.

    >>> import torch, gence
    >>> z, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    >>> torch.testing.assert_close(gence.focal_loss(z, y, gamma=0.0), gence.cross_entropy(z, y))
    """
    _checks.check_gamma(gamma)

    def cost(log_p: Tensor) -> Tensor:
        u = -log_p  # >= 0
        # Near u = 0, (1 - e^-u)^gamma u is u^(gamma + 1) to rounding, and its slope there is finite for every gamma.
        small = u < 1e-8
        near, far = torch.where(small, u, 0.0), torch.where(small, 1.0, u)  # the branch not taken stays finite
        return torch.where(small, near ** (gamma + 1), (-(-far).expm1()) ** gamma * far)

    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    return cost_of_log_probs(cost, rows)


def logit_adjusted_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    prior: Tensor | None = None,
    tau: float = 1.0,
) -> Tensor:
    r"""Cross-entropy of :math:`z + \tau \log \pi`: logits learn to rank as if classes were balanced.

    Args:
        input: logits.
        target: as for cross-entropy.
        weight: class weights.
        ignore_index: as for cross-entropy.
        reduction: as for cross-entropy.
        label_smoothing: as for cross-entropy.
        prior: class frequencies (K,) of the training set, all positive. None means balanced: plain CE.
        tau: strength of the adjustment.

    >>> import torch, gence
    >>> z, y = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    >>> prior = torch.tensor([0.5, 0.3, 0.2])
    >>> expected = gence.cross_entropy(z + prior.log(), y)
    >>> torch.testing.assert_close(gence.logit_adjusted_loss(z, y, prior=prior), expected)
    """
    _checks.check_logits(input)
    if prior is not None:
        K = input.shape[0] if input.dim() == 1 else input.shape[1]
        _checks.check_prior(prior, K)
        _checks.check_positive("prior", prior)
        shape = (K,) if input.dim() == 1 else (1, K, *[1] * (input.dim() - 2))
        # In float32 for half types: the sum would lose the digits that the loss is made of.
        adjusted = input.to(compute_dtype(input))
        adjusted = adjusted + (tau * prior.to(adjusted.dtype).log()).reshape(shape)
        loss = cross_entropy(adjusted, target, weight, ignore_index, reduction, label_smoothing)
        return loss.to(loss_dtype(input))
    return cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def cosine_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Cosine loss :math:`1 - z_y / \lVert z \rVert` between the outputs and the class's one-hot vector.

    Unlike the others it reads the outputs' direction and not their softmax, so a shift of all outputs matters.

    >>> import torch, gence
    >>> float(gence.cosine_loss(torch.tensor([[3.0, 4.0]]), torch.tensor([1])))  # 1 - 4/5
    0.19999998807907104
    """
    rows = prepare_rows(input, target, weight, ignore_index, reduction, label_smoothing)
    losses = target_sum(rows, directions(rows.values()), lambda cosine: 1 - cosine)  # (n,)
    return reduce_rows(rows, losses)


def directions(values: Tensor) -> Tensor:
    """Rows at unit length (n, K). Zeros, where heads begin, stay zeros; their gradient is as if of length 1."""
    length: Tensor = values.norm(dim=1, keepdim=True)  # (n, 1)
    return values / length.masked_fill(length == 0, 1.0)


def cost_of_log_probs(cost: Callable[[Tensor], Tensor], rows: Rows) -> Tensor:
    """A loss that is ``cost(log p_k)`` for class k."""
    return reduce_rows(rows, target_sum(rows, rows.values().log_softmax(1), cost))


class LikeCrossEntropy(nn.CrossEntropyLoss):
    """A function of a batch as a module, whose own parameters are attributes of the module under their names."""

    function: ClassVar[Callable[..., Tensor]]
    own: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, function: Callable[..., Tensor] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if function is not None:
            cls.function = staticmethod(function)
            parameters = inspect.signature(function).parameters.values()
            cls.own = tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)

    def forward(self, input: Tensor, target: Target) -> Tensor:
        """The loss of a batch."""
        own = {name: getattr(self, name) for name in self.own}
        return self.function(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing, **own)


class CrossEntropyLoss(LikeCrossEntropy, function=cross_entropy):
    """``nn.CrossEntropyLoss`` that also takes :class:`TwoHot` targets; see :func:`cross_entropy`."""


class MAELoss(LikeCrossEntropy, function=mae_loss):
    """Mean absolute error on probabilities; see :func:`mae_loss`."""


class BrierLoss(LikeCrossEntropy, function=brier_loss):
    """Squared error on probabilities; see :func:`brier_loss`."""


class GeneralizedCrossEntropyLoss(LikeCrossEntropy, function=generalized_cross_entropy):
    """Between cross-entropy and MAE; see :func:`generalized_cross_entropy`."""

    def __init__(self, *args: Any, q: float = 0.7, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_q(q)
        self.q = q


class FocalLoss(LikeCrossEntropy, function=focal_loss):
    """Cross-entropy with easy examples weighted down; see :func:`focal_loss`."""

    def __init__(self, *args: Any, gamma: float = 2.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_gamma(gamma)
        self.gamma = gamma


class LogitAdjustedLoss(LikeCrossEntropy, function=logit_adjusted_loss):
    """Cross-entropy for long tails; see :func:`logit_adjusted_loss`."""

    prior: Tensor | None

    def __init__(self, *args: Any, prior: Tensor | None = None, tau: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_prior(prior, None)
        self.register_buffer("prior", prior)
        self.tau = tau


class CosineLoss(LikeCrossEntropy, function=cosine_loss):
    """Angle between outputs and one-hot target; see :func:`cosine_loss`."""


class SupConLoss(LikeCrossEntropy, function=contrastive.supcon_loss):
    """Supervised contrastive loss on **embeddings**, not logits; see :func:`supcon_loss`."""

    def __init__(self, *args: Any, temperature: float = 0.1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _checks.check_temperature(temperature)
        self.temperature = temperature
