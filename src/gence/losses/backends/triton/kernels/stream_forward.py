"""Forward over rows too long for registers: row statistics, then column sums."""

import triton
import triton.language as tl

from gence.losses.backends.triton.kernels.tiles import (
    LOWEST,
    count_labels,
    exp,
    label_terms,
    softmax_tile,
    store_row_stats,
)

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"


@triton.jit
def row_start(rows, stride, shift, ALIGN: tl.constexpr, PHASES: tl.constexpr):
    """Where rows start, moved down to a whole vector."""
    if PHASES > 1:
        return tl.multiple_of(rows.to(tl.int64) * stride - shift, ALIGN)
    else:  # subtracting nothing would lose the hint together with the operation
        return tl.multiple_of(rows.to(tl.int64) * stride, ALIGN)


@triton.jit
def rows_further(offsets, stride, ALIGN: tl.constexpr, PHASES: tl.constexpr, R: tl.constexpr):
    """Where the next R rows of the phase start."""
    return tl.multiple_of(offsets + stride.to(tl.int64) * (PHASES * R), ALIGN)


@triton.jit
def load_tile(z, offsets, at, live, wide, LAST_LOOK: tl.constexpr, MASKED: tl.constexpr):
    """A tile of logits as float32, -inf outside; the L2 cache is told what will not be read again."""
    where = z + offsets[:, None] + at[None, :]
    policy: tl.constexpr = "evict_first" if LAST_LOOK else ""
    if MASKED:
        mask = live[:, None] & wide[None, :]
        x = tl.load(where, mask=mask, other=float("-inf"), eviction_policy=policy)
    else:
        x = tl.load(where, eviction_policy=policy)
    return x.to(tl.float32)


@triton.jit
def load_classes(values, cols, inside, MASKED: tl.constexpr):
    """Values of a block's classes, 0 outside."""
    if MASKED:
        return tl.load(values + cols, mask=inside, other=0.0)
    else:
        return tl.load(values + cols)


@triton.jit
def columns(block, base, stride, K: tl.constexpr, PHASES: tl.constexpr, C: tl.constexpr):
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
def is_edge(block, K: tl.constexpr, C: tl.constexpr, PHASES: tl.constexpr):
    """Whether a block of columns may hold ends of rows: then some of its lanes are not columns of their rows."""
    edge = block >= K // C
    if PHASES > 1:
        edge = edge | (block == 0)
    return edge


# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM102 - a compile-time choice in Triton is an if statement


@triton.jit
def _row_piece(
    z, row, piece, first, weight, stride, t_stride, eps, K: tl.constexpr, ALIGN: tl.constexpr, PHASES: tl.constexpr,
    PIECES: tl.constexpr, U: tl.constexpr, W: tl.constexpr, MODE: tl.constexpr, IGNORE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """(maximum, sum of exponentials beyond it, weighted target sums) of a piece of a row.

    Maxima are kept per vector, so no step waits for another thread. The target sums are those of dense targets:
    sum_k w_k t_k (z_k - maximum) and sum_k w_k t_k. Like the exponentials they are taken relative to the maximum so
    far: any fixed logit could be one that masks its class with a huge number, which would swallow the others' digits.
    """
    VECTOR: tl.constexpr = 128 // z.dtype.element_ty.primitive_bitwidth
    PIECE: tl.constexpr = ((K + PHASES - 1 + PIECES * U * W - 1) // (PIECES * U * W)) * U * W
    offset = row.to(tl.int64) * stride
    shift = 0
    if PHASES > 1:
        shift = (offset % PHASES).to(tl.int32)
    stop = tl.minimum(piece * PIECE + PIECE, K + PHASES - 1)
    if MODE == 1:
        stop = tl.where(tl.load(first + row) == IGNORE, 0, stop)  # an ignored row is not even read
    start = piece * PIECE
    top = tl.full((W // VECTOR,), LOWEST, tl.float32)
    total = tl.zeros((W // VECTOR,), tl.float32)
    dot = tl.zeros((W // VECTOR,), tl.float32)
    mass = tl.zeros((W // VECTOR,), tl.float32)
    aligned = z + row_start(row, stride, shift, ALIGN, PHASES)
    if MODE == 0 or not (SMOOTH or MODE == 3):
        # Only the ends of a row need masks.
        if PHASES > 1:
            if (start == 0) & (stop > 0):
                x = _load_step(aligned, 0, shift, K, PHASES, U, W, True)
                top, total = _add_exponentials(x, top, total, VECTOR)
                start += U * W
        whole_stop = tl.minimum(stop, K) - U * W + 1
        for at in tl.range(start, whole_stop, U * W, num_stages=STAGES):
            x = _load_step(aligned, at, shift, K, PHASES, U, W, False)
            top, total = _add_exponentials(x, top, total, VECTOR)
        start += tl.cdiv(tl.maximum(whole_stop - start, 0), U * W) * (U * W)
    for at in range(start, stop, U * W):
        x = _load_step(aligned, at, shift, K, PHASES, U, W, True)
        before = top
        top, total = _add_exponentials(x, top, total, VECTOR)
        if MODE != 0 and (SMOOTH or MODE == 3):
            cols = at + tl.arange(0, U)[:, None] * W + tl.arange(0, W)[None, :] - shift
            inside = (cols >= 0) & (cols < K)
            t = tl.where(inside, 1.0, 0.0)
            if MODE == 3:
                t = tl.load(first + row.to(tl.int64) * t_stride + cols, mask=inside, other=0.0).to(tl.float32)
                if SMOOTH:
                    t = tl.where(inside, (1.0 - eps) * t + eps / K, 0.0)
            if HAS_WEIGHT:
                t = t * tl.load(weight + cols, mask=inside, other=0.0).to(tl.float32)
            beyond = tl.reshape(x, (U, W // VECTOR, VECTOR)) - top[None, :, None]
            t = tl.reshape(t, (U, W // VECTOR, VECTOR))
            part = tl.where(t != 0.0, t * beyond, 0.0)
            dot = _moved(dot, mass, before, top) + tl.sum(tl.sum(part, 2), 0)
            mass += tl.sum(tl.sum(t, 2), 0)
    peak = tl.max(top, 0)
    return peak, tl.sum(total * exp(top - peak), 0), tl.sum(_moved(dot, mass, top, peak), 0), tl.sum(mass, 0)


@triton.jit
def _load_step(
    aligned, start, shift, K: tl.constexpr, PHASES: tl.constexpr, U: tl.constexpr, W: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """Logits (U, W) of a step along a row as float32, -inf outside of it."""
    at = start + tl.arange(0, U)[:, None] * W + tl.arange(0, W)[None, :]
    if EDGE:
        # Constant within a vector; the neighbours' logits that come along are dropped below.
        mask = (at // PHASES) * PHASES < K + shift
        x = tl.load(aligned + at, mask=mask, other=float("-inf"))
        if PHASES > 1:
            x = tl.where((at >= shift) & (at < K + shift), x, float("-inf"))
    else:
        x = tl.load(aligned + at)
    return x.to(tl.float32)


@triton.jit
def _add_exponentials(x, top, total, VECTOR: tl.constexpr):
    """The maxima and sums of exponentials so far, and those of one more step; one of each for a thread's vector."""
    x = tl.reshape(x, (x.shape[0], x.shape[1] // VECTOR, VECTOR))
    higher = tl.maximum(top, tl.max(tl.max(x, 2), 0))
    return higher, total * exp(top - higher) + tl.sum(tl.sum(exp(x - higher[None, :, None]), 2), 0)


@triton.jit
def _moved(dot, mass, before, after):
    """The sums of t (z - before) as sums of t (z - after)."""
    return dot + tl.where(mass != 0.0, mass * (before - after), 0.0)


@triton.jit
def _row_statistics(
    z, row, first, second, share, weight, sums, stats, peak, total, dot, mass, n, stride, eps, K: tl.constexpr,
    KP: tl.constexpr, MODE: tl.constexpr, IGNORE: tl.constexpr, HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """Keep a row's maximum, log-sum-exp, cost and tau, and count its label."""
    taken = n
    if MODE == 1:
        taken = tl.where(tl.load(first + row) == IGNORE, 0, n)
    log_sum = tl.log(total)
    rows = row + tl.arange(0, 1)
    valid = rows < taken
    peaks = tl.where(valid, peak, 0.0)
    log_sums = tl.where(valid, log_sum, 0.0)
    cost = tl.zeros((1,), tl.float32)
    tau = tl.zeros((1,), tl.float32)
    if MODE == 3:
        tau += mass
        cost += mass * log_sum - dot
    elif MODE != 0:
        cost, tau = label_terms(
            z, rows, rows.to(tl.int64) * stride, valid, peaks, log_sums, first, second, share, weight, K, MODE,
            HAS_WEIGHT,
        )  # fmt: skip
        if SMOOTH:
            cost = (1.0 - eps) * cost + (eps / K) * (mass * log_sum - dot)
            tau = (1.0 - eps) * tau + (eps / K) * mass
    store_row_stats(stats, rows, rows < n, valid, n, peaks, log_sums, cost, tau)
    if COUNT:
        count_labels(sums + KP, rows, valid, first, second, share, K, MODE)


@triton.jit
def row_pass(
    z, row, piece, first, second, share, weight, sums, stats, pieces, row_counter, with_ignored, n, stride, t_stride,
    eps, K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr, PHASES: tl.constexpr, PIECES: tl.constexpr,
    U: tl.constexpr, W: tl.constexpr, MODE: tl.constexpr, IGNORE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr, COUNT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A piece of a row; whoever does the last one makes the row's statistics, and marks a chunk with an ignored row."""
    peak, total, dot, mass = _row_piece(
        z, row, piece, first, weight, stride, t_stride, eps, K, ALIGN, PHASES, PIECES, U, W, MODE, IGNORE, HAS_WEIGHT,
        SMOOTH, STAGES,
    )  # fmt: skip
    done = PIECES - 1
    if PIECES > 1:
        at = pieces + (row.to(tl.int64) * PIECES + piece) * 4
        tl.store(at, peak)
        tl.store(at + 1, total)
        tl.store(at + 2, dot)
        tl.store(at + 3, mass)
        tl.debug_barrier()  # the piece comes before the tick
        done = tl.atomic_add(row_counter, 1, sem="acq_rel")
    if done == PIECES - 1:
        if PIECES > 1:
            of = pieces + (row.to(tl.int64) * PIECES + tl.arange(0, PIECES)) * 4
            peaks = tl.load(of, cache_modifier=".cg")
            peak = tl.max(peaks, 0)
            total = tl.sum(tl.load(of + 1, cache_modifier=".cg") * exp(peaks - peak), 0)
            masses = tl.load(of + 3, cache_modifier=".cg")
            dot = tl.sum(_moved(tl.load(of + 2, cache_modifier=".cg"), masses, peaks, peak), 0)
            mass = tl.sum(masses, 0)
        _row_statistics(
            z, row, first, second, share, weight, sums, stats, peak, total, dot, mass, n, stride, eps, K, KP, MODE,
            IGNORE, HAS_WEIGHT, SMOOTH, COUNT,
        )  # fmt: skip
        if MODE == 1:
            if tl.load(first + row) == IGNORE:
                tl.store(with_ignored, 1)


# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"


@triton.jit
def _chunk_sums(
    z, stats, base, at, shift, wide, n, stride, ALIGN: tl.constexpr, PHASES: tl.constexpr, CHUNK: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    acc = tl.zeros((C,), tl.float32)
    offsets = row_start(base + PHASES * tl.arange(0, R), stride, shift, ALIGN, PHASES)
    for i in tl.range(0, CHUNK // PHASES, R, num_stages=1 if MASKED else STAGES):
        rows = base + PHASES * (i + tl.arange(0, R))
        if MASKED:
            peak = tl.load(stats + rows, mask=rows < n, other=0.0)
            log_sum = tl.load(stats + n + rows, mask=rows < n, other=float("inf"))
        else:
            peak = tl.load(stats + rows)
            log_sum = tl.load(stats + n + rows)
        x = load_tile(z, offsets, at, log_sum != float("inf"), wide, True, MASKED)
        acc += tl.sum(softmax_tile(x, peak, log_sum), 0)
        offsets = rows_further(offsets, stride, ALIGN, PHASES, R)
    return acc


@triton.jit
def _column_sums(
    z, sums, stats, chunk, phase, block, with_ignored, n, stride, K: tl.constexpr, KP: tl.constexpr,
    ALIGN: tl.constexpr, PHASES: tl.constexpr, CHUNK: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    PARTIAL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """sum_j p_jk over a chunk's rows of one phase, for one block of columns."""
    base = chunk * CHUNK + phase
    at, shift, cols, inside, wide = columns(block, base, stride, K, PHASES, C)
    if with_ignored | (chunk * CHUNK + CHUNK > n) | is_edge(block, K, C, PHASES):
        acc = _chunk_sums(z, stats, base, at, shift, wide, n, stride, ALIGN, PHASES, CHUNK, R, C, STAGES, True)
    else:
        acc = _chunk_sums(z, stats, base, at, shift, wide, n, stride, ALIGN, PHASES, CHUNK, R, C, STAGES, False)
    if PARTIAL:
        slot = (chunk * PHASES + phase).to(tl.int64) * KP
        tl.store(sums + 2 * KP + slot + cols, acc, mask=inside)
    else:
        tl.atomic_add(sums + cols, acc, mask=inside, sem="relaxed")


@triton.jit(do_not_specialize=["n", "stride", "t_stride", "counters_at"])
def stream_rows(
    z, first, second, share, weight, sums, stats, pieces, n, stride, t_stride, counters_at, eps, K: tl.constexpr,
    KP: tl.constexpr, ALIGN: tl.constexpr, PHASES: tl.constexpr, CHUNK: tl.constexpr, PIECES: tl.constexpr,
    U: tl.constexpr, W: tl.constexpr, MODE: tl.constexpr, IGNORE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr, COUNT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """First look: row statistics."""
    counters = (sums + counters_at).to(tl.pointer_type(tl.int32))
    of_rows = counters + tl.cdiv(n, CHUNK)
    for item in range(tl.program_id(0), n * PIECES, tl.num_programs(0)):
        row = item // PIECES
        row_pass(
            z, row, item % PIECES, first, second, share, weight, sums, stats, pieces, of_rows + row,
            counters + row // CHUNK, n, stride, t_stride, eps, K, KP, ALIGN, PHASES, PIECES, U, W, MODE, IGNORE,
            HAS_WEIGHT, SMOOTH, COUNT, STAGES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n", "stride", "counters_at"])
def stream_columns(
    z, sums, stats, n, stride, counters_at, K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr,
    PHASES: tl.constexpr, CHUNK: tl.constexpr, R: tl.constexpr, C: tl.constexpr, PARTIAL: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Second look: column sums, from the last chunk to the first."""
    counters = (sums + counters_at).to(tl.pointer_type(tl.int32))
    BLOCKS: tl.constexpr = (K + PHASES - 1 + C - 1) // C
    items = tl.cdiv(n, CHUNK) * (PHASES * BLOCKS)
    for turn in range(tl.program_id(0), items, tl.num_programs(0)):
        item = items - 1 - turn
        chunk = item // (PHASES * BLOCKS)
        item = item % (PHASES * BLOCKS)
        _column_sums(
            z, sums, stats, chunk, item // BLOCKS, item % BLOCKS, tl.load(counters + chunk) != 0, n, stride, K, KP,
            ALIGN, PHASES, CHUNK, R, C, PARTIAL, STAGES,
        )  # fmt: skip
