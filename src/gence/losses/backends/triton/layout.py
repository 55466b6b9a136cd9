"""Sizes: how a shape is cut into tiles, chunks and programs, and how large the buffers are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gence._triton import multiprocessors, power_of_two, side_by_side
from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.kernels import VECTORS
from gence.losses.backends.triton.problem import PROBS, Problem

_SCALARS = 16  # floats behind the class vectors that hold scalars
_SHARES = 16  # floats that each program of the last step leaves
_MOST_PROGRAMS = 64  # of the last step
_ROWS_OF_PROGRAM = 1 << 14  # rows whose costs one program of the last step adds up without being waited for


def class_floats(K: int) -> int:
    """Size of the buffer with the class vectors, the scalars, and the last step's shares."""
    return int(VECTORS.value) * padded_classes(K) + _SCALARS + _SHARES * _MOST_PROGRAMS


def finalise_layout(n: int, K: int) -> tuple[int, int]:
    """(classes of a block, programs) of the last step."""
    block = min(power_of_two(K), tuning.current().finalise_columns)
    return block, power_of_two(min(_MOST_PROGRAMS, max(-(-K // block), n // _ROWS_OF_PROGRAM)))


def padded_classes(K: int) -> int:
    """Floats of a class vector: K, rounded up to whole vectors."""
    return -(-K // 16) * 16


def tensor_key(values: Tensor) -> tuple[Any, ...]:
    """What compiled code depends on of a tensor."""
    return (values.device, values.dtype, values.data_ptr() & 15 == 0)


def problem_key(problem: Problem | None, values: Tensor, static: tuple[Any, ...]) -> tuple[Any, ...]:
    """What compiled code depends on of a problem and its logits."""
    return (tensor_key(values), None if problem is None else problem.key, static)


def alignment(values: Tensor) -> int:
    """The power of two up to 16 that divides the distance of two rows, counted in logits."""
    stride = values.stride(0)
    return min(16, stride & -stride) if stride else 16


def row_layout(values: Tensor) -> tuple[int, int, int, int] | None:
    """(rows of a tile, padded columns, programs, warps) where rows fit in registers."""
    n, K = values.shape
    tune = tuning.current()
    columns = power_of_two(K)
    if columns > tune.rows_columns:
        return None
    tile_rows = max(1, min(power_of_two(n), tune.rows_elements // columns))
    elements = tile_rows * columns
    warps = max(tune.rows_warps, min(32, tune.rows_warps * elements // 4096))
    per_sm = max(1, tune.rows_per_sm * tune.rows_warps // warps)
    programs = min(-(-n // tile_rows), multiprocessors(values.device) * per_sm)
    return tile_rows, columns, programs, warps


def group_layout(values: Tensor, problem: Problem | None) -> dict[str, int] | None:
    """Tile, parts of a row and groups of programs, where a group holds a row: long rows of whole vectors."""
    K = values.shape[1]
    tune = tuning.current()
    vector = 16 // values.element_size()
    dense = problem is not None and (problem.smoothing > 0 or problem.mode == PROBS)
    ragged = K % vector or values.stride(0) % vector or values.data_ptr() & 15
    if dense or ragged or torch.version.cuda is None:
        return None
    words = K * values.element_size() // 4
    U, W = tune.group_unroll, tune.group_warps * 32 * 4
    if not side_by_side(values.device):
        U = power_of_two(-(-words // W))
    slabs = -(-words // (U * W))
    groups = multiprocessors(values.device) * tune.group_per_sm // slabs
    if groups == 0:
        return None
    return {"U": U, "W": W, "SLABS": slabs, "PADDED": power_of_two(slabs), "programs": groups * slabs}


def stream_plan(values: Tensor, tile_rows: int, *, few_chunks: bool = False) -> dict[str, int]:
    """Chunk, phases and tile of the streamed kernels."""
    n, K = values.shape
    tune = tuning.current()
    vector = 16 // values.element_size()
    align = alignment(values)
    phases = 1
    # Whole vectors for ragged rows: needs rows back to back from an aligned start, and an end that no vector crosses.
    back_to_back = values.stride(0) == K and values.data_ptr() & 15 == 0 and n % vector == 0
    if tune.shift_rows and align < vector and back_to_back:
        phases = align = vector
    step = phases * tile_rows
    rows = max(1, tune.chunk_bytes // (K * values.element_size()))
    if few_chunks:  # one slot of K floats for each chunk and phase: keep them under about 1 % of the logits
        rows = max(rows, phases * 4 * 100 // values.element_size(), -(-n // 64))
    chunk = -(-min(rows, n) // step)
    if few_chunks or n < rows:
        chunk = power_of_two(chunk)  # the kernels are compiled for it, and must not be for every n
    chunk *= step
    columns = tune.tile_columns or tune.stream_warps * 32 * vector
    return {"CHUNK": chunk, "PHASES": phases, "ALIGN": align, "R": tile_rows, "C": columns}


def pieces(values: Tensor, rows: int, step: int) -> int:
    """Parts (a power of two) in which a first look takes ``rows`` rows, each of whole steps of columns."""
    K = values.shape[1]
    whole = rows * K * values.element_size()
    wanted = power_of_two(max(1, whole // tuning.current().piece_bytes))
    return min(wanted, power_of_two(-(-K // step)))
