"""Backward over rows too long for registers but not for the caches: a program looks at its row twice.

The first look sums the row's pull r_j, the second writes the gradient; in between the row waits in the L1 or L2 cache.
No program waits for another.
"""

import triton
import triton.language as tl

from gence.losses.backends.triton.kernels.tiles import (
    EXTREME,
    INVERSE_DENOMINATOR,
    LOG2_E,
    VECTORS,
    class_weight,
    exp,
    exp2,
    write_label_gradients,
)

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
    """Gradient of the rows from their statistics and the class coefficients; one program a row."""
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
