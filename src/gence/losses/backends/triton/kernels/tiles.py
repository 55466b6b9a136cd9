"""Pieces that the kernels share: labels, weighted target tiles, and log-probabilities of a tile.

``MODE`` says what the target is: 0 none (context rows), 1 class indices, 2 two-hot, 3 class probabilities.
A row that is ignored is marked by an infinite log-sum-exp, which nothing else can produce.
"""

import os

import torch
import triton
import triton.language as tl

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"


LOG2_E = tl.constexpr(1.4426950408889634)
HAS_PTX = tl.constexpr(torch.version.cuda is not None and os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def exp2(x):
    """2 to the power of x."""
    if HAS_PTX:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def exp(x):
    """E to the power of x."""
    return exp2(x * LOG2_E)


@triton.jit
def softmax_tile(x, peak, log_sum):
    """p = exp(x - peak - log_sum) of a tile (R, C) of logits.

    The peak is subtracted first, where it is exact; the rest is one fused multiply-add.
    """
    return exp2((x - peak[:, None]) * LOG2_E - (log_sum * LOG2_E)[:, None])


@triton.jit
def log(x):
    """Natural logarithm of a normal number, to 2e-7: the error that a float32 of size 2 has anyway."""
    if HAS_PTX:
        y = tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = tl.log2(x)
    return y * 0.6931471805599453


# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement


NO_TARGET, INDEX, TWO_HOT, PROBS = 0, 1, 2, 3
SUM, MEAN = 1, 2
WITHOUT_ANCHOR, FLOAT_ANCHOR, TENSOR_ANCHOR = 0, 1, 2

# What finalise.py leaves: four class vectors (c, low, log S, and S relative to low), and behind them scalars.
VECTORS = tl.constexpr(4)
INVERSE_DENOMINATOR = tl.constexpr(0)
EXTREME = tl.constexpr(1)
# A start for maxima: no number is lower, and unlike -inf it can be subtracted from itself.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def load_counts(sums, cols, mask, KP: tl.constexpr, INDEX: tl.constexpr):
    """Unweighted label mass of classes, from behind the column sums: see ``count_labels``."""
    if INDEX:
        counts = tl.load(sums.to(tl.pointer_type(tl.int32)) + KP + cols, mask=mask, other=0).to(tl.float32)
    else:
        counts = tl.load(sums + KP + cols, mask=mask, other=0.0)
    return counts


@triton.jit
def class_weight(weight, label, inside, HAS_WEIGHT: tl.constexpr):
    """w of the label, 1 without weights; 0 outside the mask."""
    if HAS_WEIGHT:
        w = tl.load(weight + label, mask=inside, other=0.0).to(tl.float32)
    else:
        w = tl.where(inside, 1.0, 0.0)
    return w


@triton.jit
def label_of(labels, rows, row_ok, K: tl.constexpr):
    """Class indices of the rows as 32-bit numbers, -1 where masked or outside of [0, K)."""
    y = tl.load(labels + rows, mask=row_ok, other=-1)
    return tl.where((y >= 0) & (y < K), y, -1).to(tl.int32)


@triton.jit
def weighted_target_tile(
    rows, cols, row_ok, mask, first, second, share, weight, t_stride, eps, K: tl.constexpr, MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """w_k t_jk of a tile (R, C), smoothing included, 0 outside the mask; without a target, zeros."""
    if MODE == 1 or MODE == 2:
        # The label's weight is looked up once for a row, not once for an element.
        y1 = label_of(first, rows, row_ok, K)
        w1 = class_weight(weight, y1, y1 >= 0, HAS_WEIGHT)
        if MODE == 2:
            y2 = label_of(second, rows, row_ok, K)
            s = tl.load(share + rows, mask=row_ok, other=0.0).to(tl.float32)
            w1 = w1 * s
            w2 = class_weight(weight, y2, y2 >= 0, HAS_WEIGHT) * (1.0 - s)
        if SMOOTH:
            w1 = (1.0 - eps) * w1
        wt = tl.where(cols[None, :] == y1[:, None], w1[:, None], 0.0)
        if MODE == 2:
            if SMOOTH:
                w2 = (1.0 - eps) * w2
            wt += tl.where(cols[None, :] == y2[:, None], w2[:, None], 0.0)
        if SMOOTH:
            wt += smoothed_tile(cols, mask, weight, eps, K, HAS_WEIGHT)
    elif MODE == 3:
        wt = dense_target_tile(rows, cols, mask, first, weight, t_stride, eps, K, HAS_WEIGHT, SMOOTH)
    else:
        wt = tl.zeros(mask.shape, tl.float32)
    return wt


@triton.jit
def smoothed_tile(cols, mask, weight, eps, K: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    """What label smoothing gives every class: w_k eps / K, 0 outside the mask."""
    w = class_weight(weight, cols, (cols >= 0) & (cols < K), HAS_WEIGHT)
    return tl.where(mask, (w * (eps / K))[None, :], 0.0)


@triton.jit
def dense_target_tile(
    rows, cols, mask, probs, weight, t_stride, eps, K: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """w_k t_jk of a tile of class probabilities, smoothing included, 0 outside the mask."""
    t = tl.load(probs + rows.to(tl.int64)[:, None] * t_stride + cols[None, :], mask=mask, other=0.0).to(tl.float32)
    if SMOOTH:
        t = tl.where(mask, (1.0 - eps) * t + eps / K, 0.0)
    if HAS_WEIGHT:
        t = t * class_weight(weight, cols, (cols >= 0) & (cols < K), HAS_WEIGHT)[None, :]
    return t


@triton.jit
def label_terms(
    z, rows, offsets, valid, peak, log_sum, first, second, share, weight, K: tl.constexpr, MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """For index and two-hot targets without smoothing: (sum_k w_k t_jk (-log p_jk), tau_j) of the rows.

    A label outside of [0, K) makes the loss NaN instead of reading foreign memory.
    """
    y = tl.load(first + rows, mask=valid, other=0).to(tl.int64)
    inside = valid & (y >= 0) & (y < K)
    x = tl.load(z + offsets + y, mask=inside, other=float("nan")).to(tl.float32)
    tau = class_weight(weight, y, inside, HAS_WEIGHT)
    cost = tl.where((tau != 0.0) | (inside == 0), tau * (log_sum - (x - peak)), 0.0)
    if MODE == 2:
        y2 = tl.load(second + rows, mask=valid, other=0).to(tl.int64)
        inside2 = valid & (y2 >= 0) & (y2 < K)
        x2 = tl.load(z + offsets + y2, mask=inside2, other=float("nan")).to(tl.float32)
        s = tl.load(share + rows, mask=valid, other=0.0).to(tl.float32)
        tau2 = class_weight(weight, y2, inside2, HAS_WEIGHT)
        tau = s * tau
        tau2 = (1.0 - s) * tau2
        cost = tl.where((tau != 0.0) | (inside == 0), s * cost, 0.0)
        cost += tl.where((tau2 != 0.0) | (inside2 == 0), tau2 * (log_sum - (x2 - peak)), 0.0)
        tau += tau2
    return tl.where(valid, cost, 0.0), tl.where(valid, tau, 0.0)


@triton.jit
def count_labels(mass, rows, valid, first, second, share, K: tl.constexpr, MODE: tl.constexpr):
    """Add the rows' unweighted label mass to ``mass`` (K,): for class indices as whole numbers, without rounding."""
    y = tl.load(first + rows, mask=valid, other=-1).to(tl.int64)
    inside = valid & (y >= 0) & (y < K)
    if MODE == 1:
        tl.atomic_add(mass.to(tl.pointer_type(tl.int32)) + y, tl.where(inside, 1, 0), mask=inside, sem="relaxed")
    else:
        s = tl.load(share + rows, mask=valid, other=0.0).to(tl.float32)
        tl.atomic_add(mass + y, s, mask=inside, sem="relaxed")
        y2 = tl.load(second + rows, mask=valid, other=-1).to(tl.int64)
        tl.atomic_add(mass + y2, 1.0 - s, mask=valid & (y2 >= 0) & (y2 < K), sem="relaxed")


@triton.jit
def store_row_stats(stats, rows, row_ok, valid, n, peak, log_sum, cost, tau):
    """Keep (max, log-sum-exp beyond it, cost, tau) of the rows: four vectors of n."""
    tl.store(stats + rows, tl.where(valid, peak, 0.0), mask=row_ok)
    tl.store(stats + n + rows, tl.where(valid, log_sum, float("inf")), mask=row_ok)
    tl.store(stats + 2 * n + rows, tl.where(valid, cost, 0.0), mask=row_ok)
    tl.store(stats + 3 * n + rows, tl.where(valid, tau, 0.0), mask=row_ok)


@triton.jit
def class_pull(log_p, c, low):
    """A_k p_jk / S_k of a tile: c_k p_jk, relative to the column's largest where its sum would underflow."""
    return exp(log_p - low[None, :]) * c[None, :]


@triton.jit
def write_label_gradients(
    z, first, second, share, weight, classes, stats, upstream, grad, rows, row_ok, pulls, scale, lo, hi, n, stride,
    eps, K: tl.constexpr, KP: tl.constexpr, MODE: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
    PER_ROW: tl.constexpr,
):  # fmt: skip
    """Write the gradient again where a label stands, in columns lo to hi: one logit of a row, or two.

    Looking for the label at every logit would cost the kernels of long rows a fifth of their instructions.
    ``pulls`` is each row's tau_j - r_j.
    """
    peak = tl.load(stats + rows, mask=row_ok, other=0.0)
    log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"))
    live = row_ok & (log_sum != float("inf"))
    y1 = label_of(first, rows, live, K)
    t1 = class_weight(weight, y1, y1 >= 0, HAS_WEIGHT)
    y2 = y1
    t2 = t1
    if MODE == 2:
        y2 = label_of(second, rows, live, K)
        s = tl.load(share + rows, mask=live, other=0.0).to(tl.float32)
        t2 = class_weight(weight, y2, y2 >= 0, HAS_WEIGHT) * tl.where(y1 == y2, 1.0, 1.0 - s)
        t1 = t1 * tl.where(y1 == y2, 1.0, s)
    for which in tl.static_range(MODE):
        y = y1 if which == 0 else y2
        wt = t1 if which == 0 else t2
        here = (y >= 0) & (y >= lo) & (y < hi)  # lo may lie before the row
        if SMOOTH:
            wt = (1.0 - eps) * wt + (eps / K) * class_weight(weight, y, y >= 0, HAS_WEIGHT)
        if PER_ROW:
            wt = wt * tl.load(upstream + rows, mask=live, other=0.0).to(tl.float32)
        x = tl.load(z + rows.to(tl.int64) * stride + y, mask=here, other=0.0).to(tl.float32)
        c = tl.load(classes + y, mask=here, other=0.0)
        low = tl.load(classes + KP + y, mask=here, other=0.0)
        log_p = (x - peak) - log_sum
        g = (exp(log_p) * pulls + exp(log_p - low) * c - wt) * scale
        tl.store(grad + rows.to(tl.int64) * K + y, g.to(grad.dtype.element_ty), mask=here)
