"""Backward over rows too long for the L1 cache: each row's pull, then its gradient.

Both looks are launched without and with ``LOG_SPACE``; which one works and which returns at once is known on the
device. In one kernel the rare case would take its registers from the usual one. Deterministic as it stands.
"""

import triton
import triton.language as tl

from gence.losses.backends.triton.kernels.stream_forward import (
    columns,
    is_edge,
    load_classes,
    load_tile,
    row_start,
    rows_further,
)
from gence.losses.backends.triton.kernels.tiles import (
    EXTREME,
    INVERSE_DENOMINATOR,
    VECTORS,
    class_pull,
    dense_target_tile,
    smoothed_tile,
    softmax_tile,
    write_label_gradients,
)

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement


@triton.jit
def _pull_block(
    acc, block, z, classes, peak, log_sum, rows, live, base, stride, K: tl.constexpr, KP: tl.constexpr,
    ALIGN: tl.constexpr, PHASES: tl.constexpr, C: tl.constexpr, LOG_SPACE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums of c_k p_jk so far and those of one more block of columns."""
    # Vectors of four logits match those of the coefficients, which then need no way through shared memory. Triton makes
    # them so only if the tile has another shape than the second look's.
    VECTOR: tl.constexpr = ALIGN if PHASES > 1 or ALIGN < 4 else 4
    at, shift, cols, inside, wide = columns(block, base, stride, K, PHASES, C)
    c = load_classes(classes, cols, inside, MASKED)
    offsets = row_start(rows, stride, shift, VECTOR, PHASES)
    x = load_tile(z, offsets, at, live, wide, False, MASKED)
    if MASKED and PHASES > 1:
        x = tl.where(inside[None, :], x, float("-inf"))
    if LOG_SPACE:
        low = load_classes(classes + KP, cols, inside, MASKED)
        acc += class_pull((x - peak[:, None]) - log_sum[:, None], c, low)
    else:
        acc += softmax_tile(x, peak, log_sum) * c[None, :]
    return acc


@triton.jit
def _pull_sums(
    z, classes, stats, upstream, pulls, counters, chunk, group, piece, chunks, n, stride, K: tl.constexpr,
    KP: tl.constexpr, ALIGN: tl.constexpr, PHASES: tl.constexpr, CHUNK: tl.constexpr, BLOCKS: tl.constexpr,
    PIECES: tl.constexpr, R: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr, PER_ROW: tl.constexpr,
    STAGES: tl.constexpr, LOG_SPACE: tl.constexpr,
):  # fmt: skip
    """A piece of r_j = sum_k c_k p_jk for R rows; whoever does the last piece adds them up, in order."""
    PIECE: tl.constexpr = (BLOCKS + PIECES - 1) // PIECES
    base = chunk * CHUNK + group % PHASES
    rows = base + PHASES * ((group // PHASES) * R + tl.arange(0, R))
    row_ok = rows < n
    peak = tl.load(stats + rows, mask=row_ok, other=0.0)
    log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"))
    live = row_ok & (log_sum != float("inf"))
    acc = tl.zeros((R, C), tl.float32)
    start = piece * PIECE
    stop = tl.minimum(start + PIECE, BLOCKS)
    all_live = tl.min(live.to(tl.int32), 0) == 1
    whole_stop = tl.where(all_live, tl.minimum(stop, K // C), 0)  # only the blocks behind need masks
    if PHASES > 1:
        if start == 0:
            acc = _pull_block(
                acc, 0, z, classes, peak, log_sum, rows, live, base, stride, K, KP, ALIGN, PHASES, C, LOG_SPACE,
                True,
            )  # fmt: skip
        start = tl.maximum(start, 1)
    for block in tl.range(start, whole_stop, num_stages=STAGES):
        acc = _pull_block(
            acc, block, z, classes, peak, log_sum, rows, live, base, stride, K, KP, ALIGN, PHASES, C, LOG_SPACE,
            False,
        )  # fmt: skip
    for block in range(tl.maximum(start, whole_stop), stop):
        acc = _pull_block(
            acc, block, z, classes, peak, log_sum, rows, live, base, stride, K, KP, ALIGN, PHASES, C, LOG_SPACE,
            True,
        )  # fmt: skip
    tl.store(pulls + rows.to(tl.int64) * PIECES + piece, tl.sum(acc, 1), mask=row_ok)
    tl.debug_barrier()  # the sums come before the tick
    done = tl.atomic_add(counters + chunks + chunk * (CHUNK // R) + group, 1, sem="acq_rel")
    if done == PIECES - 1:
        parts = rows.to(tl.int64)[:, None] * PIECES + tl.arange(0, PIECES)[None, :]
        whole = tl.sum(tl.load(pulls + parts, mask=row_ok[:, None], other=0.0, cache_modifier=".cg"), 1)
        pull = -whole
        if MODE != 0:
            own = tl.load(stats + 3 * n + rows, mask=row_ok, other=0.0)
            if PER_ROW:
                own = own * tl.load(upstream + rows, mask=row_ok, other=0.0).to(tl.float32)
            pull += own
        tl.store(pulls + n.to(tl.int64) * PIECES + rows, pull, mask=row_ok)
        if not all_live:
            tl.store(counters + chunk, 1)


@triton.jit
def _load_pull(pulls, rows, row_ok, n, PIECES: tl.constexpr, MASKED: tl.constexpr):
    """tau_j - r_j, times the row's upstream gradient where each has its own."""
    where = pulls + n.to(tl.int64) * PIECES + rows
    if MASKED:
        return tl.load(where, mask=row_ok, other=0.0)
    else:
        return tl.load(where)


@triton.jit
def _write_chunk(
    z, first, weight, classes, stats, upstream, pulls, grad, scale, block, base, n, stride, t_stride, eps,
    K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr, PHASES: tl.constexpr, CHUNK: tl.constexpr,
    PIECES: tl.constexpr, R: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr, PER_ROW: tl.constexpr, STAGES: tl.constexpr, LOG_SPACE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The gradient of a chunk's rows of one phase for one block of columns, but for the labels' shares."""
    at, shift, cols, inside, wide = columns(block, base, stride, K, PHASES, C)
    c = load_classes(classes, cols, inside, MASKED)
    if LOG_SPACE:
        low = load_classes(classes + KP, cols, inside, MASKED)
    offsets = row_start(base + PHASES * tl.arange(0, R), stride, shift, ALIGN, PHASES)
    if PHASES > 1:  # the gradient is laid out as the logits are
        out_at = offsets
    else:
        out_at = (base + tl.arange(0, R)).to(tl.int64) * K
    for i in tl.range(0, CHUNK // PHASES, R, num_stages=1 if MASKED else STAGES):
        rows = base + PHASES * (i + tl.arange(0, R))
        row_ok = rows < n
        if MASKED:
            peak = tl.load(stats + rows, mask=row_ok, other=0.0)
            log_sum = tl.load(stats + n + rows, mask=row_ok, other=float("inf"))
        else:
            peak = tl.load(stats + rows)
            log_sum = tl.load(stats + n + rows)
        pull = _load_pull(pulls, rows, row_ok, n, PIECES, MASKED)
        live = log_sum != float("inf")
        # A row that takes no part is not loaded: its p is 0.
        x = load_tile(z, offsets, at, live, wide, True, MASKED)
        if LOG_SPACE:
            log_p = (x - peak[:, None]) - log_sum[:, None]
            g = tl.exp(log_p) * pull[:, None] + class_pull(log_p, c, low)
            g = g * scale
        else:
            g = softmax_tile(x, peak, log_sum) * ((pull * scale)[:, None] + (c * scale)[None, :])
        if MODE == 3 or (MODE != 0 and SMOOTH):
            mask = live[:, None] & inside[None, :]
            if MODE == 3:
                wt = dense_target_tile(rows, cols, mask, first, weight, t_stride, eps, K, HAS_WEIGHT, SMOOTH)
            else:
                wt = smoothed_tile(cols, mask, weight, eps, K, HAS_WEIGHT)
            if PER_ROW:
                wt = wt * tl.load(upstream + rows, mask=row_ok, other=0.0).to(tl.float32)[:, None]
            g -= wt * scale
        g = g.to(grad.dtype.element_ty)
        where = grad + out_at[:, None] + at[None, :]
        if not MASKED:
            tl.store(where, g, eviction_policy="evict_first")
        elif PHASES > 1:  # whole vectors first, then the ragged ends of the rows
            start = (at // PHASES) * PHASES - shift
            full = (start >= 0) & (start + PHASES <= K)
            tl.store(where, g, mask=row_ok[:, None] & full[None, :], eviction_policy="evict_first")
            tl.store(where, g, mask=row_ok[:, None] & (inside & (full == 0))[None, :])
        else:
            tl.store(where, g, mask=row_ok[:, None] & inside[None, :], eviction_policy="evict_first")
        offsets = rows_further(offsets, stride, ALIGN, PHASES, R)
        out_at += PHASES * R * K


@triton.jit
def _write_gradient(
    z, first, second, share, weight, classes, stats, upstream, pulls, grad, scale, chunk, phase, block, with_ignored,
    n, stride, t_stride, eps, K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr, PHASES: tl.constexpr,
    CHUNK: tl.constexpr, PIECES: tl.constexpr, R: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, PER_ROW: tl.constexpr, STAGES: tl.constexpr,
    LOG_SPACE: tl.constexpr,
):  # fmt: skip
    """The gradient of a chunk's rows of one phase, for one block of columns."""
    base = chunk * CHUNK + phase
    if with_ignored | (chunk * CHUNK + CHUNK > n) | is_edge(block, K, C, PHASES):
        _write_chunk(
            z, first, weight, classes, stats, upstream, pulls, grad, scale, block, base, n, stride, t_stride, eps, K,
            KP, ALIGN, PHASES, CHUNK, PIECES, R, C, MODE, HAS_WEIGHT, SMOOTH, PER_ROW, STAGES, LOG_SPACE, True,
        )  # fmt: skip
    else:
        _write_chunk(
            z, first, weight, classes, stats, upstream, pulls, grad, scale, block, base, n, stride, t_stride, eps, K,
            KP, ALIGN, PHASES, CHUNK, PIECES, R, C, MODE, HAS_WEIGHT, SMOOTH, PER_ROW, STAGES, LOG_SPACE, False,
        )  # fmt: skip
    if MODE == 1 or MODE == 2:
        tl.debug_barrier()  # a label's logit was written above, by some other thread
        from_column = block * C
        if PHASES > 1:
            from_column -= (base.to(tl.int64) * stride % PHASES).to(tl.int32)
        ROWS: tl.constexpr = CHUNK // PHASES
        for i in range(0, ROWS, 32):
            step = i + tl.arange(0, 32)
            rows = base + PHASES * step
            row_ok = (rows < n) & (step < ROWS)
            pull = _load_pull(pulls, rows, row_ok, n, PIECES, True)
            write_label_gradients(
                z, first, second, share, weight, classes, stats, upstream, grad, rows, row_ok, pull, scale,
                from_column, from_column + C, n, stride, eps, K, KP, MODE, HAS_WEIGHT, SMOOTH, PER_ROW,
            )  # fmt: skip


@triton.jit
def _rows_to_do(classes, n, KP: tl.constexpr, LOG_SPACE: tl.constexpr):
    """n, or 0 where the launch with the other ``LOG_SPACE`` does the work."""
    extreme = tl.load(classes + VECTORS * KP + EXTREME) > 0.0
    if LOG_SPACE:
        return tl.where(extreme, n, 0)
    else:
        return tl.where(extreme, 0, n)


@triton.jit(do_not_specialize=["n", "stride"])
def stream_pulls(
    z, classes, stats, upstream, pulls, counters, n, stride, K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr,
    PHASES: tl.constexpr, CHUNK: tl.constexpr, PIECES: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    MODE: tl.constexpr, PER_ROW: tl.constexpr, STAGES: tl.constexpr, LOG_SPACE: tl.constexpr,
):  # fmt: skip
    """First look: tau_j - r_j of each row, r_j in ``PIECES`` parts."""
    BLOCKS: tl.constexpr = (K + PHASES - 1 + C - 1) // C
    SUMS: tl.constexpr = (CHUNK // R) * PIECES
    chunks = tl.cdiv(_rows_to_do(classes, n, KP, LOG_SPACE), CHUNK)
    for turn in range(tl.program_id(0), chunks * SUMS, tl.num_programs(0)):
        item = turn % SUMS
        _pull_sums(
            z, classes, stats, upstream, pulls, counters, turn // SUMS, item // PIECES, item % PIECES, chunks, n,
            stride, K, KP, ALIGN, PHASES, CHUNK, BLOCKS, PIECES, R, C, MODE, PER_ROW, STAGES, LOG_SPACE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n", "stride", "t_stride"])
def stream_gradient(
    z, first, second, share, weight, classes, stats, upstream, pulls, counters, grad, n, stride, t_stride, eps,
    K: tl.constexpr, KP: tl.constexpr, ALIGN: tl.constexpr, PHASES: tl.constexpr, CHUNK: tl.constexpr,
    PIECES: tl.constexpr, R: tl.constexpr, C: tl.constexpr, MODE: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr, PER_ROW: tl.constexpr, STAGES: tl.constexpr, LOG_SPACE: tl.constexpr,
):  # fmt: skip
    """Second look: the gradient, from the last chunk to the first."""
    BLOCKS: tl.constexpr = (K + PHASES - 1 + C - 1) // C
    scale = 1.0
    if not PER_ROW:
        scale = tl.load(upstream).to(tl.float32) * tl.load(classes + VECTORS * KP + INVERSE_DENOMINATOR)
    items = tl.cdiv(_rows_to_do(classes, n, KP, LOG_SPACE), CHUNK) * (PHASES * BLOCKS)
    for turn in range(tl.program_id(0), items, tl.num_programs(0)):
        item = items - 1 - turn
        chunk = item // (PHASES * BLOCKS)
        item = item % (PHASES * BLOCKS)
        _write_gradient(
            z, first, second, share, weight, classes, stats, upstream, pulls, grad, scale, chunk, item // BLOCKS,
            item % BLOCKS, tl.load(counters + chunk) != 0, n, stride, t_stride, eps, K, KP, ALIGN, PHASES, CHUNK,
            PIECES, R, C, MODE, HAS_WEIGHT, SMOOTH, PER_ROW, STAGES, LOG_SPACE,
        )  # fmt: skip
