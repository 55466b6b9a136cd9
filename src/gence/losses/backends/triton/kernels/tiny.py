"""The whole problem in one program: loss and, for unit upstream gradient, the gradient, in one launch.

Everything is a dense tile in registers, so each target kind, weight, smoothing and anchor is the plain formula. One
multiprocessor does it all, so what counts is instructions for each logit and trips through shared memory: a logit takes
one exponential, the classes are summed in one trip, and only where a sum would underflow is it taken in log space.
"""

import triton
import triton.language as tl

from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.kernels.finish import FLOOR
from gence.losses.backends.triton.kernels.tiles import class_weight, exp, log, weighted_target_tile

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement

MASKED = tl.constexpr(-1e3)  # below it a logarithm loses digits in which the rows differ


def tiny_warps(elements: int) -> int:
    """How many warps take a tile of so many logits."""
    tune = tuning.current()
    return max(1, min(tune.tiny_warps, elements // (32 * tune.tiny_lane)))


@triton.jit(do_not_specialize=["n", "stride", "t_stride"])
def tiny_kernel(
    z, first, second, share, weight, prior, anchor_at, loss, grad, n, stride, t_stride, eps, anchor, K: tl.constexpr,
    ALIGN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, MODE: tl.constexpr, IGNORE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, ANCHOR: tl.constexpr, HAS_PRIOR: tl.constexpr,
    REDUCTION: tl.constexpr, WITH_GRAD: tl.constexpr,
):  # fmt: skip
    """Loss (0-dim) and gradient (n, K) of at most BLOCK_N x BLOCK_K logits."""
    HARD: tl.constexpr = MODE == 1 and not SMOOTH  # a row's target is one class: its tile need not be summed
    rows = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_K)
    row_ok = rows < n
    inside = row_ok[:, None] & (cols < K)[None, :]
    # Ignored rows are read as well, and the last row for those beyond: loads that wait neither for the labels nor for a
    # mask of their own are under way together, which is what a small problem waits for.
    at = tl.minimum(rows, n - 1)
    offsets = tl.multiple_of(at.to(tl.int64) * stride, ALIGN)
    x = tl.load(z + offsets[:, None] + cols[None, :], mask=(cols < K)[None, :], other=float("-inf")).to(tl.float32)
    valid = row_ok
    bad = rows < 0
    if MODE == 1:
        y = tl.load(first + at)
        valid = row_ok & (y != IGNORE)
        bad = valid & ((y < 0) | (y >= K))
    elif MODE == 2:
        y1 = tl.load(first + at)
        y2 = tl.load(second + at)
        bad = (y1 < 0) | (y1 >= K) | (y2 < 0) | (y2 >= K)
    x = tl.where(valid[:, None], x, float("-inf"))

    peak = tl.where(valid, tl.max(x, 1), 0.0)
    below = x - peak[:, None]  # -inf in ignored rows and beyond the classes
    e = exp(below)
    row_sum = tl.where(valid, tl.sum(e, 1), 1.0)
    log_sum = log(row_sum)
    p = e * (1.0 / row_sum)[:, None]

    if HARD:
        # A bad label stands at class 0, and its cost is NaN.
        label = tl.where(valid, tl.where(bad, 0, y), -1).to(tl.int32)
        tau = tl.where(bad, 1.0, class_weight(weight, label, valid, HAS_WEIGHT))
        hit = cols[None, :] == label[:, None]
        wt = tl.where(hit, tau[:, None], 0.0)
        own = tl.where(hit, tl.where(bad, float("nan"), log_sum)[:, None] - below, 0.0)
        if HAS_WEIGHT:
            own = tl.where(wt != 0.0, wt * own, 0.0)
    else:
        wt = weighted_target_tile(
            rows,
            cols,
            valid,
            valid[:, None] & inside,
            first,
            second,
            share,
            weight,
            t_stride,
            eps,
            K,
            MODE,
            HAS_WEIGHT,
            SMOOTH,
        )
        tau = tl.sum(wt, 1)
        own = tl.where(wt != 0.0, wt * (log_sum[:, None] - below), 0.0)
    s, mass, cost = tl.reduce((p, wt, own), 0, _add)

    pull = mass
    needed = mass != 0.0
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
        pull = mass - strength * whole * pi
        needed = needed | (pi > 0.0)
    inverse = 1.0
    if REDUCTION == 2:
        if HARD:
            inverse = 1.0 / tl.sum(mass, 0)
        elif MODE == 1 and HAS_WEIGHT:
            w = tl.load(weight + y, mask=valid & (bad == 0), other=0.0).to(tl.float32)
            inverse = 1.0 / tl.sum(w, 0)
        elif MODE == 1:
            inverse = 1.0 / tl.sum(valid.to(tl.float32), 0)
        else:
            inverse = 1.0 / n
    scale = inverse
    if REDUCTION == 2:  # the mean over nothing is NaN, and no logit has a gradient
        scale = tl.where(inverse < float("inf"), inverse, 0.0)
        inverse = tl.where(inverse < float("inf"), inverse, float("nan"))

    if tl.max((needed & (s < FLOOR)).to(tl.int32), 0) > 0:
        # Read again, so that the usual branch need not keep these logits in registers.
        again = tl.load(z + offsets[:, None] + cols[None, :], mask=inside, other=float("-inf"), volatile=True)
        again = tl.where(valid[:, None], again.to(tl.float32), float("-inf"))
        # Where all rows mask a class by a huge number, that is taken off first: beside it no other digit would stay.
        masked = tl.max(tl.where(valid[:, None], again - peak[:, None], float("-inf")), 0) < MASKED
        shift = tl.max(again, 0)
        shift = tl.where(masked & (shift > float("-inf")), shift, 0.0)
        log_p = tl.where(valid[:, None], (again - shift[None, :]) - peak[:, None] - log_sum[:, None], float("-inf"))
        top = tl.max(log_p, 0)
        top = tl.where(top > float("-inf"), top, 0.0)
        part = exp(log_p - top[None, :])
        beyond = tl.sum(part, 0)  # 0 where a class has no probability in any row
        log_s = top + tl.log(beyond)
        moved = tl.sum(tl.where((wt != 0.0) & (shift != 0.0)[None, :], -wt * log_p, 0.0), 0)
        cost = tl.where(shift != 0.0, moved, cost)
        if WITH_GRAD:
            c = tl.where((pull != 0.0) & (beyond != 0.0), pull / tl.where(beyond != 0.0, beyond, 1.0), 0.0)
            q = c[None, :] * part
            g = (p * (tau - tl.sum(q, 1))[:, None] + q - wt) * scale
            _store(grad, g, rows, cols, inside, valid, K, HAS_WEIGHT)
    else:
        divisor = tl.where(needed, s, 1.0)
        log_s = log(divisor)
        shift = s * 0.0
        if WITH_GRAD:
            c = pull / divisor
            r = tl.sum(c[None, :] * p, 1)
            g = p * (((tau - r) * scale)[:, None] + (c * scale)[None, :]) - wt * scale
            _store(grad, g, rows, cols, inside, valid, K, HAS_WEIGHT)

    total = tl.sum(tl.where(mass != 0.0, mass * log_s, 0.0) + cost, 0)
    if not HARD:
        total += tl.sum(tl.where(bad, float("nan"), 0.0), 0)
    if ANCHOR != 0:
        taking_part = tl.sum(valid.to(tl.float32), 0)
        divergence = tl.sum(tl.where(pi > 0.0, pi * (tl.log(tl.where(pi > 0.0, pi, 1.0)) - (log_s + shift)), 0.0), 0)
        divergence += tl.sum(pi, 0) * tl.log(tl.maximum(taking_part, 1.0))
        divergence = tl.where((taking_part == 0.0) | (strength == 0.0) & (divergence == float("inf")), 0.0, divergence)
        total += strength * whole * divergence
    tl.store(loss, total * inverse)


@triton.jit
def _add(p, wt, own, p2, wt2, own2):
    return p + p2, wt + wt2, own + own2


@triton.jit
def _store(grad, g, rows, cols, inside, valid, K: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    if HAS_WEIGHT:  # weights that are all 0 make it NaN, but not in ignored rows
        g = tl.where(valid[:, None], g, 0.0)
    tl.store(grad + rows[:, None] * K + cols[None, :], g, mask=inside)
