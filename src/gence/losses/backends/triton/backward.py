"""The gradient: which kernels of the backward pass run, on which buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gence._triton import launch, multiprocessors, power_of_two
from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.kernels import (
    group_backward,
    group_labels,
    long_rows_backward,
    rows_backward,
    stream_gradient,
    stream_pulls,
)
from gence.losses.backends.triton.layout import (
    NO_TARGET,
    NONE,
    WITHOUT_ANCHOR,
    Operands,
    alignment,
    group_layout,
    operands_key,
    padded_classes,
    pieces,
    row_layout,
    stream_plan,
    target_arguments,
)
from gence.losses.formula import anchor_term, class_prior, marginal_divergence
from gence.losses.targets import class_mass, target_sum

_LABEL_ROWS = 128  # rows of a program that writes labels' gradients


def gradient(
    operands: Operands, values: Tensor, classes: Tensor, stats: Tensor, upstream: Tensor, is_context: bool = False
) -> Tensor:
    """The gradient of the logits, or of the context."""
    n, K = values.shape
    padded, tune = padded_classes(K), tuning.current()
    source = None if is_context else operands
    per_row = operands.reduction == NONE
    targets, (mode, weighted, smooth) = target_arguments(source, values)
    common = (values, *targets[:4], classes, stats, upstream)
    sizes = (n, values.stride(0), *targets[4:])
    settings = (mode, weighted, smooth, per_row)
    layout = row_layout(values)
    grad = torch.empty((n, K), dtype=values.dtype, device=values.device)
    if layout is not None and layout[1] <= tune.rows_elements:
        tile_rows, columns, programs, warps = layout
        static: tuple[Any, ...] = (K, padded, alignment(values), tile_rows, columns, *settings)
        key: tuple[Any, ...] = (operands_key(source, values, static), upstream.dtype)
        launch(rows_backward, programs, warps, key, (*common, grad, *sizes, *static))
    elif tune.long_columns >= K:
        static = (K, padded, alignment(values), min(tune.long_part, power_of_two(K)), *settings)
        key = (operands_key(source, values, static), upstream.dtype)
        launch(long_rows_backward, n, tune.long_warps, key, (*common, grad, *sizes, *static))
    elif (group := group_layout(values, source)) is not None:
        _by_groups(source, values, classes, stats, upstream, grad, group, per_row)
    else:
        _by_streams(source, values, classes, stats, upstream, grad, per_row)
    return grad


def _by_groups(
    operands: Operands | None, values: Tensor, classes: Tensor, stats: Tensor, upstream: Tensor, grad: Tensor,
    layout: dict[str, int], per_row: bool,
) -> None:  # fmt: skip
    n, K = values.shape
    padded, tune = padded_classes(K), tuning.current()
    targets, (mode, weighted, _) = target_arguments(operands, values)
    words = torch.zeros(n * layout["SLABS"], dtype=torch.int64, device=values.device)
    pulls = torch.empty(n, dtype=torch.float32, device=values.device)
    tile = (layout["U"], layout["W"], layout["SLABS"], layout["PADDED"])
    static: tuple[Any, ...] = (K, padded, *tile, mode, per_row)
    args: tuple[Any, ...] = (values, classes, stats, upstream, words, pulls, grad)
    args += (n, values.stride(0) * values.element_size() // 4)
    for log_space in (False, True):
        launch(
            group_backward,
            layout["programs"],
            tune.group_warps,
            (operands_key(operands, values, static), upstream.dtype, log_space),
            (*args, *static, log_space),
            tune.group_registers,
            together=True,
        )
    if mode != NO_TARGET:
        static = (K, padded, _LABEL_ROWS, mode, weighted, per_row)
        key = (operands_key(operands, values, static), upstream.dtype)
        args = (values, *targets[:4], classes, stats, upstream, pulls, grad, n, values.stride(0))
        launch(group_labels, -(-n // _LABEL_ROWS), 4, key, (*args, *static))


def _by_streams(
    operands: Operands | None,
    values: Tensor,
    classes: Tensor,
    stats: Tensor,
    upstream: Tensor,
    grad: Tensor,
    per_row: bool,
) -> None:
    n, K = values.shape
    padded, tune = padded_classes(K), tuning.current()
    targets, (mode, weighted, smooth) = target_arguments(operands, values)
    plan = stream_plan(values, max(tune.sum_rows, tune.backward_rows))
    sum_columns = plan["C"] // 2
    parts = pieces(values, tune.sum_rows, sum_columns)
    chunks = -(-n // plan["CHUNK"])
    groups = chunks * (plan["CHUNK"] // tune.sum_rows)
    counters = torch.zeros(chunks + groups, dtype=torch.int32, device=values.device)
    pulls = torch.empty(n * parts + n, dtype=torch.float32, device=values.device)
    programs = multiprocessors(values.device) * tune.backward_per_sm
    cut = (K, padded, plan["ALIGN"], plan["PHASES"], plan["CHUNK"], parts)
    sums: tuple[Any, ...] = (values, classes, stats, upstream, pulls, counters, n, values.stride(0))
    sums_static = (*cut, tune.sum_rows, sum_columns, mode, per_row, tune.backward_stages)
    whole: tuple[Any, ...] = (values, *targets[:4], classes, stats, upstream, pulls, counters, grad)
    whole += (n, values.stride(0), *targets[4:])
    static = (*cut, tune.backward_rows, plan["C"], mode, weighted, smooth, per_row, tune.backward_stages)
    for kernel, args, fixed in (
        (stream_pulls, sums, sums_static),
        (stream_gradient, whole, static),
    ):
        for log_space in (False, True):
            key = (operands_key(operands, values, fixed), upstream.dtype, log_space)
            launch(kernel, programs, tune.stream_warps, key, (*args, *fixed, log_space), tune.backward_registers)


def row_losses(operands: Operands, logits: Tensor, m: int, classes: Tensor, stats: Tensor) -> Tensor:
    """Each row's loss (n,), float32."""
    n, K = logits.shape
    padded = padded_classes(K)
    rows = operands.rows(logits)
    log_s = classes[2 * padded : 2 * padded + K]
    tau = stats[3 * n : 4 * n]
    losses = stats[2 * n : 3 * n] + target_sum(rows, log_s)
    if operands.anchor_kind == WITHOUT_ANCHOR:
        return losses
    divergence = marginal_divergence(class_prior(class_mass(rows), operands.prior), log_s, rows.count() + m)
    return losses + anchor_term(operands.anchor, divergence) * tau


def row_weighted_classes(operands: Operands, logits: Tensor, classes: Tensor, stats: Tensor, of_row: Tensor) -> Tensor:
    """The class coefficients for a gradient that differs between rows: T_k = w_k sum_i g_i t_ik."""
    n, K = logits.shape
    padded = padded_classes(K)
    rows = operands.rows(logits)
    pull = class_mass(rows, of_row)
    if operands.anchor_kind != WITHOUT_ANCHOR:
        pi = class_prior(class_mass(rows), operands.prior)
        pull = pull - operands.anchor * (of_row * stats[3 * n : 4 * n]).sum() * pi
    beyond = classes[3 * padded : 3 * padded + K]
    weighted = classes.clone()
    weighted[:K] = torch.where(beyond == 0, 0.0, pull / beyond)
    return weighted
