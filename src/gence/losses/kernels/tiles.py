"""Pieces that the kernels share: labels, weighted target tiles, and log-probabilities of a tile.

``MODE`` says what the target is: 0 none (context rows), 1 class indices, 2 two-hot, 3 class probabilities.
A row that is ignored is marked by an infinite log-sum-exp, which nothing else can produce.
"""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement

import triton
import triton.language as tl

NO_TARGET, INDEX, TWO_HOT, PROBS = 0, 1, 2, 3
SUM, MEAN = 1, 2
WITHOUT_ANCHOR, FLOAT_ANCHOR, TENSOR_ANCHOR = 0, 1, 2

# Where finalise.py leaves its scalars, counted from the end of the three class vectors.
INVERSE_DENOMINATOR = tl.constexpr(0)
EXTREME = tl.constexpr(1)
SCALARS = 16


@triton.jit
def class_weight(weight, label, inside, HAS_WEIGHT: tl.constexpr):
    """w of the label, 1 without weights; 0 outside the mask."""
    if HAS_WEIGHT:
        w = tl.load(weight + label, mask=inside, other=0.0).to(tl.float32)
    else:
        w = tl.where(inside, 1.0, 0.0)
    return w


@triton.jit
def weighted_target_tile(
    rows,
    cols,
    row_ok,
    mask,
    first,
    second,
    share,
    weight,
    t_stride,
    eps,
    K: tl.constexpr,
    MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
):
    """w_k t_jk of a tile (R, C), smoothing included, 0 outside the mask; without a target, zeros."""
    if MODE == 1:
        y = tl.load(first + rows, mask=row_ok, other=-1)
        t = tl.where(cols[None, :] == y[:, None], 1.0, 0.0)
    elif MODE == 2:
        y1 = tl.load(first + rows, mask=row_ok, other=-1)
        y2 = tl.load(second + rows, mask=row_ok, other=-1)
        s = tl.load(share + rows, mask=row_ok, other=0.0).to(tl.float32)[:, None]
        t = tl.where(cols[None, :] == y1[:, None], s, 0.0) + tl.where(cols[None, :] == y2[:, None], 1.0 - s, 0.0)
    elif MODE == 3:
        t = tl.load(first + rows.to(tl.int64)[:, None] * t_stride + cols[None, :], mask=mask, other=0.0)
        t = t.to(tl.float32)
    else:
        t = tl.zeros(mask.shape, tl.float32)
    if MODE != 0 and SMOOTH:
        t = (1.0 - eps) * t + eps / K
    if MODE != 0 and HAS_WEIGHT:
        w = tl.load(weight + cols, mask=(cols >= 0) & (cols < K), other=0.0).to(tl.float32)
        t = t * w[None, :]
    return tl.where(mask, t, 0.0)


@triton.jit
def label_terms(
    z,
    rows,
    offsets,
    valid,
    peak,
    log_sum,
    first,
    second,
    share,
    weight,
    K: tl.constexpr,
    MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):
    """For index and two-hot targets without smoothing: (sum_k w_k t_jk (-log p_jk), tau_j) of the rows.

    A label outside of [0, K) makes the loss NaN instead of reading foreign memory.
    """
    y = tl.load(first + rows, mask=valid, other=0).to(tl.int64)
    inside = valid & (y >= 0) & (y < K)
    x = tl.load(z + offsets + y, mask=inside, other=float("nan")).to(tl.float32)
    tau = class_weight(weight, y, inside, HAS_WEIGHT)
    cost = tau * (log_sum - (x - peak))
    if MODE == 2:
        y2 = tl.load(second + rows, mask=valid, other=0).to(tl.int64)
        inside2 = valid & (y2 >= 0) & (y2 < K)
        x2 = tl.load(z + offsets + y2, mask=inside2, other=float("nan")).to(tl.float32)
        s = tl.load(share + rows, mask=valid, other=0.0).to(tl.float32)
        tau2 = class_weight(weight, y2, inside2, HAS_WEIGHT)
        cost = s * cost + (1.0 - s) * tau2 * (log_sum - (x2 - peak))
        tau = s * tau + (1.0 - s) * tau2
    return tl.where(valid, cost, 0.0), tl.where(valid, tau, 0.0)


@triton.jit
def count_labels(mass, rows, valid, first, second, share, K: tl.constexpr, MODE: tl.constexpr):
    """Add the rows' unweighted label mass to ``mass`` (K,)."""
    y = tl.load(first + rows, mask=valid, other=-1).to(tl.int64)
    inside = valid & (y >= 0) & (y < K)
    if MODE == 1:
        tl.atomic_add(mass + y, tl.where(inside, 1.0, 0.0), mask=inside, sem="relaxed")
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
    """A_k exp(log p_jk - log S_k) of a tile: c_k p_jk, relative to the column where its sum would underflow."""
    return tl.exp(log_p - low[None, :]) * c[None, :]
