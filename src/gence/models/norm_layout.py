"""How a tensor is cut into tiles and programs for the kernels of BatchNorm, and the tunables of that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from gence.losses.kernels.launch import multiprocessors, power_of_two

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
