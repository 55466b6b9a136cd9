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

    A "vector" is 16 bytes, what a thread loads at once.

    Attributes:
        channels: channels of a tile: 64 of a half type are one line of the caches; with 32, two programs share it, and
            each block of channels has half as many partial sums to merge, which small tensors gain by.
        sums_warps: warps of a program that sums. Many, because each program leaves partial sums behind that the last
            one has to read: large programs keep their number small.
        sums_vectors: vectors that a thread of it keeps in flight, over all tensors, but at least one of each. The
            accumulators are as large as the tile: more would take registers, and so programs side by side.
        sums_per_sm: programs that sum, for each multiprocessor.
        sums_registers: most registers of a thread that sums: what other runs' kernels beside it do not get.
        sums_stages: tiles loaded ahead through shared memory; 1 means none.
        apply_warps: warps of a program that applies.
        apply_vectors: vectors that a thread of it keeps in flight, over all tensors.
        merge_rows: partial sums of a channel that are read at a time.
        whole_bytes: a column of 16-byte vectors up to this size is left to one program, which sums and applies in one
            launch and finds it in its caches the second time.
        whole_channels: channels of a program that does so.
        whole_warps: warps of it.
    """

    channels: int = 32
    sums_warps: int = 16
    sums_vectors: int = 2
    sums_per_sm: int = 1
    sums_registers: int = 64
    sums_stages: int = 1
    apply_warps: int = 8
    apply_vectors: int = 8
    merge_rows: int = 64
    whole_bytes: int = 1600 * _VECTOR_BYTES
    whole_channels: int = 16
    whole_warps: int = 16


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
    programs = tune.sums_per_sm * multiprocessors(x.device)
    return _layout(x, tune.channels, tune.sums_warps, max(1, tune.sums_vectors // tensors), programs)


def apply_layout(x: Tensor, tensors: int) -> Layout:
    """For a launch that reads ``tensors`` tensors like x and writes one or more, element by element; a tile a program.

    One tile, because then the loads of the tile and of what belongs to its channels are all in flight at once; behind a
    loop's start the tile would wait for the channels.
    """
    tune = current()
    return _layout(x, tune.channels, tune.apply_warps, max(1, tune.apply_vectors // tensors), None)


def whole_layout(x: Tensor, tensors: int) -> Layout | None:
    """For one launch that does both, or None where the tensor is too large for that."""
    tune = current()
    if matrix_rows(x) * _VECTOR_BYTES > tune.whole_bytes:
        return None
    return _layout(x, tune.whole_channels, tune.whole_warps, max(1, tune.sums_vectors // tensors), 1)


def _layout(x: Tensor, most_channels: int, warps: int, vectors: int, programs: int | None) -> Layout:
    M, C = matrix_rows(x), x.shape[1]
    channels = min(most_channels, power_of_two(C))
    elements = warps * 32 * vectors * (_VECTOR_BYTES // x.element_size())
    # Fewer rows than a tile has are masked: fewer warps would take as long, and be one more thing to compile.
    rows = max(1, elements // channels)
    blocks, tiles = -(-C // channels), -(-M // rows)
    splits = tiles if programs is None else min(tiles, max(1, programs // blocks))
    return Layout(rows, channels, blocks, splits, warps)


def matrix_rows(x: Tensor) -> int:
    """M, the rows of x (n, C, H, W) as a matrix (M, C)."""
    return x.numel() // x.shape[1]


def alignment(C: int) -> int:
    """The power of two up to 16 that divides C, and with it where each row begins."""
    return min(16, C & -C)
