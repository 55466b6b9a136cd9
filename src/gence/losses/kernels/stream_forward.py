"""Forward over rows too long for registers: row statistics, then column sums."""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from gence.losses.kernels.exponent import softmax_tile
from gence.losses.kernels.stream import columns, is_edge, load_tile, row_start, rows_further
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
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
):
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
    STAGES: tl.constexpr,
):
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
    PIECES: tl.constexpr,
    U: tl.constexpr,
    W: tl.constexpr,
    MODE: tl.constexpr,
    IGNORE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
    COUNT: tl.constexpr,
    STAGES: tl.constexpr,
):
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
    z,
    sums,
    stats,
    n,
    stride,
    counters_at,
    K: tl.constexpr,
    KP: tl.constexpr,
    ALIGN: tl.constexpr,
    PHASES: tl.constexpr,
    CHUNK: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    PARTIAL: tl.constexpr,
    STAGES: tl.constexpr,
):
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
