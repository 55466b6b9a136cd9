"""Triton kernels of BatchNorm in training, backward; what they share with the forward pass is in norm_kernels.py.

With g the gradient behind the ReLU (the sum of both gradients, where the output had two uses) and d = x - mean,

    dbias = sum g,   dweight = rstd sum g d,   dx = weight rstd (g - dbias / M - d rstd dweight / M),   dskip = g.

Two launches: `gradient_sums` and `gradient_apply`. Behind a plain ReLU the sign of y is computed anew from x, which has
to be read anyway; so it is with a second normalised input. With a tensor added, y itself is read. Whatever was added, g
is written: it is the gradient of that, and spares the second launch all that g was made of.
"""
# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"

import triton
import triton.language as tl

from gence.models.norm_kernels import is_last, merge, next_row, of_channel, place, tile_at

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
    grad,
    grad2,
    y,
    x,
    x2,
    g_out,
    mean,
    mean2,
    scale,
    scale2,
    bias,
    channels,
    inside,
    first,
    step,
    M,
    C,
    ALIGN: tl.constexpr,
    FULL: tl.constexpr,
    EVEN: tl.constexpr,
    R: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
    MASK: tl.constexpr,
    GRADS: tl.constexpr,
    WRITE: tl.constexpr,
    SECOND: tl.constexpr,
):
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
def _finish(of_g, of_product, moments, dweight, dbias, channels, inside, C, ALIGN: tl.constexpr, FULL: tl.constexpr):
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
    grad,
    grad2,
    y,
    x,
    x2,
    g_out,
    weight,
    bias,
    moments,
    weight2,
    bias2,
    moments2,
    partials,
    tickets,
    dweight,
    dbias,
    dweight2,
    dbias2,
    M,
    C,
    blocks,
    splits,
    ALIGN: tl.constexpr,
    FULL: tl.constexpr,
    EVEN: tl.constexpr,
    R: tl.constexpr,
    BC: tl.constexpr,
    S: tl.constexpr,
    STAGES: tl.constexpr,
    MASK: tl.constexpr,
    GRADS: tl.constexpr,
    WRITE: tl.constexpr,
    SECOND: tl.constexpr,
):
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
        _finish(of_g, of_product, moments, dweight, dbias, channels, inside, C, ALIGN, FULL)
        if SECOND:
            _finish(of_g, of_product2, moments2, dweight2, dbias2, channels, inside, C, ALIGN, FULL)


@triton.jit
def _input_gradient(g, moved, scale, level, slope):
    """dx of a tile, float32."""
    return scale[None, :] * g - level[None, :] - slope[None, :] * moved


@triton.jit(do_not_specialize=["M", "C", "blocks", "splits"])
def gradient_apply(
    grad,
    x,
    x2,
    dx,
    dx2,
    weight,
    bias,
    moments,
    dweight,
    dbias,
    weight2,
    moments2,
    dweight2,
    M,
    C,
    blocks,
    splits,
    ALIGN: tl.constexpr,
    FULL: tl.constexpr,
    EVEN: tl.constexpr,
    R: tl.constexpr,
    BC: tl.constexpr,
    STAGES: tl.constexpr,
    MASK: tl.constexpr,
    SECOND: tl.constexpr,
):
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
