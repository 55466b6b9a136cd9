"""What both passes over rows too long for registers share.

Both passes look at each row twice: once for a row sum, and once for what needs that sum. Each look is a launch with the
registers to itself. Rows are taken in chunks of a few megabytes, and programs take turns at items: pieces of a chunk.
The second look goes through the chunks in the opposite order, because the last ones are still in the L2 cache.

Masks cost about as much as the sums themselves. So most second-look items have none: only those at the ends of rows, in
the last chunk, or in a chunk with rows that take no part, which the first look marks.

``PHASES``: rows of K logits with K no multiple of the 16-byte vector start at changing alignments. Every ``PHASES``-th
row starts at the same one, so a tile takes every ``PHASES``-th row and shifts its columns by the common remainder:
loads and stores are full vectors again.
"""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl


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
    """Whether a block of columns may hold ends of rows: then some of its lanes are no columns of their rows."""
    edge = block >= K // C
    if PHASES > 1:
        edge = edge | (block == 0)
    return edge
