"""Which kernels run, in which order, on which buffers: the forward and the backward pass of the fused loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gence._triton import launch, multiprocessors, power_of_two
from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.backward import gradient, row_losses, row_weighted_classes
from gence.losses.backends.triton.kernels import (
    finalise,
    finish_columns,
    rows_forward,
    stream_columns,
    stream_rows,
    tiny_kernel,
    tiny_warps,
)
from gence.losses.backends.triton.layout import (
    INDEX,
    MEAN,
    NONE,
    SUM,
    TENSOR_ANCHOR,
    TWO_HOT,
    WITHOUT_ANCHOR,
    Operands,
    alignment,
    class_floats,
    finalise_layout,
    operands_key,
    padded_classes,
    pieces,
    row_layout,
    stream_plan,
    target_arguments,
    tensor_key,
)
from gence.losses.targets import label_counts

_MANY_ROWS = 1 << 20  # from here on a float32 sum of one number per row has lost more digits than the loss may

Saved = tuple[Tensor, Tensor, Tensor]


def is_tiny(logits: Tensor, context: Tensor | None, reduction: int) -> bool:
    """Whether one program does it all."""
    n, K = logits.shape
    limit = tuning.current().tiny_elements
    return context is None and reduction != NONE and power_of_two(n) * power_of_two(K) <= limit


def forward(operands: Operands, logits: Tensor, context: Tensor | None, with_grad: bool) -> tuple[Tensor, Saved]:
    """The loss and what :func:`backward` needs."""
    if is_tiny(logits, context, operands.reduction):
        return _tiny_forward(operands, logits, with_grad)
    n, K = logits.shape
    dtype = operands.dtype
    m = 0 if context is None else context.shape[0]
    padded = padded_classes(K)
    partial = torch.are_deterministic_algorithms_enabled()
    # Atomic counts of whole rows are exact in any order; sums of shares are not, and of many shares not at all.
    count = operands.mode == INDEX or (operands.mode == TWO_HOT and not partial and n < _MANY_ROWS)

    own = _Sweep(operands, logits, partial)
    other = None if context is None else _Sweep(None, context, partial)
    # One program would read all slots for longer than a launch takes; smoothing and anchor would cost registers.
    plain = operands.smoothing == 0 and operands.anchor_kind == WITHOUT_ANCHOR
    merged = own.short and other is None and not partial and plain
    slots = (own.slots + (other.slots if other else 0)) if partial else 0
    counters_at = (2 + slots) * padded
    counters = 1 + own.counters + (other.counters if other else 0)
    costs = own.slots if merged else 0
    sums = torch.zeros(counters_at + counters + costs, dtype=torch.float32, device=logits.device)
    if not count:
        sums[padded : padded + K] = label_counts(operands.rows(logits))
    stats = torch.empty(4 * n, dtype=torch.float32, device=logits.device)
    classes = torch.empty(class_floats(K), dtype=torch.float32, device=logits.device)
    loss = torch.empty((), dtype=torch.float32 if operands.reduction == NONE else dtype, device=logits.device)

    weight = logits if operands.weight is None else operands.weight
    prior = logits if operands.prior is None else operands.prior
    has_prior = operands.prior is not None and operands.anchor_kind != WITHOUT_ANCHOR
    tensor_anchor = operands.anchor_kind == TENSOR_ANCHOR
    anchor_at, anchor = (operands.anchor, 0.0) if tensor_anchor else (logits, float(operands.anchor))
    reduction = MEAN if operands.reduction == MEAN else SUM
    if merged:
        last = (classes, loss, counters_at, finish_columns(K), reduction)
        own.run(sums, stats, counters_at + 1, count, last)
    else:
        own.run(sums, stats, counters_at + 1, count)
    context_stats = stats
    if other is not None:
        context_stats = torch.empty(4 * m, dtype=torch.float32, device=logits.device)
        behind = own.slots * padded if partial else 0
        other.run(sums[behind:], context_stats, counters_at + 1 + own.counters - behind, False)

    if not merged:
        block, programs = finalise_layout(n, K)
        static: tuple[Any, ...] = (K, padded, block, 1024, 4, programs, context is not None)
        static += (operands.weight is not None, operands.smoothing > 0, operands.anchor_kind, has_prior)
        static += (operands.mode == INDEX, reduction, partial)
        key = (tensor_key(logits), None if context is None else tensor_key(context), dtype, operands.key, static)
        rows = logits if context is None else context
        args: tuple[Any, ...] = (logits, rows, sums, stats, context_stats, classes, loss, weight, prior, anchor_at)
        args += (n, m, logits.stride(0), rows.stride(0), slots, counters_at, operands.smoothing, anchor)
        launch(finalise, programs, 4, key, (*args, *static))
    if operands.reduction == NONE:
        loss = row_losses(operands, logits, m, classes, stats).to(dtype)
    return loss, (classes, stats, context_stats)


def backward(
    operands: Operands, saved: Saved, upstream: Tensor, logits: Tensor, context: Tensor | None, need_context: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the logits and, where asked for, of the context."""
    classes, stats, context_stats = saved
    if is_tiny(logits, context, operands.reduction):
        if logits.dtype == classes.dtype:
            return classes * upstream, None
        return torch.mul(classes, upstream, out=torch.empty_like(classes, dtype=logits.dtype)), None
    if operands.reduction == NONE:
        upstream = upstream.reshape(-1).float().contiguous()  # that of a sum is one number, expanded
        if operands.mode == INDEX:  # what comes for an ignored row must not count, not even if it is NaN
            upstream = torch.where(operands.first != operands.ignore_index, upstream, 0.0)
        classes = row_weighted_classes(operands, logits, classes, stats, upstream)
    grad = gradient(operands, logits, classes, stats, upstream)
    if context is None or not need_context:
        return grad, None
    return grad, gradient(operands, context, classes, context_stats, upstream, is_context=True)


def _tiny_forward(operands: Operands, logits: Tensor, with_grad: bool) -> tuple[Tensor, Saved]:
    n, K = logits.shape
    rows, columns = power_of_two(n), power_of_two(K)
    loss = torch.empty((), dtype=operands.dtype, device=logits.device)
    # In float32 also for half types, so that the product with the upstream gradient is rounded once.
    grad = torch.empty((n, K) if with_grad else (0,), dtype=torch.float32, device=logits.device)
    static = (
        K,
        alignment(logits),
        rows,
        columns,
        operands.mode,
        operands.ignore_index,
        operands.weight is not None,
        operands.smoothing > 0,
        operands.anchor_kind,
        operands.prior is not None,
        operands.reduction,
        with_grad,
    )
    tensor_anchor = operands.anchor_kind == TENSOR_ANCHOR
    launch(
        tiny_kernel,
        1,
        tiny_warps(rows * columns),
        (tensor_key(logits), operands.dtype, operands.key, static),
        (
            logits,
            operands.first,
            logits if operands.second is None else operands.second,
            logits if operands.share is None else operands.share,
            logits if operands.weight is None else operands.weight,
            logits if operands.prior is None else operands.prior,
            operands.anchor if tensor_anchor else logits,
            loss,
            grad,
            n,
            logits.stride(0),
            operands.first.stride(0),
            operands.smoothing,
            0.0 if tensor_anchor else float(operands.anchor),
            *static,
        ),
    )
    return loss, (grad, grad, grad)


class _Sweep:
    """One tensor's rows on their way into the column sums: sizes first, so that one buffer serves all."""

    def __init__(self, operands: Operands | None, values: Tensor, partial: bool) -> None:
        self.operands, self.values, self.partial = operands, values, partial
        n = values.shape[0]
        self.rows = row_layout(values)
        self.short = self.rows is not None and self.rows[1] <= tuning.current().rows_elements
        if self.rows is not None:
            self.slots, self.counters = self.rows[2], 0
            return
        self.plan = stream_plan(values, tuning.current().tile_rows, few_chunks=partial)
        self.pieces = pieces(values, 1, tuning.current().unroll * self.plan["C"])
        chunks = -(-n // self.plan["CHUNK"])
        self.slots, self.counters = chunks * self.plan["PHASES"], chunks + (n if self.pieces > 1 else 0)

    def run(
        self, sums: Tensor, stats: Tensor, counters_at: int, count: bool, last: tuple[Any, ...] | None = None
    ) -> None:
        """``last`` is what the last step needs, if the last program is to do it: see ``rows_forward``."""
        values, operands, tune = self.values, self.operands, tuning.current()
        n, K = values.shape
        padded = padded_classes(K)
        targets, target_static = target_arguments(operands, values)
        ignore = -100 if operands is None else operands.ignore_index
        mode, weighted, smooth = target_static
        if self.rows is not None:
            tile_rows, columns, programs, warps = self.rows
            classes, loss, counter_at, *finish = last or (stats, stats, 0, 0, 0)
            static: tuple[Any, ...] = (K, padded, alignment(values), tile_rows, columns)
            static += (mode, ignore, weighted, smooth, count, self.partial, *finish)
            args = (values, *targets[:4], sums, stats, classes, loss)
            args += (n, values.stride(0), *targets[4:], counter_at, *static)
            key = (operands_key(operands, values, static), loss.dtype)
            launch(rows_forward, programs, warps, key, args)
            return
        plan = self.plan
        parts = stats
        if self.pieces > 1:
            parts = torch.empty(4 * n * self.pieces, dtype=torch.float32, device=values.device)
        stages = tune.stages if K * values.element_size() >= tune.staged_bytes else 1
        sizes = (K, padded, plan["ALIGN"], plan["PHASES"], plan["CHUNK"])
        static = (*sizes, self.pieces, tune.unroll, plan["C"], mode, ignore, weighted, smooth, count, stages)
        key = operands_key(operands, values, static)
        args = (values, *targets[:4], sums, stats, parts, n, values.stride(0), targets[4], counters_at, targets[5])
        programs = multiprocessors(values.device) * tune.stream_per_sm
        launch(stream_rows, programs, tune.stream_warps, key, (*args, *static), tune.stream_registers)
        static = (*sizes, plan["R"], plan["C"], self.partial, stages)
        key = operands_key(None, values, static)
        args = (values, sums, stats, n, values.stride(0), counters_at)
        launch(stream_columns, programs, tune.stream_warps, key, (*args, *static), tune.stream_registers)
