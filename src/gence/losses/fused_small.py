"""The usual small batch on a CPU: unweighted class indices, no row ignored, in as few operations as it takes.

There the number of operations is the cost, not the logits. :mod:`gence.losses.fused_cpu` has everything else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gence.losses.targets import compute_dtype, loss_dtype

_FLOOR = 1e-30  # below it a probability has lost digits, and log space is needed


def small_loss(logits: Tensor, index: Tensor, mean: bool) -> Tensor | None:
    """The loss of rows (n, K), or None where a probability is too small for linear sums.

    Args:
        logits: (n, K), finite or not.
        index: class indices (n,), int64, in range.
        mean: whether to divide by n.
    """
    with torch.no_grad():
        p = torch.softmax(logits, 1, dtype=compute_dtype(logits))  # (n, K)
        own = p.gather(1, index[:, None])  # (n, 1)
        if not bool((own > _FLOOR).all()):  # NaN included: the general path says what becomes of it
            return None
        of_class = p.sum(0)[index]  # (n,) S of each row's class, no smaller than the row's own share in it
    loss: Tensor = _SmallLoss.apply(logits, index, p, own, of_class, mean)
    return loss


class _SmallLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, index: Tensor, p: Tensor, own: Tensor, of_class: Tensor, mean: bool
    ) -> Tensor:
        ctx.save_for_backward(logits, index, p, of_class)
        ctx.scale = 1.0 / len(index) if mean else 1.0
        total: Tensor = (of_class / own[:, 0]).log().sum() * ctx.scale
        return total.to(loss_dtype(logits))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, index, p, of_class = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(logits, index, upstream, ctx.scale), None, None, None, None, None
        c = p.new_zeros(p.shape[1]).scatter_add_(0, index, 1 / of_class)  # (K,) T_k / S_k
        grad = p * ((1 - p @ c)[:, None] + c)  # (n, K)
        grad.scatter_add_(1, index[:, None], grad.new_full((len(index), 1), -1.0))
        return grad.mul_(upstream * ctx.scale).to(logits.dtype), None, None, None, None, None


def _differentiable(logits: Tensor, index: Tensor, upstream: Tensor, scale: float) -> Tensor:
    """The gradient by plain operations, for a second derivative."""
    z = logits.to(compute_dtype(logits))
    log_p = z.log_softmax(1)
    total = (log_p.logsumexp(0)[index] - log_p.gather(1, index[:, None])[:, 0]).sum() * scale
    (grad,) = torch.autograd.grad(total.to(upstream.dtype), logits, upstream, create_graph=True)
    return grad
