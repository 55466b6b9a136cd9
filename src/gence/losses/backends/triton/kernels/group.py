"""Backward over long rows that are read once: a group of programs holds a row in registers until all of it was seen.

A row's gradient needs its pull r_j, a sum over the whole row. Each program of a group has its own columns, whose
coefficients it keeps, and walks down the group's rows. It reads its part of a row, publishes its share of r_j as one
64-bit word, and moves to the next row; then the other shares are there, and it writes the gradient of the part that
it has kept. So the logits are read once and the gradient is written once.

A program waits for the others of its group, so all must be resident: the launch is cooperative. A share is published
before its program waits for anything of that row or a later one. Words are zero before the launch and never after.
Shares are added in a fixed order.

Logits travel as 32-bit words, one of float32 or two of a half type, because a register holds two halves only so.

Forward, where a row's maximum has to be found first, the same scheme took longer than two plain looks.
"""

import triton
import triton.language as tl

from gence.losses.backends.triton.kernels.tiles import (
    EXTREME,
    HAS_PTX,
    INVERSE_DENOMINATOR,
    LOG2_E,
    VECTORS,
    exp,
    exp2,
    write_label_gradients,
)

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108, SIM300 - a compile-time choice in Triton is an if statement, and TYPE is a parameter


@triton.jit
def _logits(words, TYPE: tl.constexpr, HALF: tl.constexpr):
    """The first (``HALF`` 0) or second logit of each word as float32."""
    if TYPE == tl.float32:
        x = words.to(tl.float32, bitcast=True)
    elif TYPE == tl.bfloat16:
        if HALF == 0:
            x = (words << 16).to(tl.float32, bitcast=True)
        else:
            x = (words & -65536).to(tl.float32, bitcast=True)
    else:
        x = (words >> (16 * HALF)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return x


@triton.jit
def _packed(low, high, TYPE: tl.constexpr):
    """Two tiles of float32 as words of ``TYPE``; only the first counts for float32."""
    if TYPE == tl.float32:
        words = low.to(tl.int32, bitcast=True)
    elif not HAS_PTX:
        words = low.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) & 65535
        words = words | (high.to(TYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    elif TYPE == tl.bfloat16:
        words = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], tl.int32, is_pure=True, pack=1
        )
    else:
        words = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [high, low], tl.int32, is_pure=True, pack=1
        )
    return words


@triton.jit
def _load_row(z, row, stride, at, inside, n, TYPE: tl.constexpr):
    """A program's part of a row as words; minus infinity outside."""
    if TYPE == tl.float32:
        nothing = -8388608  # 0xff800000
    elif TYPE == tl.bfloat16:
        nothing = -8323200  # 0xff80ff80
    else:
        nothing = -67044352  # 0xfc00fc00
    where = z.to(tl.pointer_type(tl.int32)) + tl.multiple_of(row.to(tl.int64) * stride, 4)
    exists = inside & (tl.zeros(at.shape, tl.int32) + row < n)
    return tl.load(where + at, mask=exists, other=nothing, eviction_policy="evict_first")


@triton.jit
def _columns_of(slab, K: tl.constexpr, U: tl.constexpr, W: tl.constexpr, TYPE: tl.constexpr):
    """(words of a row that a program has, which of them exist)."""
    HALVES: tl.constexpr = 32 // TYPE.primitive_bitwidth
    at = slab * (U * W) + tl.arange(0, U)[:, None] * W + tl.arange(0, W)[None, :]
    return at, at < K // HALVES


@triton.jit
def _await(words, row, SLABS: tl.constexpr, PADDED: tl.constexpr):
    """The words of a row when all of them are there; 1 in place of those that pad."""
    slabs = tl.arange(0, PADDED)
    at = words + row.to(tl.int64) * SLABS + slabs
    seen = tl.load(at, mask=slabs < SLABS, other=1, volatile=True)
    while tl.min((seen != 0).to(tl.int32), 0) == 0:
        seen = tl.load(at, mask=slabs < SLABS, other=1, volatile=True)
    return seen


@triton.jit
def _probabilities(words, peak, log_sum, TYPE: tl.constexpr, HALF: tl.constexpr):
    return exp2((_logits(words, TYPE, HALF) - peak) * LOG2_E - log_sum * LOG2_E)


@triton.jit
def _pull_of(words, c, low, peak, log_sum, TYPE: tl.constexpr, HALF: tl.constexpr, LOG_SPACE: tl.constexpr):
    """c_k p_jk of a program's part of a row."""
    if LOG_SPACE:
        return exp(((_logits(words, TYPE, HALF) - peak) - log_sum) - low) * c
    else:
        return _probabilities(words, peak, log_sum, TYPE, HALF) * c


@triton.jit
def _gradient_of(words, c, low, peak, log_sum, pull, TYPE: tl.constexpr, HALF: tl.constexpr, LOG_SPACE: tl.constexpr):
    """The gradient of a program's part of a row, but for the label's share."""
    if LOG_SPACE:
        of_class = _pull_of(words, c, low, peak, log_sum, TYPE, HALF, True)
        return _probabilities(words, peak, log_sum, TYPE, HALF) * pull + of_class
    else:
        return _probabilities(words, peak, log_sum, TYPE, HALF) * (c + pull)


@triton.jit
def _statistics_of(stats, row, n, taken):
    """(maximum, log-sum-exp beyond it) of a row."""
    exists = row < taken
    return tl.load(stats + row, mask=exists, other=0.0), tl.load(stats + n + row, mask=exists, other=float("inf"))


@triton.jit(do_not_specialize=["n", "stride"])
def group_backward(
    z, classes, stats, upstream, words, pulls, grad, n, stride, K: tl.constexpr, KP: tl.constexpr, U: tl.constexpr,
    W: tl.constexpr, SLABS: tl.constexpr, PADDED: tl.constexpr, MODE: tl.constexpr, PER_ROW: tl.constexpr,
    LOG_SPACE: tl.constexpr,
):  # fmt: skip
    """The gradient, but for the labels' shares; and each row's tau_j - r_j, scaled. ``stride`` counts 32-bit words.

    Launched without and with ``LOG_SPACE``; which one works and which returns at once is known on the device.
    """
    TYPE: tl.constexpr = z.dtype.element_ty
    HALVES: tl.constexpr = 32 // TYPE.primitive_bitwidth
    slab = tl.program_id(0) % SLABS
    group = tl.program_id(0) // SLABS
    groups = tl.num_programs(0) // SLABS
    at, inside = _columns_of(slab, K, U, W, TYPE)
    extreme = tl.load(classes + VECTORS * KP + EXTREME)
    taken = n
    if LOG_SPACE:
        taken = tl.where(extreme > 0.0, n, 0)
    else:
        taken = tl.where(extreme > 0.0, 0, n)
    scale = 1.0
    if not PER_ROW:
        scale = tl.load(upstream).to(tl.float32) * tl.load(classes + VECTORS * KP + INVERSE_DENOMINATOR)
    c0 = tl.load(classes + at * HALVES, mask=inside, other=0.0) * scale
    c1 = c0
    low0 = c0
    low1 = c0
    if HALVES == 2:
        c1 = tl.load(classes + at * 2 + 1, mask=inside, other=0.0) * scale
    if LOG_SPACE:
        low0 = tl.load(classes + KP + at * HALVES, mask=inside, other=0.0)
        low1 = low0
        if HALVES == 2:
            low1 = tl.load(classes + KP + at * 2 + 1, mask=inside, other=0.0)
    steps = tl.cdiv(tl.maximum(taken - group, 0), groups)
    coming = _load_row(z, group, stride, at, inside, taken, TYPE)
    coming_peak, coming_log = _statistics_of(stats, group, n, taken)
    # Values of their own: Triton takes a name for constant in a loop if it is given the value that it has.
    kept = tl.zeros((U, W), tl.int32)
    kept_peak = coming_peak * 2.0
    kept_log = coming_log * 2.0
    # Unrolled so that the rows in flight need not be moved from register to register.
    for i in tl.range(0, steps + 1, loop_unroll_factor=3):
        row = group + i * groups
        x = coming
        peak = coming_peak
        log_sum = coming_log
        coming = _load_row(z, row + groups, stride, at, inside, taken, TYPE)
        coming_peak, coming_log = _statistics_of(stats, row + groups, n, taken)
        if i < steps:
            pulled = _pull_of(x, c0, low0, peak, log_sum, TYPE, 0, LOG_SPACE)
            if HALVES == 2:
                pulled += _pull_of(x, c1, low1, peak, log_sum, TYPE, 1, LOG_SPACE)
            part = tl.sum(tl.sum(pulled, 0), 0)
            bits = part.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
            # The upper half says that the lower, which may be zero, is there.
            tl.store(words + row.to(tl.int64) * SLABS + slab, bits | (1 << 32))
        if i >= 1:
            done = row - groups
            own = 0.0
            if MODE != 0:
                own = tl.load(stats + 3 * n + done) * scale
                if PER_ROW:
                    own = own * tl.load(upstream + done).to(tl.float32)
            seen = _await(words, done, SLABS, PADDED)
            shares = seen.to(tl.int32).to(tl.float32, bitcast=True)
            pull = own - tl.sum(tl.where(tl.arange(0, PADDED) < SLABS, shares, 0.0), 0)
            g0 = _gradient_of(kept, c0, low0, kept_peak, kept_log, pull, TYPE, 0, LOG_SPACE)
            g1 = g0
            if HALVES == 2:
                g1 = _gradient_of(kept, c1, low1, kept_peak, kept_log, pull, TYPE, 1, LOG_SPACE)
            g = _packed(g0, g1, TYPE)
            if MODE == 1:  # a row that takes no part may hold anything
                g = tl.where(kept_log != float("inf"), g, 0)
            into = grad.to(tl.pointer_type(tl.int32)) + tl.multiple_of(done.to(tl.int64) * (K // HALVES), 4)
            tl.store(into + at, g, mask=inside, eviction_policy="evict_first")
            if slab == 0:
                tl.store(pulls + done, pull)
        kept = x
        kept_peak = peak
        kept_log = log_sum


@triton.jit(do_not_specialize=["n", "stride"])
def group_labels(
    z, first, second, share, weight, classes, stats, upstream, pulls, grad, n, stride, K: tl.constexpr,
    KP: tl.constexpr, R: tl.constexpr, MODE: tl.constexpr, HAS_WEIGHT: tl.constexpr, PER_ROW: tl.constexpr,
):  # fmt: skip
    """Write the gradients of R rows' labels again. ``stride`` counts logits."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    row_ok = rows < n
    scale = 1.0
    if not PER_ROW:
        scale = tl.load(upstream).to(tl.float32) * tl.load(classes + VECTORS * KP + INVERSE_DENOMINATOR)
    pull = tl.load(pulls + rows, mask=row_ok, other=0.0)
    pull = tl.where(scale != 0.0, pull / scale, 0.0)
    write_label_gradients(
        z, first, second, share, weight, classes, stats, upstream, grad, rows, row_ok, pull, scale, 0, K, n, stride,
        0.0, K, KP, MODE, HAS_WEIGHT, False, PER_ROW,
    )  # fmt: skip
