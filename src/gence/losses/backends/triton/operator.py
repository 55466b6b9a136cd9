"""The fused loss as a registered operator, which is how ``torch.compile`` and export see it: opaque, shapes known."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gence.losses.backends.triton import forward, tuning
from gence.losses.backends.triton.layout import class_floats
from gence.losses.backends.triton.problem import NONE, Problem
from gence.losses.targets import Rows


def compiled_loss(rows: Rows, problem: Problem, context: Tensor | None) -> Tensor:
    """The loss of rows of logits (n, K) with unit column stride, through ``torch.ops.gence``."""
    tensor_anchor = problem.anchor if isinstance(problem.anchor, Tensor) else None
    value: Tensor = torch.ops.gence.gen_cross_entropy(
        rows.logits,
        context,
        problem.first,
        problem.second,
        problem.share,
        problem.weight,
        problem.prior,
        tensor_anchor,
        float(problem.anchor) if tensor_anchor is None else 0.0,
        problem.mode,
        problem.ignore_index,
        problem.reduction,
        problem.smoothing,
        problem.dtype,
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
    problem = Problem(mode, first, second, share, weight, prior, strength, ignore_index, reduction, smoothing, dtype)
    with _on(logits):
        value, (classes, stats, context_stats) = forward.forward(problem, logits, context, True)
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
    problem = Problem(
        mode, first, second, share, weight, prior, strength, ignore_index, reduction, smoothing, logits.dtype
    )
    saved = (classes, stats, context_stats)
    with _on(logits):
        grad, of_context = forward.backward(problem, saved, upstream, logits, context, need_context)
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
