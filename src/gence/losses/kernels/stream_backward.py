"""Backward over rows too long for registers: each row's pull, then its gradient while it is in the cache."""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement

import triton
import triton.language as tl

from gence.losses.kernels.stream import columns, load_tile, row_start, wait_for
from gence.losses.kernels.tiles import EXTREME, INVERSE_DENOMINATOR, class_pull, weighted_target_tile


@triton.jit
def _pull_sums(
    z,
    classes,
    stats,
    pulls,
    chunk,
    group,
    piece,
    n,
    stride,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIECES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    KEEP: tl.constexpr,
    LOG_SPACE: tl.constexpr,
):
    """First look backward: a piece of r_j = sum_k c_k p_jk for R rows."""
    PIECE: tl.constexpr = (BLOCKS + PIECES - 1) // PIECES
    base = chunk * CHUNK + group % PHASES
    rows = base + PHASES * ((group // PHASES) * R + tl.arange(0, R))
    row_ok = rows < n
    peak = tl.load(stats + rows, mask=row_ok, other=0.0)
    log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"))
    live = row_ok & (log_sum != float("inf"))
    acc = tl.zeros((R, C), tl.float32)
    for block in range(piece * PIECE, tl.minimum(piece * PIECE + PIECE, BLOCKS)):
        at, shift, cols, inside, wide = columns(block, base, stride, K, PHASES, C)
        c = tl.load(classes + cols, mask=inside, other=0.0)
        low = tl.zeros((C,), tl.float32)
        if LOG_SPACE:
            low = tl.load(classes + KP + cols, mask=inside, other=0.0)
        offsets = row_start(rows, stride, shift, ALIGN, PHASES)
        x = load_tile(z, offsets, at, live[:, None] & wide[None, :], KEEP, False)
        if PHASES > 1:
            x = tl.where(inside[None, :], x, float("-inf"))
        log_p = (x - peak[:, None]) - log_sum[:, None]
        acc += class_pull(log_p, c, low)
    tl.store(pulls + rows.to(tl.int64) * PIECES + piece, tl.sum(acc, 1), mask=row_ok)


@triton.jit
def _write_gradient(
    z,
    first,
    second,
    share,
    weight,
    classes,
    stats,
    upstream,
    pulls,
    grad,
    scale,
    chunk,
    phase,
    block,
    n,
    stride,
    t_stride,
    eps,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIECES: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
    PER_ROW: tl.constexpr,
    KEEP: tl.constexpr,
    LOG_SPACE: tl.constexpr,
):
    """Second look backward: the gradient of a chunk's rows of one phase, for one block of columns."""
    base = chunk * CHUNK + phase
    at, shift, cols, inside, wide = columns(block, base, stride, K, PHASES, C)
    c = tl.load(classes + cols, mask=inside, other=0.0)
    if LOG_SPACE:
        low = tl.load(classes + KP + cols, mask=inside, other=0.0)
    for i in range(0, CHUNK // PHASES, R):
        rows = base + PHASES * (i + tl.arange(0, R))
        row_ok = rows < n
        peak = tl.load(stats + rows, mask=row_ok, other=0.0)
        log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"))
        live = row_ok & (log_sum != float("inf"))
        parts = rows.to(tl.int64)[:, None] * PIECES + tl.arange(0, PIECES)[None, :]
        r = tl.sum(tl.load(pulls + parts, mask=row_ok[:, None], other=0.0, cache_modifier=".cg"), 1)
        offsets = row_start(rows, stride, shift, ALIGN, PHASES)
        x = load_tile(z, offsets, at, live[:, None] & wide[None, :], KEEP, True)
        log_p = (x - peak[:, None]) - log_sum[:, None]
        p = tl.exp(log_p)
        if LOG_SPACE:
            q = class_pull(log_p, c, low)
        else:
            q = p * c[None, :]
        wt = weighted_target_tile(
            rows,
            cols,
            live,
            live[:, None] & inside[None, :],
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
        own = tl.zeros((R,), tl.float32)
        if MODE != 0:
            own = tl.load(stats + 3 * n + rows, mask=row_ok, other=0.0)
            if PER_ROW:
                of_row = tl.load(upstream + rows, mask=row_ok, other=0.0).to(tl.float32)
                own = own * of_row
                wt = wt * of_row[:, None]
        g = (p * (own - r)[:, None] + q - wt) * scale
        g = tl.where(live[:, None], g, 0.0).to(grad.dtype.element_ty)
        if PHASES > 1:
            # The gradient is laid out as the logits are. Whole vectors first, then the ragged ends of the rows.
            where = grad + offsets[:, None] + at[None, :]
            start = (at // PHASES) * PHASES - shift
            full = (start >= 0) & (start + PHASES <= K)
            tl.store(where, g, mask=row_ok[:, None] & full[None, :])
            if (block == 0) | (block >= BLOCKS - 2):
                tl.store(where, g, mask=row_ok[:, None] & (inside & (full == 0))[None, :])
        else:
            out_at = rows.to(tl.int64) * K
            tl.store(grad + out_at[:, None] + at[None, :], g, mask=row_ok[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["n", "stride", "t_stride"])
def stream_backward(
    z,
    first,
    second,
    share,
    weight,
    classes,
    stats,
    upstream,
    pulls,
    counters,
    grad,
    n,
    stride,
    t_stride,
    eps,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    CHUNK: tl.constexpr,
    LAG: tl.constexpr,
    PIECES: tl.constexpr,
    SUM_ROWS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
    PER_ROW: tl.constexpr,
    KEEP: tl.constexpr,
    LOG_SPACE: tl.constexpr,
):
    """r_j in ``PIECES`` parts per row (first look) and the gradient (second look). Deterministic as it stands.

    Launched twice, without and with ``LOG_SPACE``; which one works and which returns at once is known on the device.
    In one kernel the rare case would take its registers from the usual one.
    """
    BLOCKS: tl.constexpr = (K + PHASES - 1 + C - 1) // C
    SUMS: tl.constexpr = (CHUNK // SUM_ROWS) * PIECES
    PER_STEP: tl.constexpr = SUMS + PHASES * BLOCKS
    extreme = tl.load(classes + 3 * KP + EXTREME)
    scale = 1.0
    if not PER_ROW:
        scale = tl.load(upstream).to(tl.float32) * tl.load(classes + 3 * KP + INVERSE_DENOMINATOR)
    chunks = tl.cdiv(n, CHUNK)
    tickets = (chunks + LAG) * PER_STEP
    mine = extreme <= 0.0
    if LOG_SPACE:
        mine = extreme > 0.0
    ticket = tickets
    if mine:
        ticket = tl.atomic_add(counters, 1, sem="relaxed")
    while ticket < tickets:
        following = tl.atomic_add(counters, 1, sem="relaxed")
        step = ticket // PER_STEP
        item = ticket % PER_STEP
        if item < SUMS:
            if step < chunks:
                _pull_sums(
                    z,
                    classes,
                    stats,
                    pulls,
                    step,
                    item // PIECES,
                    item % PIECES,
                    n,
                    stride,
                    K,
                    KP,
                    ALIGN,
                    PHASES,
                    CHUNK,
                    BLOCKS,
                    PIECES,
                    SUM_ROWS,
                    C,
                    KEEP,
                    LOG_SPACE,
                )
                tl.debug_barrier()  # the sums come before the tick
                tl.atomic_add(counters + 1 + step, 1, sem="release")
        elif step >= LAG:
            wait_for(counters + 1 + step - LAG, SUMS)
            _write_gradient(
                z,
                first,
                second,
                share,
                weight,
                classes,
                stats,
                upstream,
                pulls,
                grad,
                scale,
                step - LAG,
                (item - SUMS) // BLOCKS,
                (item - SUMS) % BLOCKS,
                n,
                stride,
                t_stride,
                eps,
                K,
                KP,
                ALIGN,
                PHASES,
                CHUNK,
                BLOCKS,
                PIECES,
                R,
                C,
                MODE,
                HAS_WEIGHT,
                SMOOTH,
                PER_ROW,
                KEEP,
                LOG_SPACE,
            )
        ticket = following
