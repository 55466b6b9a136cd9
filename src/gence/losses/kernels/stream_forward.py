"""Forward over rows too long for registers: row statistics, then column sums while the rows are in the cache."""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement

import triton
import triton.language as tl

from gence.losses.kernels.stream import columns, load_tile, row_start, wait_for
from gence.losses.kernels.tiles import count_labels, label_terms, store_row_stats


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
    aligned = row_start(row, stride, shift, ALIGN, PHASES)
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
    at, shift, cols, inside, wide = columns(block, base, stride, K, PHASES, C)
    acc = tl.zeros((C,), tl.float32)
    for i in range(0, CHUNK // PHASES, R):
        rows = base + PHASES * (i + tl.arange(0, R))
        row_ok = rows < n
        # Written by other programs during this launch: read past the L1 cache.
        peak = tl.load(stats + rows, mask=row_ok, other=0.0, cache_modifier=".cg")
        log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"), cache_modifier=".cg")
        live = row_ok & (log_sum != float("inf"))
        offsets = row_start(rows, stride, shift, ALIGN, PHASES)
        x = load_tile(z, offsets, at, live[:, None] & wide[None, :], KEEP, True)
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
            wait_for(counters + 1 + step - LAG, CHUNK)
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
