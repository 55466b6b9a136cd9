"""What both passes over rows too long for registers share.

Both passes look at each row twice: once for a row sum, and once for what needs that sum. Rows are taken in chunks of a
few megabytes, and work is handed out in items: pieces of a chunk. There are two ways to do it.

``LOOK`` 1 and 2: a launch for each look, the second in the opposite order, because the last chunks are still in the L2
cache. Each launch has the registers to itself.

``LOOK`` 0: one launch, in an order that makes every second look hit the L2 cache. Programs draw tickets from one
counter; a ticket names an item, and items are listed as

    first look at chunks 0 to LAG - 1, first look at chunk LAG, second look at chunk 0, first look at chunk LAG + 1, ...

Masks cost about as much as the sums themselves. So most second-look items have none: only those at the ends of rows, in
the last chunk, or in a chunk with rows that take no part.

A second-look item waits until all first-look items of its chunk are done. They carry smaller tickets, so whoever holds
them is running and never waits for a larger one: no deadlock, however few programs are resident.

``PHASES``: rows of K logits with K no multiple of the 16-byte vector start at changing alignments. Every ``PHASES``-th
row starts at the same one, so a tile takes every ``PHASES``-th row and shifts its columns by the common remainder:
loads and stores are full vectors again.
"""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

# Added to a chunk's counter together with what counts an item that has a row which takes no part.
WITH_IGNORED = tl.constexpr(1 << 20)


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
def first_ticket(counter, LOOK: tl.constexpr):
    """A program's first ticket."""
    if LOOK == 0:
        return tl.atomic_add(counter, 1, sem="relaxed")
    else:
        return tl.program_id(0)


@triton.jit
def next_ticket(counter, ticket, LOOK: tl.constexpr):
    """A program's next ticket; drawn early, so that the counter's answer is there when it is needed."""
    if LOOK == 0:
        return tl.atomic_add(counter, 1, sem="relaxed")
    else:
        return ticket + tl.num_programs(0)


@triton.jit
def item_of(ticket, chunks, LAG: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, LOOK: tl.constexpr):
    """(whether it is a first look, chunk, number within the chunk) of a ticket."""
    if LOOK == 1:
        return True, ticket // FIRST, ticket % FIRST
    elif LOOK == 2:
        behind = chunks * SECOND - 1 - ticket
        return False, behind // SECOND, behind % SECOND
    else:
        return _item_with_lag(ticket, chunks, LAG, FIRST, SECOND)


@triton.jit
def tickets_of(chunks, FIRST: tl.constexpr, SECOND: tl.constexpr, LOOK: tl.constexpr):
    """How many tickets there are."""
    if LOOK == 1:
        return chunks * FIRST
    elif LOOK == 2:
        return chunks * SECOND
    else:
        return chunks * (FIRST + SECOND)


@triton.jit
def _item_with_lag(ticket, chunks, LAG: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr):
    lag = tl.minimum(LAG, chunks)
    behind = ticket - lag * FIRST
    step = behind // (FIRST + SECOND)
    item = behind % (FIRST + SECOND)
    is_first = item < FIRST
    chunk = tl.where(is_first, lag + step, step)
    item = tl.where(is_first, item, item - FIRST)
    if behind < 0:  # nothing can be looked at again yet
        is_first = ticket >= 0
        chunk = ticket // FIRST
        item = ticket % FIRST
    last = behind - (chunks - lag) * (FIRST + SECOND)
    if last >= 0:  # nothing is left to be looked at first
        is_first = ticket < 0
        chunk = chunks - lag + last // SECOND
        item = last % SECOND
    return is_first, chunk, item


@triton.jit
def wait_for(counter, value, LOOK: tl.constexpr):
    """Return when the counter has come to the value; whether it counted something with a row that takes no part."""
    if LOOK == 0:
        seen = tl.atomic_add(counter, 0, sem="acquire")
        while seen % WITH_IGNORED < value:
            seen = tl.atomic_add(counter, 0, sem="acquire")
    else:  # the first look was another launch
        seen = tl.load(counter)
    return seen >= WITH_IGNORED


@triton.jit
def load_tile(z, offsets, at, live, wide, KEEP: tl.constexpr, LAST_LOOK: tl.constexpr, MASKED: tl.constexpr):
    """A tile of logits as float32, -inf outside; ``KEEP`` tells the L2 cache what will be read again."""
    where = z + offsets[:, None] + at[None, :]
    policy: tl.constexpr = "" if not KEEP else "evict_first" if LAST_LOOK else "evict_last"
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
