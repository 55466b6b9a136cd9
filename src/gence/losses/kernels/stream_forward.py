"""Forward over rows too long for registers: row statistics, then column sums while the rows are in the cache."""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from gence.losses.kernels.exponent import softmax_tile
from gence.losses.kernels.stream import columns, item_of, load_tile, row_start, wait_for
from gence.losses.kernels.stream_rows import row_pass


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
        acc += tl.sum(softmax_tile(x, peak, log_sum), 0)
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
):
    """Row statistics (first look) and column sums (second look)."""
    counters = (sums + counters_at).to(tl.pointer_type(tl.int32))
    BLOCKS: tl.constexpr = (K + PHASES - 1 + C - 1) // C
    chunks = tl.cdiv(n, CHUNK)
    tickets = chunks * (CHUNK * PIECES + PHASES * BLOCKS)
    ticket = tl.atomic_add(counters, 1, sem="relaxed")
    while ticket < tickets:
        following = tl.atomic_add(counters, 1, sem="relaxed")
        is_first, chunk, item = item_of(ticket, chunks, LAG, CHUNK * PIECES, PHASES * BLOCKS)
        if is_first:
            row = chunk * CHUNK + item // PIECES
            if row < n:
                row_pass(
                    z, row, item % PIECES, first, second, share, weight, sums, stats, pieces,
                    counters + 1 + chunks + row, counters + 1 + chunk, n, stride, t_stride, eps, K, KP, ALIGN, PHASES,
                    PIECES, U, W, MODE, IGNORE, HAS_WEIGHT, SMOOTH, COUNT, KEEP,
                )  # fmt: skip
        else:
            wait_for(counters + 1 + chunk, tl.minimum(CHUNK, n - chunk * CHUNK))
            _column_sums(
                z, sums, stats, chunk, item // BLOCKS, item % BLOCKS, n, stride, K, KP, ALIGN, PHASES, CHUNK, R, C,
                PARTIAL, KEEP,
            )  # fmt: skip
        ticket = following
