"""What a launch of a kernel is given: `Rows` without the logits and the anchor as operands, and all sizes.

Sizes say how a shape is cut into tiles, chunks and programs, and how large the buffers are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gence._triton import multiprocessors, power_of_two, side_by_side
from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.kernels import VECTORS
from gence.losses.targets import Rows, TwoHot

NO_TARGET, INDEX, TWO_HOT, PROBS = 0, 1, 2, 3
NONE, SUM, MEAN = 0, 1, 2
WITHOUT_ANCHOR, FLOAT_ANCHOR, TENSOR_ANCHOR = 0, 1, 2


@dataclass
class Operands:
    """Targets as rows, and the settings of the loss.

    Attributes:
        mode: kind of target (``INDEX``, ``TWO_HOT``, ``PROBS``).
        first: class indices (n,), or class probabilities (n, K) with unit column stride.
        second: the second class (n,) of a two-hot target.
        share: the first class's share (n,) of a two-hot target.
        weight: class weights (K,).
        prior: class distribution (K,) of the anchor.
        anchor: strength of the anchor.
        ignore_index: class index of rows that take no part.
        reduction: ``NONE``, ``SUM`` or ``MEAN``.
        smoothing: label smoothing.
        dtype: type of the loss.
    """

    mode: int
    first: Tensor
    second: Tensor | None
    share: Tensor | None
    weight: Tensor | None
    prior: Tensor | None
    anchor: float | Tensor
    ignore_index: int
    reduction: int
    smoothing: float
    dtype: torch.dtype
    _key: tuple[Any, ...] | None = None

    @property
    def anchor_kind(self) -> int:
        """Whether there is an anchor, and where its strength is."""
        if isinstance(self.anchor, Tensor):
            return TENSOR_ANCHOR
        return FLOAT_ANCHOR if self.anchor > 0 else WITHOUT_ANCHOR

    @property
    def key(self) -> tuple[Any, ...]:
        """What the compiled code depends on, apart from logits and sizes."""
        if self._key is not None:  # asked for by each launch
            return self._key
        parts: list[Any] = [self.mode, self.ignore_index, self.reduction, self.smoothing > 0, self.anchor_kind]
        for tensor in (self.first, self.second, self.share, self.weight, self.prior, self.anchor):
            parts.append((tensor.dtype, tensor.data_ptr() & 15 == 0) if isinstance(tensor, Tensor) else None)
        self._key = tuple(parts)
        return self._key

    def rows(self, logits: Tensor) -> Rows:
        """The targets beside logits (n, K), in the form that plain operations take."""
        two_hot = None
        if self.second is not None and self.share is not None:
            two_hot = TwoHot(self.first, self.second, self.share)
        return Rows(
            logits=logits,
            index=self.first if self.mode == INDEX else None,
            probs=self.first if self.mode == PROBS else None,
            two_hot=two_hot,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.smoothing,
            reduction=("none", "sum", "mean")[self.reduction],
            shape=torch.Size((logits.shape[0],)),
            dtype=self.dtype,
        )


def operands_of(rows: Rows, anchor: float | Tensor, prior: Tensor | None) -> Operands:
    """What the kernels take of rows, anchor and prior; no copy where tensors are contiguous already."""
    second = share = None
    if rows.two_hot is not None:
        mode, first, second, share = TWO_HOT, *(part.contiguous() for part in rows.two_hot)
        first, second = _labels(first), _labels(second)
    elif rows.probs is not None:
        mode, first = PROBS, rows.probs
        if first.stride(1) != 1 and rows.num_classes > 1:
            first = first.contiguous()
    else:
        assert rows.index is not None  # one of the three forms is set
        mode, first = INDEX, _labels(rows.index.contiguous())
    weight = None if rows.weight is None else rows.weight.contiguous()
    prior = None if prior is None else prior.contiguous()
    kind = {"mean": MEAN, "sum": SUM, "none": NONE}[rows.reduction]
    smoothing = rows.label_smoothing
    assert rows.ignore_index is not None  # labels on a GPU are not looked at
    return Operands(mode, first, second, share, weight, prior, anchor, rows.ignore_index, kind, smoothing, rows.dtype)


def _labels(flat: Tensor) -> Tensor:
    """Class indices in a type that can hold -1 and any K: the kernels compare with both."""
    return flat if flat.dtype in (torch.int64, torch.int32) else flat.long()


def target_arguments(operands: Operands | None, values: Tensor) -> tuple[tuple[Any, ...], tuple[int, bool, bool]]:
    """(first, second, share, weight, target stride, smoothing) and what of it is known when compiling."""
    if operands is None:
        return (values, values, values, values, 0, 0.0), (NO_TARGET, False, False)
    smooth = operands.smoothing > 0
    tensors = (
        operands.first,
        values if operands.second is None else operands.second,
        values if operands.share is None else operands.share,
        values if operands.weight is None else operands.weight,
    )
    stride = operands.first.stride(0) if operands.mode == PROBS else 0
    return (*tensors, stride, operands.smoothing), (operands.mode, operands.weight is not None, smooth)


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


def operands_key(operands: Operands | None, values: Tensor, static: tuple[Any, ...]) -> tuple[Any, ...]:
    """What compiled code depends on of the operands and their logits."""
    return (tensor_key(values), None if operands is None else operands.key, static)


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


def group_layout(values: Tensor, operands: Operands | None) -> dict[str, int] | None:
    """Tile, parts of a row and groups of programs, where a group holds a row: long rows of whole vectors."""
    K = values.shape[1]
    tune = tuning.current()
    vector = 16 // values.element_size()
    dense = operands is not None and (operands.smoothing > 0 or operands.mode == PROBS)
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
