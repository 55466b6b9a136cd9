"""What the kernels are asked to compute, as arguments of a launch: `Rows` without the logits, and the anchor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gence.losses.targets import Rows, TwoHot

NO_TARGET, INDEX, TWO_HOT, PROBS = 0, 1, 2, 3
NONE, SUM, MEAN = 0, 1, 2
WITHOUT_ANCHOR, FLOAT_ANCHOR, TENSOR_ANCHOR = 0, 1, 2


@dataclass
class Problem:
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


def problem_of(rows: Rows, anchor: float | Tensor, prior: Tensor | None) -> Problem:
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
    return Problem(mode, first, second, share, weight, prior, anchor, rows.ignore_index, kind, smoothing, rows.dtype)


def _labels(flat: Tensor) -> Tensor:
    """Class indices in a type that can hold -1 and any K: the kernels compare with both."""
    return flat if flat.dtype in (torch.int64, torch.int32) else flat.long()


def target_arguments(problem: Problem | None, values: Tensor) -> tuple[tuple[Any, ...], tuple[int, bool, bool]]:
    """(first, second, share, weight, target stride, smoothing) and what of it is known when compiling."""
    if problem is None:
        return (values, values, values, values, 0, 0.0), (NO_TARGET, False, False)
    smooth = problem.smoothing > 0
    tensors = (
        problem.first,
        values if problem.second is None else problem.second,
        values if problem.share is None else problem.share,
        values if problem.weight is None else problem.weight,
    )
    stride = problem.first.stride(0) if problem.mode == PROBS else 0
    return (*tensors, stride, problem.smoothing), (problem.mode, problem.weight is not None, smooth)
