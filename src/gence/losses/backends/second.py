"""Second derivatives: the gradient of a fast path by plain operations, which can be differentiated again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gence.losses.formula import generative_loss
from gence.losses.targets import Rows


def needs_plain_gradient(upstream: Tensor) -> bool:
    """Whether a backward pass must be plain operations: it will be differentiated itself, or does many at once."""
    # Where PyTorch takes many gradients at once (is_grads_batched, jacobian), it is by its older kind of batch.
    return torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(upstream)


def differentiable_gradients(
    rows: Rows,
    anchor: float | Tensor,
    prior: Tensor | None,
    context: Tensor | None,
    upstream: Tensor,
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of logits and context (where ``needed`` says so) that can be differentiated again."""
    leaves = [rows.logits, context]
    with torch.enable_grad():  # in float32 or more: a half type's loss could not hold a scaled upstream gradient
        value = generative_loss(replace(rows, dtype=rows.computed), anchor, prior, context)
    wanted = [leaf for leaf, need in zip(leaves, needed, strict=False) if need and leaf is not None]
    grads = list(torch.autograd.grad(value, wanted, upstream.to(value.dtype).reshape(value.shape), create_graph=True))
    return grads.pop(0) if needed[0] else None, grads.pop(0) if needed[1] else None
