"""The fused loss as PyTorch sees it: an autograd function in eager mode, with as little Python as possible.

For ``torch.compile`` and export it is a registered operator: opaque, shapes known.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gence.losses.backends.second import differentiable_gradients, needs_plain_gradient
from gence.losses.backends.triton import forward, tuning
from gence.losses.backends.triton.layout import NONE, Operands, class_floats
from gence.losses.targets import Rows


def eager_loss(rows: Rows, operands: Operands, context: Tensor | None) -> Tensor:
    """The loss of rows of logits (n, K) with unit column stride."""
    logits = rows.logits
    if logits.is_cuda and logits.device.index != torch.cuda.current_device():
        with torch.cuda.device(logits.device):
            return _loss(logits, context, operands)
    return _loss(logits, context, operands)


def _loss(logits: Tensor, context: Tensor | None, operands: Operands) -> Tensor:
    needs_grad = logits.requires_grad or (context is not None and context.requires_grad)
    if needs_grad and torch.is_grad_enabled():
        return _FusedLoss.apply(logits, context, operands)  # type: ignore[no-any-return]
    return forward.forward(operands, logits, context, with_grad=False)[0]


class _FusedLoss(torch.autograd.Function):
    """Loss forward; gradient backward, or the plain path's where the gradient must be differentiable itself."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, context: Tensor | None, operands: Operands) -> Tensor:
        value, saved = forward.forward(operands, logits, context, with_grad=True)
        # Constants are saved too: autograd then notices if somebody writes into them before the backward pass.
        anchor = operands.anchor if isinstance(operands.anchor, Tensor) else None
        constants = (operands.first, operands.second, operands.share, operands.weight, operands.prior, anchor)
        ctx.parts = 1 if saved[0] is saved[1] else 3  # what is saved once is checked and unpacked once
        ctx.save_for_backward(logits, context, *saved[: ctx.parts], *constants)
        ctx.operands = operands
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        logits, context, *saved = ctx.saved_tensors
        need_logits, need_context = ctx.needs_input_grad[:2]
        if needs_plain_gradient(upstream):
            operands: Operands = ctx.operands
            rows, needed = operands.rows(logits), (need_logits, need_context)
            of_logits, of_context = differentiable_gradients(
                rows, operands.anchor, operands.prior, context, upstream, needed
            )
        else:
            of_logits, of_context = forward.backward(
                ctx.operands,
                (saved[0], saved[ctx.parts // 2], saved[ctx.parts - 1]),
                upstream,
                logits,
                context,
                need_context,
            )
        return of_logits if need_logits else None, of_context, None


def compiled_loss(rows: Rows, operands: Operands, context: Tensor | None) -> Tensor:
    """The loss of rows of logits (n, K) with unit column stride, through ``torch.ops.gence``."""
    tensor_anchor = operands.anchor if isinstance(operands.anchor, Tensor) else None
    value: Tensor = torch.ops.gence.gen_cross_entropy(
        rows.logits,
        context,
        operands.first,
        operands.second,
        operands.share,
        operands.weight,
        operands.prior,
        tensor_anchor,
        float(operands.anchor) if tensor_anchor is None else 0.0,
        operands.mode,
        operands.ignore_index,
        operands.reduction,
        operands.smoothing,
        operands.dtype,
        tuning.fingerprint(),
    )[0]
    return value


@torch.library.custom_op("gence::gen_cross_entropy", mutates_args=())
def _forward(
    logits: Tensor, context: Tensor | None, first: Tensor, second: Tensor | None, share: Tensor | None,
    weight: Tensor | None, prior: Tensor | None, tensor_anchor: Tensor | None, anchor: float, mode: int,
    ignore_index: int, reduction: int, smoothing: float, dtype: torch.dtype, made_for: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, and three buffers for the backward pass.

    ``made_for`` says which version and tunables decide on the buffers' sizes, and is not used: compilers keep graphs on
    disk by their operators and arguments, and one that knows other sizes must not be found there.
    """
    del made_for
    strength = anchor if tensor_anchor is None else tensor_anchor
    operands = Operands(mode, first, second, share, weight, prior, strength, ignore_index, reduction, smoothing, dtype)
    with _on(logits):
        value, (classes, stats, context_stats) = forward.forward(operands, logits, context, True)
    nothing = classes.new_empty(0)  # an operator's outputs may not share memory
    if stats is classes:
        return value, classes, nothing, classes.new_empty(0)
    return value, classes, stats, nothing if context_stats is stats else context_stats


@_forward.register_fake
def _forward_fake(
    logits: Tensor, context: Tensor | None, first: Tensor, second: Tensor | None, share: Tensor | None,
    weight: Tensor | None, prior: Tensor | None, tensor_anchor: Tensor | None, anchor: float, mode: int,
    ignore_index: int, reduction: int, smoothing: float, dtype: torch.dtype, made_for: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    del first, second, share, weight, prior, tensor_anchor, anchor, mode, ignore_index, smoothing, made_for
    n, K = logits.shape
    value = logits.new_empty((n,) if reduction == NONE else (), dtype=dtype)
    if forward.is_tiny(logits, context, reduction):
        grad = logits.new_empty((n, K), dtype=torch.float32)
        return value, grad, grad.new_empty(0), grad.new_empty(0)
    classes = logits.new_empty(class_floats(K), dtype=torch.float32)
    stats = logits.new_empty(4 * n, dtype=torch.float32)
    rows = 0 if context is None else context.shape[0]
    return value, classes, stats, logits.new_empty(4 * rows, dtype=torch.float32)


@torch.library.custom_op("gence::gen_cross_entropy_backward", mutates_args=())
def _backward(
    upstream: Tensor, logits: Tensor, context: Tensor | None, classes: Tensor, stats: Tensor, context_stats: Tensor,
    first: Tensor, second: Tensor | None, share: Tensor | None, weight: Tensor | None, prior: Tensor | None,
    tensor_anchor: Tensor | None, anchor: float, mode: int, ignore_index: int, reduction: int, smoothing: float,
    need_context: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of logits and context (empty where not needed)."""
    strength = anchor if tensor_anchor is None else tensor_anchor
    operands = Operands(
        mode, first, second, share, weight, prior, strength, ignore_index, reduction, smoothing, logits.dtype
    )
    saved = (classes, stats, context_stats)
    with _on(logits):
        grad, of_context = forward.backward(operands, saved, upstream, logits, context, need_context)
    return grad, logits.new_empty(0) if of_context is None else of_context


@_backward.register_fake
def _backward_fake(
    upstream: Tensor, logits: Tensor, context: Tensor | None, classes: Tensor, stats: Tensor, context_stats: Tensor,
    first: Tensor, second: Tensor | None, share: Tensor | None, weight: Tensor | None, prior: Tensor | None,
    tensor_anchor: Tensor | None, anchor: float, mode: int, ignore_index: int, reduction: int, smoothing: float,
    need_context: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    del upstream, classes, stats, context_stats, first, second, share, weight, prior, tensor_anchor, anchor
    del mode, ignore_index, reduction, smoothing
    grad = logits.new_empty(logits.shape)
    if context is None or not need_context:
        return grad, logits.new_empty(0)
    return grad, context.new_empty(context.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, context, *constants, anchor, mode, ignore_index, reduction, smoothing, _, _ = inputs
    ctx.save_for_backward(logits, context, *output[1:], *constants)
    ctx.settings = (anchor, mode, ignore_index, reduction, smoothing)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, upstream: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    need_context = bool(ctx.needs_input_grad[1])
    grad, of_context = torch.ops.gence.gen_cross_entropy_backward(
        upstream, *ctx.saved_tensors, *ctx.settings, need_context
    )
    return grad, of_context if need_context else None, *([None] * 13)


_forward.register_autograd(_differentiate, setup_context=_keep)


def _on(values: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(values.device) if values.is_cuda else nullcontext()
