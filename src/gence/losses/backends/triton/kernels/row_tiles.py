"""Rows that fit in registers, each read once; the column sums of a program's rows stay in registers too.

Rows too long for registers, but not for the caches, have a backward pass in which a program looks at its row twice: the
first look sums the row's pull r_j, the second writes the gradient; in between the row waits in the L1 or L2 cache. No
program waits for another.
"""

import triton
import triton.language as tl

from gence._triton import power_of_two
from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.kernels.finish import class_shares, write_loss
from gence.losses.backends.triton.kernels.tiles import (
    EXTREME,
    INVERSE_DENOMINATOR,
    LOG2_E,
    VECTORS,
    class_pull,
    class_weight,
    count_labels,
    exp,
    exp2,
    label_of,
    label_terms,
    softmax_tile,
    store_row_stats,
    weighted_target_tile,
    write_label_gradients,
)

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement


def finish_columns(K: int) -> int:
    """Classes that the last program takes at a time; twice as many would cost all programs registers."""
    return min(power_of_two(K), 2 * tuning.current().finalise_columns)


@triton.jit(do_not_specialize=["n", "stride", "t_stride", "counter_at"])
def rows_forward(
    z, first, second, share, weight, sums, stats, classes, loss, n, stride, t_stride, eps, counter_at,
    K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr, R: tl.constexpr, BLOCK_K: tl.constexpr,
    MODE: tl.constexpr, IGNORE: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, COUNT: tl.constexpr,
    PARTIAL: tl.constexpr, FINISH: tl.constexpr, REDUCTION: tl.constexpr,
):  # fmt: skip
    """Row statistics, label counts and column sums; ``PARTIAL`` leaves each program's sums in a slot of its own.

    Unless ``FINISH`` is 0, the last program to finish continues with what ``finalise`` would do (without an anchor),
    ``FINISH`` classes at a time. It finds each program's sum of costs behind the counter: to read those of all rows
    would take one program too long. The sums are made behind the loop over rows, in which they would take registers.
    """
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK_K)
    col_ok = cols < K
    acc = tl.zeros((R, BLOCK_K), tl.float32)
    # With few classes many rows add to one count, one after another: so a program counts by itself first.
    OWN_COUNT: tl.constexpr = COUNT and MODE == 1 and BLOCK_K <= 64
    counted = tl.zeros((R, BLOCK_K if OWN_COUNT else 1), tl.int32)
    if MODE != 0 and SMOOTH:
        if HAS_WEIGHT:
            w = tl.load(weight + cols, mask=col_ok, other=0.0).to(tl.float32)
        else:
            w = tl.where(col_ok, 1.0, 0.0)
    for tile in range(pid, tl.cdiv(n, R), tl.num_programs(0)):
        rows = tile * R + tl.arange(0, R)
        row_ok = rows < n
        valid = row_ok
        if MODE == 1:
            valid = row_ok & (tl.load(first + rows, mask=row_ok, other=IGNORE) != IGNORE)
        offsets = tl.multiple_of(rows.to(tl.int64) * stride, ALIGN)
        mask = valid[:, None] & col_ok[None, :]
        x = tl.load(z + offsets[:, None] + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
        peak = tl.where(valid, tl.max(x, 1), 0.0)
        e = exp(x - peak[:, None])
        total = tl.where(valid, tl.sum(e, 1), 1.0)
        acc += e * (1.0 / total)[:, None]
        log_sum = tl.log(total)
        cost = tl.zeros((R,), tl.float32)
        tau = tl.zeros((R,), tl.float32)
        if MODE == 3:
            wt = weighted_target_tile(
                rows, cols, valid, mask, first, second, share, weight, t_stride, eps, K, MODE, HAS_WEIGHT, SMOOTH
            )
            tau = tl.sum(wt, 1)
            cost = tl.sum(tl.where(mask & (wt != 0.0), wt * (log_sum[:, None] - (x - peak[:, None])), 0.0), 1)
        elif MODE != 0:
            cost, tau = label_terms(
                z, rows, offsets, valid, peak, log_sum, first, second, share, weight, K, MODE, HAS_WEIGHT
            )
            if SMOOTH:
                weighed = mask & (w != 0.0)[None, :]
                spread = tl.where(weighed, w[None, :] * (log_sum[:, None] - (x - peak[:, None])), 0.0)
                cost = (1.0 - eps) * cost + (eps / K) * tl.sum(spread, 1)
                tau = (1.0 - eps) * tau + (eps / K) * tl.sum(w, 0)
        store_row_stats(stats, rows, row_ok, valid, n, peak, log_sum, cost, tau)
        if OWN_COUNT:
            y = label_of(first, rows, valid, K)
            counted += tl.where(cols[None, :] == y[:, None], 1, 0)
        elif COUNT:
            count_labels(sums + KP, rows, valid, first, second, share, K, MODE)
    if OWN_COUNT:
        counts_at = (sums + KP).to(tl.pointer_type(tl.int32))
        tl.atomic_add(counts_at + cols, tl.sum(counted, 0), mask=col_ok, sem="relaxed")
    column = tl.sum(acc, 0)
    if PARTIAL:
        tl.store(sums + 2 * KP + pid.to(tl.int64) * KP + cols, column, mask=col_ok)
    else:
        tl.atomic_add(sums + cols, column, mask=col_ok, sem="relaxed")
    if FINISH != 0:
        programs = tl.num_programs(0)
        costs_at = sums + counter_at + 1
        tl.debug_barrier()  # other threads of this program have written some of its costs
        AHEAD: tl.constexpr = 1024 if R <= 1024 else R
        costs = tl.zeros((AHEAD,), tl.float32)
        at = tl.arange(0, AHEAD)
        for tile in range(pid, tl.cdiv(n, R), programs * (AHEAD // R)):
            rows = (tile + at // R * programs) * R + at % R
            costs += tl.load(stats + 2 * n + rows, mask=rows < n, other=0.0)
        tl.store(costs_at + pid, tl.sum(costs, 0))
        tl.debug_barrier()  # all of this program's stores come before its tick
        finished = tl.atomic_add((sums + counter_at).to(tl.pointer_type(tl.int32)), 1, sem="acq_rel")
        if finished == programs - 1:
            of_all = class_shares(
                z, z, sums, stats, stats, classes, weight, weight, costs_at, programs, 0, n, 0, stride, 0, 0, eps,
                0.0, K, KP, FINISH, 1024, 4, 1, False, HAS_WEIGHT, SMOOTH, 0, False, MODE == 1, False,
            )  # fmt: skip
            write_loss(
                classes, loss, of_all[0], of_all[1], of_all[2], of_all[3], of_all[4], of_all[5], of_all[6], of_all[7],
                of_all[8], n, 0, 0.0, KP, 0, False, MODE == 1, REDUCTION,
            )  # fmt: skip


@triton.jit
def _write_tile(
    z, first, second, share, weight, classes, stats, upstream, grad, c, cols, col_ok, tile, scale, n, stride,
    t_stride, eps, K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr, R: tl.constexpr, MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, PER_ROW: tl.constexpr, LOG_SPACE: tl.constexpr,
):  # fmt: skip
    rows = tile * R + tl.arange(0, R)
    row_ok = rows < n
    peak = tl.load(stats + rows, mask=row_ok, other=0.0)
    log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"))
    valid = row_ok & (log_sum != float("inf"))
    offsets = tl.multiple_of(rows.to(tl.int64) * stride, ALIGN)
    mask = valid[:, None] & col_ok[None, :]
    x = tl.load(z + offsets[:, None] + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)
    p = softmax_tile(x, peak, log_sum)
    if LOG_SPACE:
        low = tl.load(classes + KP + cols, mask=col_ok, other=0.0)
        q = class_pull((x - peak[:, None]) - log_sum[:, None], c, low)
    else:
        q = p * c[None, :]
    pull = -tl.sum(q, 1)
    wt = weighted_target_tile(
        rows, cols, valid, mask, first, second, share, weight, t_stride, eps, K, MODE, HAS_WEIGHT, SMOOTH
    )
    if MODE != 0:
        own = tl.load(stats + 3 * n + rows, mask=row_ok, other=0.0)
        if PER_ROW:
            of_row = tl.load(upstream + rows, mask=row_ok, other=0.0).to(tl.float32)
            own = own * of_row
            wt = wt * of_row[:, None]
        pull += own
    # A row that takes no part was not loaded: its p and q are 0.
    g = (p * pull[:, None] + q - wt) * scale
    out_at = rows.to(tl.int64) * K
    tl.store(grad + out_at[:, None] + cols[None, :], g, mask=row_ok[:, None] & col_ok[None, :])


@triton.jit(do_not_specialize=["n", "stride", "t_stride"])
def rows_backward(
    z, first, second, share, weight, classes, stats, upstream, grad, n, stride, t_stride, eps, K: tl.constexpr,
    KP: tl.constexpr, ALIGN: tl.constexpr, R: tl.constexpr, BLOCK_K: tl.constexpr, MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Gradient of the rows from their statistics and the class coefficients."""
    cols = tl.arange(0, BLOCK_K)
    col_ok = cols < K
    c = tl.load(classes + cols, mask=col_ok, other=0.0)
    scalars = classes + VECTORS * KP
    extreme = tl.load(scalars + EXTREME)
    scale = 1.0
    if not PER_ROW:
        scale = tl.load(upstream).to(tl.float32) * tl.load(scalars + INVERSE_DENOMINATOR)
    for tile in range(tl.program_id(0), tl.cdiv(n, R), tl.num_programs(0)):
        if extreme > 0.0:
            _write_tile(
                z, first, second, share, weight, classes, stats, upstream, grad, c, cols, col_ok, tile, scale, n,
                stride, t_stride, eps, K, KP, ALIGN, R, MODE, HAS_WEIGHT, SMOOTH, PER_ROW, True,
            )  # fmt: skip
        else:
            _write_tile(
                z, first, second, share, weight, classes, stats, upstream, grad, c, cols, col_ok, tile, scale, n,
                stride, t_stride, eps, K, KP, ALIGN, R, MODE, HAS_WEIGHT, SMOOTH, PER_ROW, False,
            )  # fmt: skip


# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"


@triton.jit
def _pull_of(at, mask, row_at, z, classes, peak, log_sum, KP: tl.constexpr, LOG_SPACE: tl.constexpr):
    """c_k p_jk of a part of the row."""
    x = tl.load(z + row_at + at, mask=mask, other=float("-inf"), eviction_policy="evict_last").to(tl.float32)
    c = tl.load(classes + at, mask=mask, other=0.0)
    if LOG_SPACE:
        low = tl.load(classes + KP + at, mask=mask, other=0.0)
        q = exp(((x - peak) - log_sum) - low) * c
    else:
        q = exp2((x - peak) * LOG2_E - log_sum * LOG2_E) * c
    return q


@triton.jit
def _write_part(
    at, mask, row_at, out_at, t_at, z, first, weight, classes, grad, peak, log_sum, pull, of_row, scale, eps,
    K: tl.constexpr, KP: tl.constexpr, MODE: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
    LOG_SPACE: tl.constexpr,
):  # fmt: skip
    """The gradient of a part of the row, but for the label's share."""
    x = tl.load(z + row_at + at, mask=mask, other=float("-inf"), eviction_policy="evict_first").to(tl.float32)
    c = tl.load(classes + at, mask=mask, other=0.0)
    if LOG_SPACE:
        low = tl.load(classes + KP + at, mask=mask, other=0.0)
        log_p = (x - peak) - log_sum
        g = exp(log_p) * pull + exp(log_p - low) * c
    else:
        g = exp2((x - peak) * LOG2_E - log_sum * LOG2_E) * (pull + c)
    if MODE == 3 or (MODE != 0 and SMOOTH):
        wt = tl.zeros(at.shape, tl.float32)
        if MODE == 3:
            wt = tl.load(first + t_at + at, mask=mask, other=0.0).to(tl.float32)
            if SMOOTH:
                wt = (1.0 - eps) * wt
        if SMOOTH:
            wt += eps / K
        if HAS_WEIGHT:
            wt = wt * class_weight(weight, at, mask, HAS_WEIGHT)
        g -= wt * of_row
    # The caches are for the logits that will be looked at again.
    tl.store(grad + out_at + at, (g * scale).to(grad.dtype.element_ty), mask=mask, eviction_policy="evict_first")


@triton.jit
def _two_looks(
    row, z, first, second, share, weight, classes, stats, upstream, grad, scale, n, stride, t_stride, eps,
    K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, PER_ROW: tl.constexpr, LOG_SPACE: tl.constexpr,
):  # fmt: skip
    WHOLE: tl.constexpr = (K // C) * C  # only what is behind needs a mask
    part = tl.arange(0, C)
    everywhere = tl.full((C,), True, tl.int1)
    row_at = tl.multiple_of(row.to(tl.int64) * stride, ALIGN)
    out_at = row.to(tl.int64) * K
    t_at = row.to(tl.int64) * t_stride
    peak = tl.load(stats + row)
    log_sum = tl.load(stats + n + row)
    if log_sum == float("inf"):  # the row takes no part
        for start in range(0, K, C):
            tl.store(grad + out_at + start + part, tl.zeros((C,), grad.dtype.element_ty), mask=start + part < K)
    else:
        acc = tl.zeros((C,), tl.float32)
        for start in range(0, WHOLE, C):
            acc += _pull_of(start + part, everywhere, row_at, z, classes, peak, log_sum, KP, LOG_SPACE)
        if WHOLE < K:
            acc += _pull_of(WHOLE + part, WHOLE + part < K, row_at, z, classes, peak, log_sum, KP, LOG_SPACE)
        pull = -tl.sum(acc, 0)
        of_row = 1.0
        if MODE != 0:
            own = tl.load(stats + 3 * n + row)
            if PER_ROW:
                of_row = tl.load(upstream + row).to(tl.float32)
                own = own * of_row
            pull += own
        for start in range(0, WHOLE, C):
            _write_part(
                start + part, everywhere, row_at, out_at, t_at, z, first, weight, classes, grad, peak, log_sum, pull,
                of_row, scale, eps, K, KP, MODE, HAS_WEIGHT, SMOOTH, LOG_SPACE,
            )  # fmt: skip
        if WHOLE < K:
            _write_part(
                WHOLE + part, WHOLE + part < K, row_at, out_at, t_at, z, first, weight, classes, grad, peak, log_sum,
                pull, of_row, scale, eps, K, KP, MODE, HAS_WEIGHT, SMOOTH, LOG_SPACE,
            )  # fmt: skip
        if MODE == 1 or MODE == 2:
            tl.debug_barrier()  # the label's logit was written above, by some other thread
            rows = row + tl.arange(0, 1)
            write_label_gradients(
                z, first, second, share, weight, classes, stats, upstream, grad, rows, rows < n,
                tl.zeros((1,), tl.float32) + pull, scale, 0, K, n, stride, eps, K, KP, MODE, HAS_WEIGHT, SMOOTH,
                PER_ROW,
            )  # fmt: skip


@triton.jit(do_not_specialize=["n", "stride", "t_stride"])
def long_rows_backward(
    z, first, second, share, weight, classes, stats, upstream, grad, n, stride, t_stride, eps, K: tl.constexpr,
    KP: tl.constexpr, ALIGN: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Gradient of the rows from their statistics and the class coefficients; one program per row."""
    row = tl.program_id(0)
    scalars = classes + VECTORS * KP
    scale = 1.0
    if not PER_ROW:
        scale = tl.load(upstream).to(tl.float32) * tl.load(scalars + INVERSE_DENOMINATOR)
    if tl.load(scalars + EXTREME) > 0.0:
        _two_looks(
            row, z, first, second, share, weight, classes, stats, upstream, grad, scale, n, stride, t_stride, eps, K,
            KP, ALIGN, C, MODE, HAS_WEIGHT, SMOOTH, PER_ROW, True,
        )  # fmt: skip
    else:
        _two_looks(
            row, z, first, second, share, weight, classes, stats, upstream, grad, scale, n, stride, t_stride, eps, K,
            KP, ALIGN, C, MODE, HAS_WEIGHT, SMOOTH, PER_ROW, False,
        )  # fmt: skip
