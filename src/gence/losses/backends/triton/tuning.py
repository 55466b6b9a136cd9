"""The kernels' tunables, in one place: defaults measured by benchmarks/sweep_kernels.py, and a way to try others."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gence._version import __version__


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes and counts that change speed, never results beyond rounding.

    Attributes:
        tiny_elements: largest padded problem for the one-program kernel.
        tiny_lane: logits for each thread of that kernel.
        tiny_warps: most warps of that kernel: more leave a thread of a large tile too few registers.
        rows_columns: largest padded K for which a row is kept in registers.
        rows_elements: logits in a tile of rows; backward, longer rows go through the caches.
        rows_warps: warps for such a tile of at most 4096 logits; wider rows take more.
        rows_per_sm: programs for each multiprocessor (rows).
        long_columns: largest K for which one program takes a whole row backward.
        long_part: logits of such a row that are taken at a time.
        long_warps: warps of that program.
        group_unroll: 16-byte vectors of a row that a thread of a group holds (backward, still longer rows).
        group_warps: warps of a program (group).
        group_registers: registers of a thread (group).
        group_per_sm: programs for each multiprocessor (group), all of them resident; 0 means no groups.
        stream_warps: warps of a program (stream).
        stream_registers: registers of a thread (stream, forward): fewer let more programs run at a time.
        backward_registers: the same for the backward pass.
        stream_per_sm: programs for each multiprocessor (stream, forward).
        backward_per_sm: the same for the backward pass.
        chunk_bytes: logits of an item of a second look, over all columns (stream).
        unroll: vectors of a row that a thread reads at a time in the row pass.
        tile_rows: rows of a tile in the column pass.
        sum_rows: rows of a tile in the backward pass's first look, which is half as wide as the other tiles.
        backward_rows: rows of a tile in its second look.
        tile_columns: columns of a tile; 0 means one 16-byte vector for each thread.
        piece_bytes: logits in an item of a first look.
        stages: steps of a look that are loaded ahead, through shared memory (stream, forward); 1 means none.
        staged_bytes: shortest rows for which that pays; of shorter ones nothing is loaded ahead.
        backward_stages: the same for the backward pass.
        shift_rows: whether rows of ragged alignment are taken in phases so that loads are whole vectors.
        finalise_columns: classes in a block of the last step.
    """

    tiny_elements: int = 16384
    tiny_lane: int = 8
    tiny_warps: int = 8
    rows_columns: int = 16384
    rows_elements: int = 4096
    rows_warps: int = 4
    rows_per_sm: int = 4
    long_columns: int = 65536
    long_part: int = 2048
    long_warps: int = 8
    group_unroll: int = 4
    group_warps: int = 4
    group_registers: int = 128
    group_per_sm: int = 4
    stream_warps: int = 8
    stream_registers: int = 64
    backward_registers: int = 128
    stream_per_sm: int = 4
    backward_per_sm: int = 2
    chunk_bytes: int = 8 << 20
    unroll: int = 4
    tile_rows: int = 4
    sum_rows: int = 8
    backward_rows: int = 4
    tile_columns: int = 0
    piece_bytes: int = 256 << 10
    stages: int = 3
    staged_bytes: int = 128 << 10
    backward_stages: int = 3
    shift_rows: bool = True
    finalise_columns: int = 256


def _fingerprint_of(tuning: Tuning) -> int:
    return zlib.crc32(f"{__version__} {tuning}".encode())


_current = Tuning()
_fingerprint = _fingerprint_of(_current)


def current() -> Tuning:
    """The tunables in force."""
    return _current


@contextlib.contextmanager
def override(**changes: Any) -> Iterator[Tuning]:
    """Run with other tunables: for sweeps, and for tests that send small problems through every kernel."""
    before = _current
    _set(replace(before, **changes))
    try:
        yield _current
    finally:
        _set(before)


def fingerprint() -> int:
    """A number for this version and the tunables, for whoever keeps what was made under them, on disk too."""
    return _fingerprint


def _set(tuning: Tuning) -> None:
    global _current, _fingerprint
    _current = tuning
    _fingerprint = _fingerprint_of(tuning)
