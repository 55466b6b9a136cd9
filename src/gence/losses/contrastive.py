"""Supervised contrastive loss: the one comparator that reads embeddings instead of logits."""

from __future__ import annotations

from typing import NewType

import torch
import torch.nn.functional as F
from torch import Tensor

from gence.losses import _checks

Embeddings = NewType("Embeddings", Tensor)
"""Features (n, d) of a projection head, of any length: they are normalised here. Not logits."""


def supcon_loss(
    input: Embeddings | Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    temperature: float = 0.1,
) -> Tensor:
    r"""Supervised contrastive loss over a batch of embeddings.

    .. math::
        \ell_i = -\frac{1}{|P(i)|} \sum_{p \in P(i)}
            \log \frac{e^{z_i z_p / \tau}}{\sum_{a \ne i} e^{z_i z_a / \tau}}

    with P(i) the other rows of i's class. Two views of a batch are passed as 2n rows with their labels repeated.

    Args:
        input: **embeddings** (n, d), not logits; normalised to unit length here.
        target: class indices (n,). Class probabilities have no meaning here and are refused.
        weight: class weights (K,), K larger than every index.
        ignore_index: rows with this index are neither anchors nor compared with.
        reduction: "mean" over the rows that have a positive, "sum" or "none".
        label_smoothing: must be 0; it is there so that all losses are called alike.
        temperature: tau, 0.1 in the paper's comparison.

    Returns:
        The loss. A row whose class has no other member has no positive: its loss is 0 and "mean" does not count it.
        If no row has one, "mean" is NaN, as cross-entropy's is when all rows are ignored.

    >>> import torch, gence
    >>> views = torch.randn(6, 16).repeat(2, 1) + 0.1 * torch.randn(12, 16)
    >>> bool(gence.supcon_loss(views, torch.arange(6).repeat(2)) > 0)
    True
    """
    _checks.check_logits(input)
    _checks.check_reduction(reduction)
    if input.dim() != 2:
        raise ValueError(f"input: expected embeddings of shape (n, d), got {tuple(input.shape)}")
    if not isinstance(target, Tensor):
        raise TypeError(f"target: expected a tensor of class indices, got {type(target).__name__}")
    _checks.check_index_type("target", target)
    if tuple(target.shape) != (input.shape[0],):
        raise ValueError(f"target: expected shape ({input.shape[0]},), got {tuple(target.shape)}")
    if label_smoothing != 0.0:
        raise ValueError(f"label_smoothing: supcon has no soft targets, expected 0, got {label_smoothing}")
    _checks.check_temperature(temperature)
    if weight is not None:
        _checks.check_weight(weight, weight.shape[0] if isinstance(weight, Tensor) and weight.dim() == 1 else 1)
        _checks.check_range("target", target, weight.shape[0], ignore_index)

    half = input.dtype in (torch.float16, torch.bfloat16)
    valid = target != ignore_index  # (n,)
    # Not even a NaN in an ignored row may reach the products below: 0 * NaN in their gradient would spread it.
    z = F.normalize((input.float() if half else input).masked_fill(~valid[:, None], 0.0), dim=1)  # (n, d)
    n = z.shape[0]
    itself = torch.eye(n, dtype=torch.bool, device=z.device)  # (n, n)
    others = valid[:, None] & valid[None, :] & ~itself  # (n, n)
    with torch.autocast(z.device.type, enabled=False):
        similarity = z @ z.T / temperature  # (n, n)
    # A large finite number, not -inf: a row with nothing to compare with would have a NaN gradient.
    log_all = similarity.masked_fill(~others, -1e9).logsumexp(1)  # (n,)
    positive = others & (target[:, None] == target[None, :])  # (n, n)
    count = positive.sum(1)  # (n,)
    mean_positive = torch.where(positive, similarity, 0.0).sum(1) / count.clamp_min(1)  # (n,)
    has_positive = count > 0
    row_weight = has_positive.to(z.dtype)
    if weight is not None:
        row_weight = row_weight * weight.to(z.dtype)[torch.where(valid, target, 0).long()]
    losses = torch.where(has_positive, log_all - mean_positive, 0.0) * row_weight  # (n,)
    if reduction == "none":
        result = losses
    elif reduction == "sum":
        result = losses.sum()
    else:
        result = losses.sum() / row_weight.sum()
    return result.to(input.dtype) if half and not torch.is_autocast_enabled(input.device.type) else result
