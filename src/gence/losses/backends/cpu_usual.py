"""The usual call on a CPU: rows, class indices and nothing else. Most calls are, so it has the fewest operations.

Everything that this leaves out (ignored rows, weights, smoothing, anchor, context, classes far below any probability
that a float can hold) is in :mod:`gence.losses.backends.cpu`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gence.losses.backends import cpu_blocks as blocks
from gence.losses.backends.cpu_labels import Labels
from gence.losses.backends.cpu_small import is_small, small_loss
from gence.losses.targets import compute_dtype, loss_dtype, needs_plain_gradient


def usual_loss(logits: Tensor, index: Tensor, ignore_index: int, reduction: str) -> Tensor | None:
    """The loss of rows (n, K) with class indices (n,), int64; None where the general path has to look.

    That is where an index is out of range, a row is ignored, or a probability is too small for linear sums.
    """
    K = logits.shape[1]
    lowest, highest = index.aminmax()
    if lowest.item() < 0 or highest.item() >= K or 0 <= ignore_index < K:
        return None
    if is_small(logits):
        return small_loss(logits, index, None, reduction)
    if reduction == "none":
        return None
    loss: Tensor | None = _UsualLoss.apply(logits, index, reduction)
    return loss


class _UsualLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, reduction: str) -> Tensor | None:
        n, K = logits.shape
        sums = logits.new_zeros(K, dtype=compute_dtype(logits))
        probs, (own,), _ = blocks.softmax_blocks(logits, [index], sums, keep=ctx.needs_input_grad[0])
        if not own.min().item() > blocks.FLOOR:  # NaN included
            return None
        of_class = sums.index_select(0, index)  # (n,) S of each row's class, no smaller than the row's share in it
        total = (of_class / own).log_().sum()
        ctx.save_for_backward(logits, index)
        ctx.probs, ctx.own, ctx.sums, ctx.reduction = probs, own, sums, reduction
        return (total / n if reduction == "mean" else total).to(loss_dtype(logits))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        logits, index = ctx.saved_tensors
        if needs_plain_gradient(upstream):
            return _differentiable(logits, index, ctx.reduction, upstream), None, None
        of_row = upstream.item() / (len(index) if ctx.reduction == "mean" else 1)
        own, sums = ctx.own, ctx.sums
        steep = 1.0
        if abs(of_row) > blocks.STEEP:
            steep, of_row = of_row, 1.0
        # Counted, not added up from each row's 1 / S, which would round n / K times. Below the floor the count is 0.
        counts = torch.bincount(index, minlength=logits.shape[1]).to(own.dtype)  # (K,)
        c = counts.mul_(of_row).div_(sums.clamp_min(blocks.FLOOR))  # (K,)
        # The softmax becomes the gradient where it lies. A second backward pass computes it anew.
        probs, ctx.probs = ctx.probs, None
        if probs is None:
            probs = blocks.softmax_blocks(logits, [], torch.zeros_like(c), keep=True)[0]
        grad = blocks.pull_blocks(probs, c, [(index, own.reciprocal().mul_(-of_row))])
        grad = grad if steep == 1.0 else grad.mul_(steep)
        return grad.to(logits.dtype), None, None


def _differentiable(logits: Tensor, index: Tensor, reduction: str, upstream: Tensor) -> Tensor | None:
    ones = torch.ones_like(index, dtype=compute_dtype(logits))
    problem = Labels([(index, ones)], None, None, 0.0, reduction, 0.0, None, two_hot=False)
    return problem.differentiable_gradients(logits, None, upstream, (True, False))[0]
