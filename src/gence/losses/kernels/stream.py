"""Rows too long for registers. Work is handed out in an order that makes the second look at a row hit the L2 cache.

Both passes look at each row twice: once for a row sum, and once for what needs that sum. Rows are taken in chunks of a
few megabytes. Programs draw tickets from one counter; a ticket names an item, and items are listed as

    row sums of chunk 0, ..., row sums of chunk s, second look at chunk s - LAG, row sums of chunk s + 1, ...

A second-look item waits until all row-sum items of its chunk are done. They carry smaller tickets, so whoever holds
them is running and never waits for a larger one: no deadlock, however few programs are resident.

``PHASES``: rows of K logits with K no multiple of the 16-byte vector start at changing alignments. Every ``PHASES``-th
row starts at the same one, so a tile takes every ``PHASES``-th row and shifts its columns by the common remainder:
loads and stores are full vectors again.
"""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement

import triton
import triton.language as tl

from gence.losses.kernels.tiles import (
    EXTREME,
    INVERSE_DENOMINATOR,
    class_pull,
    count_labels,
    label_terms,
    store_row_stats,
    weighted_target_tile,
)


@triton.jit
def _row_start(rows, stride, shift, ALIGN: tl.constexpr, PHASES: tl.constexpr):
    """Where rows start, moved down to a whole vector."""
    if PHASES > 1:
        return tl.multiple_of(rows.to(tl.int64) * stride - shift, ALIGN)
    else:  # subtracting nothing would lose the hint together with the operation
        return tl.multiple_of(rows.to(tl.int64) * stride, ALIGN)


@triton.jit
def _row_pass(
    z,
    row,
    first,
    second,
    share,
    weight,
    sums,
    stats,
    n,
    stride,
    t_stride,
    eps,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    U: tl.constexpr,
    W: tl.constexpr,
    MODE: tl.constexpr,
    IGNORE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
    COUNT: tl.constexpr,
    KEEP: tl.constexpr,
):
    """One row's maximum, log-sum-exp, cost and tau. Maxima are kept per lane, so no step waits for another thread."""
    offset = row.to(tl.int64) * stride
    shift = 0
    if PHASES > 1:
        shift = (offset % PHASES).to(tl.int32)
    stop = K + PHASES - 1
    taken = n
    if MODE == 1:
        ignored = tl.load(first + row) == IGNORE
        stop = tl.where(ignored, 0, stop)  # an ignored row is not even read
        taken = tl.where(ignored, 0, n)
    lane = tl.arange(0, U)[:, None] * W + tl.arange(0, W)[None, :]
    top = tl.full((W,), -3.0e38, tl.float32)
    total = tl.zeros((W,), tl.float32)
    # For dense targets: sum_k w_k t_k (z_k - reference) and sum_k w_k t_k, the reference being the row's first logit.
    dot = tl.zeros((W,), tl.float32)
    mass = tl.zeros((W,), tl.float32)
    reference = 0.0
    if MODE != 0 and (SMOOTH or MODE == 3):
        reference = tl.load(z + offset).to(tl.float32)
        reference = tl.where(tl.abs(reference) < 1.0e30, reference, 0.0)
    aligned = _row_start(row, stride, shift, ALIGN, PHASES)
    for start in range(0, stop, U * W):
        at = start + lane
        if PHASES > 1:
            # The mask is constant within a vector; the neighbours' logits that come along are dropped below.
            mask = (at // PHASES) * PHASES < K + shift
        else:
            mask = at < K
        if KEEP:
            x = tl.load(z + aligned + at, mask=mask, other=float("-inf"), eviction_policy="evict_last")
        else:
            x = tl.load(z + aligned + at, mask=mask, other=float("-inf"))
        x = x.to(tl.float32)
        cols = at - shift
        inside = (cols >= 0) & (cols < K)
        if PHASES > 1:
            x = tl.where(inside, x, float("-inf"))
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)
        top = higher
        if MODE != 0 and (SMOOTH or MODE == 3):
            t = tl.where(inside, 1.0, 0.0)
            if MODE == 3:
                t = tl.load(first + row.to(tl.int64) * t_stride + cols, mask=inside, other=0.0).to(tl.float32)
                if SMOOTH:
                    t = tl.where(inside, (1.0 - eps) * t + eps / K, 0.0)
            if HAS_WEIGHT:
                t = t * tl.load(weight + cols, mask=inside, other=0.0).to(tl.float32)
            dot += tl.sum(tl.where(inside, t * (x - reference), 0.0), 0)
            mass += tl.sum(t, 0)
    peak = tl.max(top, 0)
    log_sum = tl.log(tl.sum(total * tl.exp(top - peak), 0))

    rows = row + tl.arange(0, 1)
    valid = rows < taken
    peaks = tl.where(valid, peak, 0.0)
    log_sums = tl.where(valid, log_sum, 0.0)
    cost = tl.zeros((1,), tl.float32)
    tau = tl.zeros((1,), tl.float32)
    if MODE == 3:
        tau += tl.sum(mass, 0)
        cost += tau * (log_sum + (peak - reference)) - tl.sum(dot, 0)
    elif MODE != 0:
        cost, tau = label_terms(
            z,
            rows,
            rows.to(tl.int64) * stride,
            valid,
            peaks,
            log_sums,
            first,
            second,
            share,
            weight,
            K,
            MODE,
            HAS_WEIGHT,
        )
        if SMOOTH:
            whole = tl.sum(mass, 0)
            spread = whole * (log_sum + (peak - reference)) - tl.sum(dot, 0)
            cost = (1.0 - eps) * cost + (eps / K) * spread
            tau = (1.0 - eps) * tau + (eps / K) * whole
    store_row_stats(stats, rows, rows < n, valid, n, peaks, log_sums, cost, tau)
    if COUNT:
        count_labels(sums + KP, rows, valid, first, second, share, K, MODE)


@triton.jit
def _wait_for(counter, value):
    seen = tl.atomic_add(counter, 0, sem="acquire")
    while seen < value:
        seen = tl.atomic_add(counter, 0, sem="acquire")


@triton.jit
def _load_tile(z, offsets, at, mask, KEEP: tl.constexpr, LAST_LOOK: tl.constexpr):
    """A tile of logits as float32, -inf outside; ``KEEP`` tells the L2 cache what will be read again."""
    where = z + offsets[:, None] + at[None, :]
    if KEEP and LAST_LOOK:
        x = tl.load(where, mask=mask, other=float("-inf"), eviction_policy="evict_first")
    elif KEEP:
        x = tl.load(where, mask=mask, other=float("-inf"), eviction_policy="evict_last")
    else:
        x = tl.load(where, mask=mask, other=float("-inf"))
    return x.to(tl.float32)


@triton.jit
def _columns(block, base, stride, K: tl.constexpr, PHASES: tl.constexpr, C: tl.constexpr):
    """(lane positions, shift, columns, which lanes are columns, which lanes to load) of a block of columns."""
    at = block * C + tl.arange(0, C)
    if PHASES > 1:
        shift = (base.to(tl.int64) * stride % PHASES).to(tl.int32)
        cols = at - shift
        inside = (cols >= 0) & (cols < K)
        # Constant within a vector; the neighbours' logits that come along are dropped by the caller.
        wide = (at // PHASES) * PHASES < K + shift
    else:
        shift = 0
        cols = at
        inside = at < K
        wide = inside
    return at, shift, cols, inside, wide


@triton.jit
def _column_sums(
    z,
    sums,
    stats,
    chunk,
    phase,
    block,
    n,
    stride,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    CHUNK: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    PARTIAL: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Second look forward: sum_j p_jk over a chunk's rows of one phase, for one block of columns."""
    base = chunk * CHUNK + phase
    at, shift, cols, inside, wide = _columns(block, base, stride, K, PHASES, C)
    acc = tl.zeros((C,), tl.float32)
    for i in range(0, CHUNK // PHASES, R):
        rows = base + PHASES * (i + tl.arange(0, R))
        row_ok = rows < n
        # Written by other programs during this launch: read past the L1 cache.
        peak = tl.load(stats + rows, mask=row_ok, other=0.0, cache_modifier=".cg")
        log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"), cache_modifier=".cg")
        live = row_ok & (log_sum != float("inf"))
        offsets = _row_start(rows, stride, shift, ALIGN, PHASES)
        x = _load_tile(z, offsets, at, live[:, None] & wide[None, :], KEEP, True)
        acc += tl.sum(tl.exp((x - peak[:, None]) - log_sum[:, None]), 0)
    if PARTIAL:
        slot = (chunk * PHASES + phase).to(tl.int64) * KP
        tl.store(sums + 2 * KP + slot + cols, acc, mask=inside)
    else:
        tl.atomic_add(sums + cols, acc, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["n", "stride", "t_stride", "counters_at"])
def stream_forward(
    z,
    first,
    second,
    share,
    weight,
    sums,
    stats,
    n,
    stride,
    t_stride,
    counters_at,
    eps,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    CHUNK: tl.constexpr,
    LAG: tl.constexpr,
    U: tl.constexpr,
    W: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    MODE: tl.constexpr,
    IGNORE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
    COUNT: tl.constexpr,
    PARTIAL: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Row statistics (first look) and column sums (second look)."""
    counters = (sums + counters_at).to(tl.pointer_type(tl.int32))
    BLOCKS: tl.constexpr = (K + PHASES - 1 + C - 1) // C
    PER_STEP: tl.constexpr = CHUNK + PHASES * BLOCKS
    chunks = tl.cdiv(n, CHUNK)
    tickets = (chunks + LAG) * PER_STEP
    ticket = tl.atomic_add(counters, 1, sem="relaxed")
    while ticket < tickets:
        following = tl.atomic_add(counters, 1, sem="relaxed")
        step = ticket // PER_STEP
        item = ticket % PER_STEP
        if item < CHUNK:
            row = step * CHUNK + item
            if row < n:
                _row_pass(
                    z,
                    row,
                    first,
                    second,
                    share,
                    weight,
                    sums,
                    stats,
                    n,
                    stride,
                    t_stride,
                    eps,
                    K,
                    KP,
                    ALIGN,
                    PHASES,
                    U,
                    W,
                    MODE,
                    IGNORE,
                    HAS_WEIGHT,
                    SMOOTH,
                    COUNT,
                    KEEP,
                )
            if step < chunks:
                tl.debug_barrier()  # the row's statistics come before the tick
                tl.atomic_add(counters + 1 + step, 1, sem="release")
        elif step >= LAG:
            _wait_for(counters + 1 + step - LAG, CHUNK)
            _column_sums(
                z,
                sums,
                stats,
                step - LAG,
                (item - CHUNK) // BLOCKS,
                (item - CHUNK) % BLOCKS,
                n,
                stride,
                K,
                KP,
                ALIGN,
                PHASES,
                CHUNK,
                R,
                C,
                PARTIAL,
                KEEP,
            )
        ticket = following


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
        at, shift, cols, inside, wide = _columns(block, base, stride, K, PHASES, C)
        c = tl.load(classes + cols, mask=inside, other=0.0)
        low = tl.zeros((C,), tl.float32)
        if LOG_SPACE:
            low = tl.load(classes + KP + cols, mask=inside, other=0.0)
        offsets = _row_start(rows, stride, shift, ALIGN, PHASES)
        x = _load_tile(z, offsets, at, live[:, None] & wide[None, :], KEEP, False)
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
    at, shift, cols, inside, wide = _columns(block, base, stride, K, PHASES, C)
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
        offsets = _row_start(rows, stride, shift, ALIGN, PHASES)
        x = _load_tile(z, offsets, at, live[:, None] & wide[None, :], KEEP, True)
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
            _wait_for(counters + 1 + step - LAG, SUMS)
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
