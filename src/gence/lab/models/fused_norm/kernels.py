"""Triton kernels of BatchNorm in training: ``relu((x - mean) * rstd * weight + bias + skip)``, and its gradient.

x (n, C, H, W) in channels_last is a row-major matrix (M, C). A program has a block of channels and every so many tiles
of rows. Two launches: `statistics` reads x and leaves mean and 1 / standard deviation, `apply` reads it again and
writes y.

Partial sums are merged by whichever program of a block of channels comes last, in a fixed order: no floating-point
atomics, so results repeat. (Had each program of the second launch merged them, a tensor of 64 channels would have made
each read more partial sums than values of x.) Sums are of x minus its first row, so that a large mean does not cancel.

``ALIGN`` divides C; ``FULL`` says that C is a multiple of a tile's channels, ``EVEN`` that M is one of its rows: then
the masks, which cost a fifth of the instructions of a sum, are constants and fall away.

Backward, with g the gradient behind the ReLU (the sum of both gradients, where the output had two uses) and
d = x - mean,

    dbias = sum g,   dweight = rstd sum g d,   dx = weight rstd (g - dbias / M - d rstd dweight / M),   dskip = g.

Two launches: `gradient_sums` and `gradient_apply`. Behind a plain ReLU the sign of y is recomputed from x, which has
to be read anyway; so it is with a second normalised input. With a tensor added, y itself is read. Whatever was added, g
is written: it is the gradient of that, and spares the second launch all that g was made of.
"""

import triton
import triton.language as tl

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"
# ruff: noqa: SIM108 - a compile-time choice in Triton is an if statement


NO_SKIP, PLAIN_SKIP, NORMED_SKIP = 0, 1, 2
"""What is added: nothing, a tensor, or a tensor that is normalised as well (the shortcut's convolution)."""


@triton.jit
def place(blocks, C, BC: tl.constexpr, FULL: tl.constexpr):
    """(block of channels, first tile, its channels, which of them exist) of this program; neighbours share rows."""
    program = tl.program_id(0)
    block = program % blocks
    channels = block * BC + tl.arange(0, BC)
    if FULL:
        inside = tl.full((BC,), True, tl.int1)
    else:
        inside = channels < C
    return block, program // blocks, channels, inside


@triton.jit
def tile_at(tile, channels, inside, M, C, ALIGN: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr, R: tl.constexpr):
    """(offsets, mask) of a tile (R, BC)."""
    rows = tile * R + tl.arange(0, R)
    offsets = tl.multiple_of(rows * C, ALIGN)[:, None] + channels[None, :]
    if EVEN:
        mask = tl.full((R, 1), True, tl.int1)
    else:
        mask = (rows < M)[:, None]
    if not FULL:
        mask = mask & inside[None, :]
    return offsets, mask


@triton.jit
def of_channel(values, channels, inside, FULL: tl.constexpr):
    """One float32 a channel."""
    if FULL:
        loaded = tl.load(values + channels)
    else:
        loaded = tl.load(values + channels, mask=inside, other=0.0)
    return loaded.to(tl.float32)


@triton.jit
def next_row(values, C, ALIGN: tl.constexpr):
    """Where the next C values begin, which the compiler would not know to be aligned."""
    return tl.multiple_of(values + C, ALIGN)


@triton.jit
def is_last(tickets, block, splits):
    """Whether all other programs of this block of channels have left their sums; the ticket goes back to 0."""
    tl.debug_barrier()  # this program's stores come before its ticket
    last = tl.atomic_add(tickets + block, 1, sem="acq_rel") == splits - 1
    if last:
        tl.store(tickets + block, 0)
    return last


@triton.jit
def merge(
    partials, channels, inside, splits, C, ALIGN: tl.constexpr, KINDS: tl.constexpr, S: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """The partial sums (splits, KINDS, C) of this block added up, S of them at a time; of three kinds at most."""
    first = tl.zeros((S, BC), tl.float32)
    second = tl.zeros((S, BC), tl.float32)
    third = tl.zeros((S, BC), tl.float32)
    for start in range(0, splits, S):
        at = start + tl.arange(0, S)
        rows = tl.multiple_of(at * (KINDS * C), ALIGN)
        offsets = rows[:, None] + channels[None, :]
        mask = (at < splits)[:, None] & inside[None, :]
        # Written by other programs during this launch: read past the L1 cache.
        first += tl.load(partials + offsets, mask=mask, other=0.0, cache_modifier=".cg")
        second += tl.load(next_row(partials, C, ALIGN) + offsets, mask=mask, other=0.0, cache_modifier=".cg")
        if KINDS == 3:
            third += tl.load(next_row(partials, 2 * C, ALIGN) + offsets, mask=mask, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0), tl.sum(third, 0)


@triton.jit
def _shifted_sums(
    x, shift, channels, inside, first, step, M, C, ALIGN: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr,
    R: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of x - shift and of its square over every ``step``-th tile."""
    total = tl.zeros((R, BC), tl.float32)
    squares = tl.zeros((R, BC), tl.float32)
    for tile in tl.range(first, tl.cdiv(M, R), step, num_stages=STAGES):
        offsets, mask = tile_at(tile, channels, inside, M, C, ALIGN, FULL, EVEN, R)
        moved = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - shift[None, :]
        moved = tl.where(mask, moved, 0.0)
        total += moved
        squares += moved * moved
    return tl.sum(total, 0), tl.sum(squares, 0)


@triton.jit
def _finish(
    total, squares, shift, moments, running_mean, running_var, tracked, block, channels, inside, M, C, momentum, eps
):
    """Mean and 1 / standard deviation from the sums, kept in ``moments`` (2, C); moves the running statistics."""
    offset = total / M
    # A difference that is not a number stays one, so that a broken channel shows in its running variance too.
    var = tl.maximum(squares / M - offset * offset, 0.0, propagate_nan=tl.PropagateNan.ALL)
    mean = shift + offset
    rstd = 1.0 / tl.sqrt_rn(var + eps)
    tl.store(moments + channels, mean, mask=inside)
    tl.store(moments + C + channels, rstd, mask=inside)
    unbiased = var * (M / (M - 1.0))
    old = tl.load(running_mean + channels, mask=inside, other=0.0)
    tl.store(running_mean + channels, momentum * mean + (1.0 - momentum) * old, mask=inside)
    old = tl.load(running_var + channels, mask=inside, other=0.0)
    tl.store(running_var + channels, momentum * unbiased + (1.0 - momentum) * old, mask=inside)
    if block == 0:
        tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def _output(loaded, added, mean, scale, bias, skip_mean, skip_scale, RELU: tl.constexpr, SKIP: tl.constexpr):
    """y of a tile, float32."""
    out = (loaded.to(tl.float32) - mean[None, :]) * scale[None, :] + bias[None, :]
    if SKIP == 1:
        out += added.to(tl.float32)
    if SKIP == 2:
        out += (added.to(tl.float32) - skip_mean[None, :]) * skip_scale[None, :]
    if RELU:
        out = tl.maximum(out, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return out


@triton.jit(do_not_specialize=["M", "C", "blocks", "splits"])
def statistics(
    x, partials, tickets, moments, running_mean, running_var, tracked, M, C, blocks, splits, momentum, eps,
    ALIGN: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr, R: tl.constexpr, BC: tl.constexpr, S: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / standard deviation of each channel."""
    block, split, channels, inside = place(blocks, C, BC, FULL)
    shift = of_channel(x, channels, inside, FULL)
    total, squares = _shifted_sums(x, shift, channels, inside, split, splits, M, C, ALIGN, FULL, EVEN, R, BC, STAGES)
    where = partials + split * (2 * C) + channels
    tl.store(where, total, mask=inside)
    tl.store(where + C, squares, mask=inside)
    if is_last(tickets, block, splits):
        total, squares, _ = merge(partials, channels, inside, splits, C, ALIGN, 2, S, BC)
        _finish(
            total, squares, shift, moments, running_mean, running_var, tracked, block, channels, inside, M, C, momentum,
            eps,
        )  # fmt: skip


@triton.jit(do_not_specialize=["M", "C", "blocks", "splits"])
def apply(
    x, y, weight, bias, moments, skip, skip_weight, skip_bias, skip_moments, M, C, blocks, splits,
    ALIGN: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
    STAGES: tl.constexpr, RELU: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """y from x, what is added to it, and the statistics of both.

    The last tiles go first: `statistics` read them last, so they may still be in the L2 cache.
    """
    _, split, channels, inside = place(blocks, C, BC, FULL)
    mean = of_channel(moments, channels, inside, FULL)
    scale = of_channel(next_row(moments, C, ALIGN), channels, inside, FULL)
    scale *= of_channel(weight, channels, inside, FULL)
    move = of_channel(bias, channels, inside, FULL)
    skip_mean = mean
    skip_scale = scale
    if SKIP == 2:
        skip_mean = of_channel(skip_moments, channels, inside, FULL)
        skip_scale = of_channel(next_row(skip_moments, C, ALIGN), channels, inside, FULL)
        skip_scale *= of_channel(skip_weight, channels, inside, FULL)
        move += of_channel(skip_bias, channels, inside, FULL)
    tiles = tl.cdiv(M, R)
    for ahead in tl.range(split, tiles, splits, num_stages=STAGES):
        offsets, mask = tile_at(tiles - 1 - ahead, channels, inside, M, C, ALIGN, FULL, EVEN, R)
        loaded = tl.load(x + offsets, mask=mask, other=0.0)
        added = loaded
        if SKIP != 0:
            added = tl.load(skip + offsets, mask=mask, other=0.0)
        out = _output(loaded, added, mean, scale, move, skip_mean, skip_scale, RELU, SKIP)
        tl.store(y + offsets, out.to(y.dtype.element_ty), mask=mask)


# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"


NO_MASK, MASK_FROM_X, MASK_FROM_Y, MASK_FROM_BOTH = 0, 1, 2, 3
"""Where the ReLU's sign comes from: there is none, from x, from y, from both normalised inputs."""


@triton.jit
def _behind_relu(g, more, out, moved, moved2, scale, scale2, bias, MASK: tl.constexpr, GRADS: tl.constexpr):
    """g of a tile, float32, from what was loaded of it."""
    total = g.to(tl.float32)
    if GRADS == 2:
        # Rounded here, because it is when written: sums and gradients are then of the same numbers.
        total = (total + more.to(tl.float32)).to(g.dtype).to(tl.float32)
    if MASK == 1:
        total = tl.where(moved * scale[None, :] + bias[None, :] > 0.0, total, 0.0)
    if MASK == 2:
        total = tl.where(out.to(tl.float32) > 0.0, total, 0.0)
    if MASK == 3:
        before = moved * scale[None, :] + bias[None, :] + moved2 * scale2[None, :]
        total = tl.where(before > 0.0, total, 0.0)
    return total


@triton.jit
def _sum_tiles(
    grad, grad2, y, x, x2, g_out, mean, mean2, scale, scale2, bias, channels, inside, first, step, M, C,
    ALIGN: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
    STAGES: tl.constexpr, MASK: tl.constexpr, GRADS: tl.constexpr, WRITE: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Sums of g, of g d, and of g d of a second normalised input, over every ``step``-th tile."""
    of_g = tl.zeros((R, BC), tl.float32)
    of_product = tl.zeros((R, BC), tl.float32)
    of_product2 = tl.zeros((R, BC), tl.float32)
    for tile in tl.range(first, tl.cdiv(M, R), step, num_stages=STAGES):
        offsets, mask = tile_at(tile, channels, inside, M, C, ALIGN, FULL, EVEN, R)
        g = tl.load(grad + offsets, mask=mask, other=0.0)
        more = g
        out = g
        if GRADS == 2:
            more = tl.load(grad2 + offsets, mask=mask, other=0.0)
        if MASK == 2:
            out = tl.load(y + offsets, mask=mask, other=0.0)
        moved = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
        moved2 = moved
        if SECOND:
            moved2 = tl.load(x2 + offsets, mask=mask, other=0.0).to(tl.float32) - mean2[None, :]
        g = _behind_relu(g, more, out, moved, moved2, scale, scale2, bias, MASK, GRADS)
        of_g += g
        of_product += g * moved
        if SECOND:
            of_product2 += g * moved2
        if WRITE:
            tl.store(g_out + offsets, g.to(g_out.dtype.element_ty), mask=mask)
    return tl.sum(of_g, 0), tl.sum(of_product, 0), tl.sum(of_product2, 0)


@triton.jit
def _finish_backward(
    of_g, of_product, moments, dweight, dbias, channels, inside, C, ALIGN: tl.constexpr, FULL: tl.constexpr
):
    """Gradients of weight and bias from the sums."""
    of_weight = of_product * of_channel(next_row(moments, C, ALIGN), channels, inside, FULL)
    tl.store(dbias + channels, of_g, mask=inside)
    tl.store(dweight + channels, of_weight, mask=inside)


@triton.jit
def _coefficients(weight, moments, of_weight, of_bias, channels, inside, M, C, ALIGN: tl.constexpr, FULL: tl.constexpr):
    """(scale, level, slope) of each channel: dx = scale g - level - slope d."""
    rstd = of_channel(next_row(moments, C, ALIGN), channels, inside, FULL)
    scale = rstd * of_channel(weight, channels, inside, FULL)
    return scale, scale * of_bias / M, scale * rstd * of_weight / M


@triton.jit(do_not_specialize=["M", "C", "blocks", "splits"])
def gradient_sums(
    grad, grad2, y, x, x2, g_out, weight, bias, moments, weight2, bias2, moments2, partials, tickets, dweight, dbias,
    dweight2, dbias2, M, C, blocks, splits, ALIGN: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr,
    R: tl.constexpr, BC: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr, MASK: tl.constexpr,
    GRADS: tl.constexpr, WRITE: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Gradients of weights and biases; ``WRITE`` keeps g."""
    block, split, channels, inside = place(blocks, C, BC, FULL)
    mean = of_channel(moments, channels, inside, FULL)
    mean2 = mean
    scale = mean
    scale2 = mean
    move = mean
    if SECOND:
        mean2 = of_channel(moments2, channels, inside, FULL)
    if MASK == 1 or MASK == 3:
        scale = of_channel(next_row(moments, C, ALIGN), channels, inside, FULL)
        scale *= of_channel(weight, channels, inside, FULL)
        move = of_channel(bias, channels, inside, FULL)
    if MASK == 3:
        scale2 = of_channel(next_row(moments2, C, ALIGN), channels, inside, FULL)
        scale2 *= of_channel(weight2, channels, inside, FULL)
        move += of_channel(bias2, channels, inside, FULL)
    of_g, of_product, of_product2 = _sum_tiles(
        grad, grad2, y, x, x2, g_out, mean, mean2, scale, scale2, move, channels, inside, split, splits, M, C, ALIGN,
        FULL, EVEN, R, BC, STAGES, MASK, GRADS, WRITE, SECOND,
    )  # fmt: skip
    KINDS: tl.constexpr = 3 if SECOND else 2
    where = partials + split * (KINDS * C) + channels
    tl.store(where, of_g, mask=inside)
    tl.store(where + C, of_product, mask=inside)
    if SECOND:
        tl.store(where + 2 * C, of_product2, mask=inside)
    if is_last(tickets, block, splits):
        of_g, of_product, of_product2 = merge(partials, channels, inside, splits, C, ALIGN, KINDS, S, BC)
        _finish_backward(of_g, of_product, moments, dweight, dbias, channels, inside, C, ALIGN, FULL)
        if SECOND:
            _finish_backward(of_g, of_product2, moments2, dweight2, dbias2, channels, inside, C, ALIGN, FULL)


@triton.jit
def _input_gradient(g, moved, scale, level, slope):
    """dx of a tile, float32."""
    return scale[None, :] * g - level[None, :] - slope[None, :] * moved


@triton.jit(do_not_specialize=["M", "C", "blocks", "splits"])
def gradient_apply(
    grad, x, x2, dx, dx2, weight, bias, moments, dweight, dbias, weight2, moments2, dweight2, M, C, blocks, splits,
    ALIGN: tl.constexpr, FULL: tl.constexpr, EVEN: tl.constexpr, R: tl.constexpr, BC: tl.constexpr,
    STAGES: tl.constexpr, MASK: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Gradients of the one or two normalised inputs; the last tiles first, as in the forward pass."""
    _, split, channels, inside = place(blocks, C, BC, FULL)
    mean = of_channel(moments, channels, inside, FULL)
    of_bias = of_channel(dbias, channels, inside, FULL)
    of_weight = of_channel(dweight, channels, inside, FULL)
    scale, level, slope = _coefficients(weight, moments, of_weight, of_bias, channels, inside, M, C, ALIGN, FULL)
    move = scale
    mean2 = mean
    scale2 = scale
    level2 = level
    slope2 = slope
    if MASK == 1:
        move = of_channel(bias, channels, inside, FULL)
    if SECOND:
        mean2 = of_channel(moments2, channels, inside, FULL)
        of_weight2 = of_channel(dweight2, channels, inside, FULL)
        scale2, level2, slope2 = _coefficients(
            weight2, moments2, of_weight2, of_bias, channels, inside, M, C, ALIGN, FULL
        )
    tiles = tl.cdiv(M, R)
    for ahead in tl.range(split, tiles, splits, num_stages=STAGES):
        offsets, mask = tile_at(tiles - 1 - ahead, channels, inside, M, C, ALIGN, FULL, EVEN, R)
        g = tl.load(grad + offsets, mask=mask, other=0.0)
        loaded = tl.load(x + offsets, mask=mask, other=0.0)
        loaded2 = loaded
        if SECOND:
            loaded2 = tl.load(x2 + offsets, mask=mask, other=0.0)
        moved = loaded.to(tl.float32) - mean[None, :]
        g = _behind_relu(g, g, g, moved, moved, scale, scale, move, MASK, 1)
        tl.store(dx + offsets, _input_gradient(g, moved, scale, level, slope).to(dx.dtype.element_ty), mask=mask)
        if SECOND:
            moved = loaded2.to(tl.float32) - mean2[None, :]
            found = _input_gradient(g, moved, scale2, level2, slope2)
            tl.store(dx2 + offsets, found.to(dx2.dtype.element_ty), mask=mask)
