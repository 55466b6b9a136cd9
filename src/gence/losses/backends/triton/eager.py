"""The fused loss in eager mode: an autograd function that launches the kernels with as little Python as possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gence.losses.backends.second import differentiable_gradients, needs_plain_gradient
from gence.losses.backends.triton import forward
from gence.losses.backends.triton.problem import Problem
from gence.losses.targets import Rows


def eager_loss(rows: Rows, problem: Problem, context: Tensor | None) -> Tensor:
    """The loss of rows of logits (n, K) with unit column stride."""
    logits = rows.logits
    if logits.is_cuda and logits.device.index != torch.cuda.current_device():
        with torch.cuda.device(logits.device):
            return _loss(logits, context, problem)
    return _loss(logits, context, problem)


def _loss(logits: Tensor, context: Tensor | None, problem: Problem) -> Tensor:
    needs_grad = logits.requires_grad or (context is not None and context.requires_grad)
    if needs_grad and torch.is_grad_enabled():
        return _FusedLoss.apply(logits, context, problem)  # type: ignore[no-any-return]
    return forward.forward(problem, logits, context, with_grad=False)[0]


class _FusedLoss(torch.autograd.Function):
    """Loss forward; gradient backward, or the plain path's where the gradient must be differentiable itself."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, context: Tensor | None, problem: Problem) -> Tensor:
        value, saved = forward.forward(problem, logits, context, with_grad=True)
        # Constants are saved too: autograd then notices if somebody writes into them before the backward pass.
        anchor = problem.anchor if isinstance(problem.anchor, Tensor) else None
        constants = (problem.first, problem.second, problem.share, problem.weight, problem.prior, anchor)
        ctx.parts = 1 if saved[0] is saved[1] else 3  # what is saved once is checked and unpacked once
        ctx.save_for_backward(logits, context, *saved[: ctx.parts], *constants)
        ctx.problem = problem
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        logits, context, *saved = ctx.saved_tensors
        need_logits, need_context = ctx.needs_input_grad[:2]
        if needs_plain_gradient(upstream):
            problem: Problem = ctx.problem
            rows, needed = problem.rows(logits), (need_logits, need_context)
            of_logits, of_context = differentiable_gradients(
                rows, problem.anchor, problem.prior, context, upstream, needed
            )
        else:
            of_logits, of_context = forward.backward(
                ctx.problem,
                (saved[0], saved[ctx.parts // 2], saved[ctx.parts - 1]),
                upstream,
                logits,
                context,
                need_context,
            )
        return of_logits if need_logits else None, of_context, None
