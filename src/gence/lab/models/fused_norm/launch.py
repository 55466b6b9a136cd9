"""The launches of a fused BatchNorm: buffers, sizes and compile-time choices of its kernels.

How a tensor is cut into tiles and programs is decided here too, with the tunables of that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gence._triton import launch, multiprocessors, power_of_two
from gence.lab.models.fused_norm import kernels, kernels as backward_kernels

_VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class NormTuning:
    """Sizes and counts that change speed, never results beyond rounding.

    The kernels wait for memory most of the time, and other runs' convolutions can compute meanwhile if a multiprocessor
    has room for both. So a launch has one small program for each, which keeps much in flight through shared memory:
    side by side with other runs that was measured to be faster than many large ones.

    A "vector" is 16 bytes, what a thread loads at once.

    Attributes:
        channels: channels of a tile: 64 of a half type are one line of the caches.
        per_sm: programs for each multiprocessor.
        sums_warps: warps of a program that sums.
        sums_vectors: vectors that a thread of it loads for a tile, over all tensors, but at least one of each. The
            accumulators are as large as the tile: more would take registers.
        sums_registers: most registers of a thread that sums.
        sums_stages: tiles loaded ahead.
        apply_warps: warps of a program that applies.
        apply_vectors: vectors that a thread of it loads for a tile, over all tensors.
        apply_stages: tiles loaded ahead.
        merge_rows: partial sums of a channel that are read at a time.
    """

    channels: int = 64
    per_sm: int = 1
    sums_warps: int = 8
    sums_vectors: int = 2
    sums_registers: int = 64
    sums_stages: int = 4
    apply_warps: int = 4
    apply_vectors: int = 8
    apply_stages: int = 4
    merge_rows: int = 64


_current = NormTuning()


def current() -> NormTuning:
    """The tunables in force."""
    return _current


@contextlib.contextmanager
def override(**changes: Any) -> Iterator[NormTuning]:
    """Run with other tunables: for sweeps, and for tests that send small tensors through every kernel."""
    global _current
    before = _current
    _current = replace(before, **changes)
    try:
        yield _current
    finally:
        _current = before


class Layout(NamedTuple):
    """A launch: tiles of ``rows`` x ``channels``, ``blocks`` of channels, each shared by ``splits`` programs."""

    rows: int
    channels: int
    blocks: int
    splits: int
    warps: int

    @property
    def programs(self) -> int:
        """Programs of the launch."""
        return self.blocks * self.splits


def sums_layout(x: Tensor, tensors: int) -> Layout:
    """For a launch that reads ``tensors`` tensors like x (n, C, H, W) and sums over rows."""
    tune = current()
    return _layout(x, tune.channels, tune.sums_warps, max(1, tune.sums_vectors // tensors), _programs(x))


def apply_layout(x: Tensor, tensors: int) -> Layout:
    """For a launch that reads ``tensors`` tensors like x and writes one or more, element by element."""
    tune = current()
    return _layout(x, tune.channels, tune.apply_warps, max(1, tune.apply_vectors // tensors), _programs(x))


def _programs(x: Tensor) -> int:
    return current().per_sm * multiprocessors(x.device)


def _layout(x: Tensor, most_channels: int, warps: int, vectors: int, programs: int) -> Layout:
    M, C = matrix_rows(x), x.shape[1]
    channels = min(most_channels, power_of_two(C))
    elements = warps * 32 * vectors * (_VECTOR_BYTES // x.element_size())
    # Fewer rows than a tile has are masked: fewer warps would take as long, and be one more thing to compile.
    rows = max(1, elements // channels)
    blocks, tiles = -(-C // channels), -(-M // rows)
    splits = min(tiles, max(1, programs // blocks))
    return Layout(rows, channels, blocks, splits, warps)


def matrix_rows(x: Tensor) -> int:
    """M, the rows of x (n, C, H, W) as a matrix (M, C)."""
    return x.numel() // x.shape[1]


def alignment(C: int) -> int:
    """The power of two up to 16 that divides C, and with it where each row begins."""
    return min(16, C & -C)


@dataclass(frozen=True, slots=True)
class Norm:
    """What a BatchNorm has beside its weights.

    Attributes:
        running_mean: (C,), moved by the forward pass.
        running_var: likewise.
        tracked: how many batches there were, likewise.
        tickets: (C,) int32, zero whenever no kernel of this norm runs; of no other norm, which may run meanwhile.
        momentum: how far the running statistics move.
        eps: what is added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor
    tracked: Tensor
    tickets: Tensor
    momentum: float
    eps: float


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor (n, C, H, W) in channels_last to be normalised.

    Attributes:
        x: its values.
        weight: (C,) float32.
        bias: likewise.
        moments: (2, C) float32: mean and 1 / standard deviation, once they are known.
        norm: the norm's state.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor
    moments: Tensor
    norm: Norm


def forward(main: Input, skip: Tensor | Input | None, *, relu: bool) -> Tensor:
    """relu(norm(main) + skip), where skip may have to be normalised too; fills in the moments."""
    x = main.x
    M, C = matrix_rows(x), x.shape[1]
    y = torch.empty_like(x)
    _statistics(main)
    if isinstance(skip, Input):
        _statistics(skip)
        kind = kernels.NORMED_SKIP
        of_skip: tuple[Tensor | None, ...] = (skip.x, skip.weight, skip.bias, skip.moments)
    else:
        kind = kernels.NO_SKIP if skip is None else kernels.PLAIN_SKIP
        of_skip = (skip, None, None, None)
    layout = apply_layout(x, 1 if skip is None else 2)
    _launch(
        kernels.apply,
        layout,
        (x, y, main.weight, main.bias, main.moments, *of_skip),
        (M, C, layout.blocks, layout.splits),
        (*_tile(layout, M, C), current().apply_stages, relu, kind),
    )
    return y


def _statistics(of: Input) -> None:
    norm = of.norm
    M, C = matrix_rows(of.x), of.x.shape[1]
    layout = sums_layout(of.x, 1)
    partials = of.moments.new_empty((layout.splits, 2, C))
    _launch(
        kernels.statistics,
        layout,
        (of.x, partials, norm.tickets, of.moments, norm.running_mean, norm.running_var, norm.tracked),
        (M, C, layout.blocks, layout.splits, norm.momentum, norm.eps),
        (*_tile(layout, M, C), current().merge_rows, current().sums_stages),
        current().sums_registers,
    )


@dataclass(frozen=True, slots=True)
class Gradients:
    """What the backward pass writes: gradients of x, weight and bias, of a second input, and g where it is kept."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    x2: Tensor | None
    weight2: Tensor | None
    bias2: Tensor | None
    g: Tensor | None


def backward(
    grad: Tensor, grad2: Tensor | None, main: Input, second: Input | None, y: Tensor | None, *, relu: bool,
    added: bool,
) -> Gradients:  # fmt: skip
    """The gradients from one or two gradients of the output.

    Args:
        grad: gradient of y, in channels_last like all here.
        grad2: another one, to be added to it.
        main: what was normalised.
        second: what was normalised and added, if anything.
        y: the output, where something was added that was not normalised, and there was a ReLU.
        relu: whether there was a ReLU.
        added: whether something was added.
    """
    x, C = main.x, main.x.shape[1]
    M = matrix_rows(x)
    write = added or grad2 is not None
    grads = 1 if grad2 is None else 2
    has_second = second is not None
    mask = backward_kernels.NO_MASK
    if relu and has_second:
        mask = backward_kernels.MASK_FROM_BOTH
    elif relu:
        mask = backward_kernels.MASK_FROM_X if y is None else backward_kernels.MASK_FROM_Y
    found = Gradients(
        x=torch.empty_like(x),
        weight=torch.empty_like(main.weight),
        bias=torch.empty_like(main.bias),
        x2=torch.empty_like(x) if has_second else None,
        weight2=torch.empty_like(main.weight) if has_second else None,
        bias2=torch.empty_like(main.bias) if has_second else None,
        g=torch.empty_like(x) if write else None,
    )
    x2, weight2, bias2, moments2 = (
        (None,) * 4 if second is None else (second.x, second.weight, second.bias, second.moments)
    )
    tensors = 1 + grads + (y is not None) + has_second
    layout = sums_layout(x, tensors)
    partials = main.moments.new_empty((layout.splits, 3 if has_second else 2, C))
    _launch(
        backward_kernels.gradient_sums,
        layout,
        (
            *(grad, grad2, y, x, x2, found.g, main.weight, main.bias, main.moments, weight2, bias2, moments2),
            *(partials, main.norm.tickets, found.weight, found.bias, found.weight2, found.bias2),
        ),
        (M, C, layout.blocks, layout.splits),
        (*_tile(layout, M, C), current().merge_rows, current().sums_stages, mask, grads, write, has_second),
        # With a second input it needs many more, and half as many programs side by side are better than memory.
        None if has_second else current().sums_registers,
    )
    layout = apply_layout(x, 3 if has_second else 2)
    _launch(
        backward_kernels.gradient_apply,
        layout,
        (
            *(grad if found.g is None else found.g, x, x2, found.x, found.x2, main.weight, main.bias, main.moments),
            *(found.weight, found.bias, weight2, moments2, found.weight2),
        ),
        (M, C, layout.blocks, layout.splits),
        (*_tile(layout, M, C), current().apply_stages, backward_kernels.NO_MASK if write else mask, has_second),
    )
    return found


def _tile(layout: Layout, M: int, C: int) -> tuple[int, bool, bool, int, int]:
    """The compile-time values that all kernels begin with: ALIGN, FULL, EVEN, R, BC."""
    return alignment(C), C % layout.channels == 0, M % layout.rows == 0, layout.rows, layout.channels


def _launch(
    kernel: Any,
    layout: Layout,
    tensors: tuple[Any, ...],
    numbers: tuple[float, ...],
    static: tuple[Any, ...],
    registers: int | None = None,
) -> None:
    # All tensors begin at whole vectors: see fused_norm.py. So device and type are all that compiled code depends on.
    key = (tensors[0].device, tensors[0].dtype, static)
    launch(kernel, layout.programs, layout.warps, key, (*tensors, *numbers, *static), registers)
