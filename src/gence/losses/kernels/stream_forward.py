"""Forward over rows too long for registers: row statistics, then column sums while the rows are in the cache."""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from gence.losses.kernels.exponent import softmax_tile
from gence.losses.kernels.stream import (
    columns,
    first_ticket,
    is_edge,
    item_of,
    load_tile,
    next_ticket,
    row_start,
    rows_further,
    tickets_of,
    wait_for,
)
from gence.losses.kernels.stream_rows import row_pass


@triton.jit
def _chunk_sums(
    z,
    stats,
    base,
    at,
    shift,
    wide,
    n,
    stride,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    CHUNK: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    KEEP: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
):
    acc = tl.zeros((C,), tl.float32)
    offsets = row_start(base + PHASES * tl.arange(0, R), stride, shift, ALIGN, PHASES)
    for i in tl.range(0, CHUNK // PHASES, R, num_stages=1 if MASKED else STAGES):
        rows = base + PHASES * (i + tl.arange(0, R))
        # Written by other programs during this launch: read past the L1 cache.
        if MASKED:
            peak = tl.load(stats + rows, mask=rows < n, other=0.0, cache_modifier=".cg")
            log_sum = tl.load(stats + n + rows, mask=rows < n, other=float("inf"), cache_modifier=".cg")
        else:
            peak = tl.load(stats + rows, cache_modifier=".cg")
            log_sum = tl.load(stats + n + rows, cache_modifier=".cg")
        x = load_tile(z, offsets, at, log_sum != float("inf"), wide, KEEP, True, MASKED)
        acc += tl.sum(softmax_tile(x, peak, log_sum), 0)
        offsets = rows_further(offsets, stride, ALIGN, PHASES, R)
    return acc


@triton.jit
def _column_sums(
    z,
    sums,
    stats,
    chunk,
    phase,
    block,
    with_ignored,
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
    STAGES: tl.constexpr,
):
    """Second look forward: sum_j p_jk over a chunk's rows of one phase, for one block of columns."""
    base = chunk * CHUNK + phase
    at, shift, cols, inside, wide = columns(block, base, stride, K, PHASES, C)
    if with_ignored | (chunk * CHUNK + CHUNK > n) | is_edge(block, K, C, PHASES):
        acc = _chunk_sums(z, stats, base, at, shift, wide, n, stride, ALIGN, PHASES, CHUNK, R, C, KEEP, STAGES, True)
    else:
        acc = _chunk_sums(z, stats, base, at, shift, wide, n, stride, ALIGN, PHASES, CHUNK, R, C, KEEP, STAGES, False)
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
    pieces,
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
    PIECES: tl.constexpr,
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
    STAGES: tl.constexpr,
    LOOK: tl.constexpr,
):
    """Row statistics (first look) and column sums (second look)."""
    counters = (sums + counters_at).to(tl.pointer_type(tl.int32))
    BLOCKS: tl.constexpr = (K + PHASES - 1 + C - 1) // C
    chunks = tl.cdiv(n, CHUNK)
    ticket = first_ticket(counters, LOOK)
    while ticket < tickets_of(chunks, CHUNK * PIECES, PHASES * BLOCKS, LOOK):
        following = next_ticket(counters, ticket, LOOK)
        is_first, chunk, item = item_of(ticket, chunks, LAG, CHUNK * PIECES, PHASES * BLOCKS, LOOK)
        if is_first:
            row = chunk * CHUNK + item // PIECES
            if row < n:
                row_pass(
                    z, row, item % PIECES, first, second, share, weight, sums, stats, pieces,
                    counters + 1 + chunks + row, counters + 1 + chunk, n, stride, t_stride, eps, K, KP, ALIGN, PHASES,
                    PIECES, U, W, MODE, IGNORE, HAS_WEIGHT, SMOOTH, COUNT, KEEP, STAGES,
                )  # fmt: skip
        else:
            with_ignored = wait_for(counters + 1 + chunk, tl.minimum(CHUNK, n - chunk * CHUNK), LOOK)
            _column_sums(
                z, sums, stats, chunk, item // BLOCKS, item % BLOCKS, with_ignored, n, stride, K, KP, ALIGN, PHASES,
                CHUNK, R, C, PARTIAL, KEEP, STAGES,
            )  # fmt: skip
        ticket = following
