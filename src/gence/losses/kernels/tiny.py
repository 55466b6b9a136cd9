"""The whole problem in one program: loss and, for unit upstream gradient, the gradient, in one launch.

Everything is a dense tile in registers, so each target kind, weight, smoothing and anchor is the plain formula.
"""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement

import triton
import triton.language as tl

from gence.losses.kernels.exponent import exp
from gence.losses.kernels.tiles import weighted_target_tile


@triton.jit(do_not_specialize=["n", "stride", "t_stride"])
def tiny_kernel(
    z,
    first,
    second,
    share,
    weight,
    prior,
    anchor_at,
    loss,
    grad,
    n,
    stride,
    t_stride,
    eps,
    anchor,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    MODE: tl.constexpr,
    IGNORE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
    ANCHOR: tl.constexpr,
    HAS_PRIOR: tl.constexpr,
    REDUCTION: tl.constexpr,
    WITH_GRAD: tl.constexpr,
):
    """Loss (0-dim) and gradient (n, K) of at most BLOCK_N x BLOCK_K logits."""
    rows = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_K)
    row_ok = rows < n
    valid = row_ok
    bad = rows < 0
    if MODE == 1:
        y = tl.load(first + rows, mask=row_ok, other=IGNORE)
        valid = row_ok & (y != IGNORE)
        bad = valid & ((y < 0) | (y >= K))
    elif MODE == 2:
        y1 = tl.load(first + rows, mask=row_ok, other=0)
        y2 = tl.load(second + rows, mask=row_ok, other=0)
        bad = (y1 < 0) | (y1 >= K) | (y2 < 0) | (y2 >= K)
    mask = valid[:, None] & (cols < K)[None, :]
    x = tl.load(z + rows.to(tl.int64)[:, None] * stride + cols[None, :], mask=mask, other=float("-inf")).to(tl.float32)

    peak = tl.where(valid, tl.max(x, 1), 0.0)
    log_sum = tl.where(valid, tl.log(tl.sum(exp(x - peak[:, None]), 1)), 0.0)
    log_p = x - peak[:, None] - log_sum[:, None]  # -inf outside of the mask
    top = tl.max(log_p, 0)
    top = tl.where(top > float("-inf"), top, 0.0)
    beyond = tl.sum(exp(log_p - top[None, :]), 0)  # 0 where a class has no probability in any row
    log_s = top + tl.log(beyond)

    wt = weighted_target_tile(
        rows, cols, valid, mask, first, second, share, weight, t_stride, eps, K, MODE, HAS_WEIGHT, SMOOTH
    )
    tau = tl.sum(wt, 1)
    mass = tl.sum(wt, 0)
    cost = tl.sum(tl.where(wt != 0.0, wt * (log_s[None, :] - log_p), 0.0), 1)
    cost = tl.where(bad, float("nan"), cost)
    total = tl.sum(cost, 0)
    pull = mass
    if ANCHOR != 0:
        if ANCHOR == 2:
            strength = tl.load(anchor_at).to(tl.float32)
        else:
            strength = anchor
        whole = tl.sum(mass, 0)
        if HAS_PRIOR:
            pi = tl.load(prior + cols, mask=cols < K, other=0.0).to(tl.float32)
        else:
            pi = mass / tl.maximum(whole, 1.1754944e-38)
        taking_part = tl.sum(valid.to(tl.float32), 0)
        divergence = tl.sum(tl.where(pi > 0.0, pi * (tl.log(tl.where(pi > 0.0, pi, 1.0)) - log_s), 0.0), 0)
        divergence += tl.sum(pi, 0) * tl.log(tl.maximum(taking_part, 1.0))
        total += strength * whole * tl.where(taking_part > 0.0, divergence, 0.0)
        pull = mass - strength * whole * pi
    if REDUCTION == 2:
        if MODE == 1 and HAS_WEIGHT:
            w = tl.load(weight + y, mask=valid & (bad == 0), other=0.0).to(tl.float32)
            inverse = 1.0 / tl.sum(w, 0)
        elif MODE == 1:
            inverse = 1.0 / tl.sum(valid.to(tl.float32), 0)
        else:
            inverse = 1.0 / n
        total = total * inverse
        # 0 * inf is NaN, as "mean" over nothing must be.
    else:
        inverse = 1.0
    tl.store(loss, total)

    if WITH_GRAD:
        c = tl.where((pull != 0.0) & (beyond != 0.0), pull / tl.where(beyond != 0.0, beyond, 1.0), 0.0)
        q = c[None, :] * exp(log_p - top[None, :])
        r = tl.sum(q, 1)
        g = (exp(log_p) * (tau - r)[:, None] + q - wt) * inverse
        g = tl.where(valid[:, None], g, 0.0)
        tl.store(grad + rows[:, None] * K + cols[None, :], g, mask=row_ok[:, None] & (cols < K)[None, :])
