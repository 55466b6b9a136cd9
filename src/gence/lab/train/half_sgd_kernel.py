"""Triton kernel of a step of SGD on float32 weights whose gradients, and copies, are of half the width.

One launch moves several tensors: a program has a block of one of them. The tensors are arguments, and not addresses in
a table on the device: gradients lie elsewhere after each backward pass, and a captured graph keeps its arguments. What
depends on the tensors' sizes alone is in a table, ``blocks``: which tensor, which block of it, how many values.
"""

import triton
import triton.language as tl

# mypy: disable-error-code="misc,no-untyped-def,no-untyped-call,untyped-decorator"


@triton.jit
def sgd(
    blocks,
    lr,
    weights,
    momenta,
    grads,
    halves,
    momentum,
    weight_decay,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Move weights and momenta as ``torch.optim.SGD`` does, and round the weights into ``halves``.

    Args:
        blocks: (programs, 3) int32.
        lr: one float32.
        weights: tuple of float32 tensors.
        momenta: likewise; not touched without ``MOMENTUM``.
        grads: likewise, of half the width.
        halves: likewise, written.
        momentum: how much of the momenta is kept.
        weight_decay: factor of the weights that is added to their gradients.
        MOMENTUM: whether there are momenta.
        NESTEROV: whether the step looks ahead along them.
        BLOCK: values of a block.
    """
    row = blocks + 3 * tl.program_id(0)
    tensor = tl.load(row)
    start = tl.load(row + 1).to(tl.int64) * BLOCK
    count = tl.load(row + 2)
    weight, buffer, grad, half = weights[0], momenta[0], grads[0], halves[0]
    for i in tl.static_range(1, len(weights)):
        if tensor == i:
            weight, buffer, grad, half = weights[i], momenta[i], grads[i], halves[i]
    offsets = tl.arange(0, BLOCK)
    weight += start
    buffer += start
    grad += start
    half += start
    # A mask of any length would forbid whole vectors: only the last block of a tensor has one.
    if count == BLOCK:
        _move(weight, buffer, grad, half, offsets, None, lr, momentum, weight_decay, MOMENTUM, NESTEROV)
    else:
        _move(weight, buffer, grad, half, offsets, offsets < count, lr, momentum, weight_decay, MOMENTUM, NESTEROV)


@triton.jit
def _move(
    weight,
    buffer,
    grad,
    half,
    offsets,
    mask,
    lr,
    momentum,
    weight_decay,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
):
    """Move one block."""
    p = tl.load(weight + offsets, mask=mask)
    d = tl.load(grad + offsets, mask=mask).to(tl.float32) + weight_decay * p
    if MOMENTUM:
        m = momentum * tl.load(buffer + offsets, mask=mask) + d
        tl.store(buffer + offsets, m, mask=mask)
        if NESTEROV:
            d += momentum * m
        else:
            d = m
    p -= tl.load(lr) * d
    tl.store(weight + offsets, p, mask=mask)
    tl.store(half + offsets, p.to(half.dtype.element_ty), mask=mask)
