"""Which kernels run, in which order, on which buffers: the forward and the backward pass of the fused loss.

Over 300 lines, because a launch lists every argument of its kernel, and forward and backward share their buffers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gence.losses.kernels import finalise as _finalise
from gence.losses.kernels import row_tiles, stream_backward, stream_forward, tiny, tuning
from gence.losses.kernels.launch import launch, multiprocessors, power_of_two
from gence.losses.kernels.layout import (
    alignment,
    class_floats,
    finalise_layout,
    padded_classes,
    problem_key,
    row_layout,
    stream_plan,
    tensor_key,
)
from gence.losses.kernels.problem import (
    INDEX,
    MEAN,
    NO_TARGET,
    NONE,
    PROBS,
    SUM,
    TENSOR_ANCHOR,
    TWO_HOT,
    WITHOUT_ANCHOR,
    Problem,
)

_TINY = torch.finfo(torch.float32).tiny

Saved = tuple[Tensor, Tensor, Tensor]


def is_tiny(logits: Tensor, context: Tensor | None, reduction: int) -> bool:
    """Whether one program does it all."""
    n, K = logits.shape
    limit = tuning.current().tiny_elements
    return context is None and reduction != NONE and power_of_two(n) * power_of_two(K) <= limit


def forward(
    problem: Problem, logits: Tensor, context: Tensor | None, dtype: torch.dtype, with_grad: bool
) -> tuple[Tensor, Saved]:
    """The loss in ``dtype`` and what :func:`backward` needs."""
    if is_tiny(logits, context, problem.reduction):
        return _tiny_forward(problem, logits, dtype, with_grad)
    n, K = logits.shape
    m = 0 if context is None else context.shape[0]
    padded = padded_classes(K)
    partial = torch.are_deterministic_algorithms_enabled()
    # Atomic counts of whole rows are exact in any order; shares are not.
    count = problem.mode == INDEX or (problem.mode == TWO_HOT and not partial)

    own = _Sweep(problem, logits, partial)
    other = None if context is None else _Sweep(None, context, partial)
    slots = (own.slots + (other.slots if other else 0)) if partial else 0
    counters_at = (2 + slots) * padded
    counters = 1 + own.counters + (other.counters if other else 0)
    sums = torch.zeros(counters_at + counters, dtype=torch.float32, device=logits.device)
    if not count:
        sums[padded : padded + K] = problem.counts(K)
    stats = torch.empty(4 * n, dtype=torch.float32, device=logits.device)
    own.run(sums, stats, counters_at + 1, count)
    context_stats = stats
    if other is not None:
        context_stats = torch.empty(4 * m, dtype=torch.float32, device=logits.device)
        behind = own.slots * padded if partial else 0
        other.run(sums[behind:], context_stats, counters_at + 1 + own.counters - behind, False)

    block, programs = finalise_layout(K)
    classes = torch.empty(class_floats(K), dtype=torch.float32, device=logits.device)
    loss = torch.empty((), dtype=torch.float32 if problem.reduction == NONE else dtype, device=logits.device)
    static = (
        K,
        padded,
        block,
        1024,
        4,
        programs,
        context is not None,
        problem.weight is not None,
        problem.smoothing > 0,
        problem.anchor_kind,
        problem.prior is not None and problem.anchor_kind != WITHOUT_ANCHOR,
        problem.mode == INDEX,
        MEAN if problem.reduction == MEAN else SUM,
        partial,
    )
    tensor_anchor = problem.anchor_kind == TENSOR_ANCHOR
    launch(
        _finalise.finalise,
        programs,
        4,
        (tensor_key(logits), None if context is None else tensor_key(context), dtype, problem.key, static),
        (
            logits,
            logits if context is None else context,
            sums,
            stats,
            context_stats,
            classes,
            loss,
            logits if problem.weight is None else problem.weight,
            logits if problem.prior is None else problem.prior,
            problem.anchor if tensor_anchor else logits,
            n,
            m,
            logits.stride(0),
            0 if context is None else context.stride(0),
            slots,
            counters_at,
            problem.smoothing,
            0.0 if tensor_anchor else float(problem.anchor),
            *static,
        ),
    )
    if problem.reduction == NONE:
        loss = _row_losses(problem, logits, m, classes, stats).to(dtype)
    return loss, (classes, stats, context_stats)


def backward(
    problem: Problem, saved: Saved, upstream: Tensor, logits: Tensor, context: Tensor | None, need_context: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the logits and, where asked for, of the context."""
    classes, stats, context_stats = saved
    if is_tiny(logits, context, problem.reduction):
        if logits.dtype == classes.dtype:
            return classes * upstream, None
        return torch.mul(classes, upstream, out=torch.empty_like(classes, dtype=logits.dtype)), None
    if problem.reduction == NONE:
        upstream = upstream.reshape(-1).float().contiguous()  # that of a sum is one number, expanded
        if problem.mode == INDEX:  # what comes for an ignored row must not count, not even if it is NaN
            upstream = torch.where(problem.first != problem.ignore_index, upstream, 0.0)
        classes = _row_weighted_classes(problem, logits, classes, stats, upstream)
    grad = _gradient(problem, logits, classes, stats, upstream)
    if context is None or not need_context:
        return grad, None
    return grad, _gradient(problem, context, classes, context_stats, upstream, is_context=True)


def _tiny_forward(problem: Problem, logits: Tensor, dtype: torch.dtype, with_grad: bool) -> tuple[Tensor, Saved]:
    n, K = logits.shape
    rows, columns = power_of_two(n), power_of_two(K)
    loss = torch.empty((), dtype=dtype, device=logits.device)
    # In float32 also for half types, so that the product with the upstream gradient is rounded once.
    grad = torch.empty((n, K) if with_grad else (0,), dtype=torch.float32, device=logits.device)
    static = (
        K,
        rows,
        columns,
        problem.mode,
        problem.ignore_index,
        problem.weight is not None,
        problem.smoothing > 0,
        problem.anchor_kind,
        problem.prior is not None,
        problem.reduction,
        with_grad,
    )
    tensor_anchor = problem.anchor_kind == TENSOR_ANCHOR
    launch(
        tiny.tiny_kernel,
        1,
        max(1, min(32, rows * columns // (32 * tuning.current().tiny_lane))),
        (tensor_key(logits), dtype, problem.key, static),
        (
            logits,
            problem.first,
            logits if problem.second is None else problem.second,
            logits if problem.share is None else problem.share,
            logits if problem.weight is None else problem.weight,
            logits if problem.prior is None else problem.prior,
            problem.anchor if tensor_anchor else logits,
            loss,
            grad,
            n,
            logits.stride(0),
            problem.first.stride(0),
            problem.smoothing,
            0.0 if tensor_anchor else float(problem.anchor),
            *static,
        ),
    )
    return loss, (grad, grad, grad)


class _Sweep:
    """One tensor's rows on their way into the column sums: sizes first, so that one buffer serves all."""

    def __init__(self, problem: Problem | None, values: Tensor, partial: bool) -> None:
        self.problem, self.values, self.partial = problem, values, partial
        n = values.shape[0]
        self.rows = row_layout(values)
        if self.rows is not None:
            self.slots, self.counters = self.rows[2], 0
            return
        self.plan = stream_plan(values, tuning.current().tile_rows, few_chunks=partial)
        chunks = -(-n // self.plan["CHUNK"])
        self.slots, self.counters = chunks * self.plan["PHASES"], 1 + chunks

    def run(self, sums: Tensor, stats: Tensor, counters_at: int, count: bool) -> None:
        values, problem, tune = self.values, self.problem, tuning.current()
        n, K = values.shape
        padded = padded_classes(K)
        targets, target_static = _targets(problem, values)
        ignore = -100 if problem is None else problem.ignore_index
        mode, weighted, smooth = target_static
        if self.rows is not None:
            tile_rows, columns, programs, warps = self.rows
            static: tuple[Any, ...] = (K, padded, alignment(values), tile_rows, columns)
            static += (mode, ignore, weighted, smooth, count, self.partial)
            args = (values, *targets[:4], sums, stats, n, values.stride(0), *targets[4:], *static)
            launch(row_tiles.rows_forward, programs, warps, problem_key(problem, values, static), args)
            return
        plan = self.plan
        static = (K, padded, plan["ALIGN"], plan["PHASES"], plan["CHUNK"], plan["LAG"])
        static += (tune.unroll, plan["C"], plan["R"], plan["C"], mode, ignore, weighted, smooth, count, self.partial)
        static += (tune.keep,)
        strides = (n, values.stride(0), targets[4], counters_at, targets[5])
        args = (values, *targets[:4], sums, stats, *strides, *static)
        programs = multiprocessors(values.device) * tune.stream_per_sm
        launch(stream_forward.stream_forward, programs, tune.stream_warps, problem_key(problem, values, static), args)


def _gradient(
    problem: Problem, values: Tensor, classes: Tensor, stats: Tensor, upstream: Tensor, is_context: bool = False
) -> Tensor:
    n, K = values.shape
    padded, tune = padded_classes(K), tuning.current()
    grad = torch.empty((n, K), dtype=values.dtype, device=values.device)
    source = None if is_context else problem
    targets, (mode, weighted, smooth) = _targets(source, values)
    per_row = problem.reduction == NONE
    layout = row_layout(values)
    if layout is not None:
        tile_rows, columns, programs, warps = layout
        static: tuple[Any, ...] = (K, padded, alignment(values), tile_rows, columns)
        static += (mode, weighted, smooth, per_row)
        args = (values, *targets[:4], classes, stats, upstream, grad, n, values.stride(0), *targets[4:], *static)
        launch(row_tiles.rows_backward, programs, warps, (problem_key(source, values, static), upstream.dtype), args)
        return grad
    plan = stream_plan(values, max(tune.sum_rows, tune.backward_rows), backward=True)
    counters = torch.zeros(1 + -(-n // plan["CHUNK"]), dtype=torch.int32, device=values.device)
    blocks = -(-K // plan["C"])
    pieces = min(tune.pieces, power_of_two(blocks))
    pulls = torch.empty(n * pieces, dtype=torch.float32, device=values.device)
    static = (K, padded, plan["ALIGN"], plan["PHASES"], plan["CHUNK"], plan["LAG"], pieces)
    static += (tune.sum_rows, tune.backward_rows, plan["C"])
    static += (mode, weighted, smooth, per_row, tune.keep)
    args = (values, *targets[:4], classes, stats, upstream, pulls, counters, grad)
    args += (n, values.stride(0), *targets[4:], *static)
    programs = multiprocessors(values.device) * tune.backward_per_sm
    for log_space in (False, True):
        key = (problem_key(source, values, static), upstream.dtype, log_space)
        launch(stream_backward.stream_backward, programs, tune.stream_warps, key, (*args, log_space))
    return grad


def _targets(problem: Problem | None, values: Tensor) -> tuple[tuple[Any, ...], tuple[int, bool, bool]]:
    """(first, second, share, weight, target stride, smoothing) and what of it is known when compiling."""
    if problem is None:
        return (values, values, values, values, 0, 0.0), (NO_TARGET, False, False)
    smooth = problem.smoothing > 0
    tensors = (
        problem.first,
        values if problem.second is None else problem.second,
        values if problem.share is None else problem.share,
        values if problem.weight is None else problem.weight,
    )
    stride = problem.first.stride(0) if problem.mode == PROBS else 0
    return (*tensors, stride, problem.smoothing), (problem.mode, problem.weight is not None, smooth)


def _row_losses(problem: Problem, logits: Tensor, m: int, classes: Tensor, stats: Tensor) -> Tensor:
    """Each row's loss (n,), float32."""
    n, K = logits.shape
    padded = padded_classes(K)
    log_s = classes[2 * padded : 2 * padded + K]
    tau = stats[3 * n : 4 * n]
    losses = stats[2 * n : 3 * n] + problem.target_of(logits, log_s)
    if problem.anchor_kind == WITHOUT_ANCHOR:
        return losses
    pi = _prior(problem, K)
    total = _taking_part(problem, n) + m
    divergence = torch.xlogy(pi, pi).sum() - (pi * log_s).sum() + pi.sum() * torch.log(total.clamp_min(1.0))
    return losses + problem.anchor * tau * torch.where(total > 0, divergence, 0.0)


def _row_weighted_classes(problem: Problem, logits: Tensor, classes: Tensor, stats: Tensor, of_row: Tensor) -> Tensor:
    """The class coefficients for a gradient that differs between rows: T_k = w_k sum_i g_i t_ik."""
    n, K = logits.shape
    padded = padded_classes(K)
    pull = problem.masses(K, of_row)
    if problem.anchor_kind != WITHOUT_ANCHOR:
        pull = pull - problem.anchor * (of_row * stats[3 * n : 4 * n]).sum() * _prior(problem, K)
    low, log_s = classes[padded : padded + K], classes[2 * padded : 2 * padded + K]
    weighted = classes.clone()
    weighted[:K] = pull * torch.exp(low - log_s)
    return weighted


def _prior(problem: Problem, K: int) -> Tensor:
    if problem.prior is not None:
        return problem.prior.float()
    mass = problem.masses(K)
    return mass / mass.sum().clamp_min(_TINY)


def _taking_part(problem: Problem, n: int) -> Tensor:
    if problem.mode == INDEX:
        return (problem.first != problem.ignore_index).sum().float()
    return torch.full((), float(n), device=problem.first.device)
