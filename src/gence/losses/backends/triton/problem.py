"""What the kernels are asked to compute, apart from the logits themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gence.losses.targets import Rows, Target, TwoHot, flatten_logits, target_sum

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

    def arguments(self) -> dict[str, Any]:
        """The same problem as arguments of ``gen_cross_entropy`` for rows of logits."""
        target: Target = self.first
        if self.second is not None and self.share is not None:
            target = TwoHot(self.first, self.second, self.share)
        return {
            "target": target,
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "reduction": ("none", "sum", "mean")[self.reduction],
            "label_smoothing": self.smoothing,
            "anchor": self.anchor,
            "prior": self.prior,
        }

    def rows(self, logits: Tensor) -> Rows:
        """The same targets in the plain implementation's form."""
        index = valid = two_hot = None
        if self.mode == INDEX:
            valid = self.first != self.ignore_index
            index = torch.where(valid, self.first, 0).long()
        elif self.second is not None and self.share is not None:
            two_hot = TwoHot(self.first.long(), self.second.long(), self.share.float())
        return Rows(
            logits=logits,
            index=index,
            probs=self.first.float() if self.mode == PROBS else None,
            two_hot=two_hot,
            valid=valid,
            weight=None if self.weight is None else self.weight.float(),
            label_smoothing=self.smoothing,
            shape=torch.Size((logits.shape[0],)),
            dtype=torch.float32,
        )

    def counts(self, num_classes: int, of_row: Tensor | None = None) -> Tensor:
        """Unweighted, unsmoothed label mass (K,): sum_i g_i t_ik, with g = 1 by default."""
        if self.mode == PROBS:
            if of_row is None:
                return self.first.sum(0, dtype=torch.float32)
            return (of_row[:, None] * self.first).sum(0)
        # In float64: 2^24 + 1 is no float32, and a class can have more rows than that.
        counts = self.first.new_zeros(num_classes, dtype=torch.float64)
        rows = counts.new_ones(self.first.shape) if of_row is None else of_row.double()
        if self.second is not None and self.share is not None:
            share = self.share.double()
            counts.scatter_add_(0, self.first.long(), rows * share)
            return counts.scatter_add_(0, self.second.long(), rows * (1 - share)).float()
        valid = self.first != self.ignore_index
        counts.scatter_add_(0, torch.where(valid, self.first, 0).long(), torch.where(valid, rows, 0.0))
        return counts.float()

    def masses(self, num_classes: int, of_row: Tensor | None = None) -> Tensor:
        """T_k = w_k sum_i g_i t_ik (K,), smoothing included."""
        mass = self.counts(num_classes, of_row)
        if self.smoothing > 0:
            if of_row is None:
                of_row = self.first.new_ones(self.first.shape[:1], dtype=torch.float32)
            if self.mode == INDEX:
                of_row = torch.where(self.first != self.ignore_index, of_row, 0.0)
            mass = (1 - self.smoothing) * mass + (self.smoothing / num_classes) * of_row.sum()
        return mass if self.weight is None else mass * self.weight.float()

    def target_of(self, logits: Tensor, values: Tensor) -> Tensor:
        """sum_k w_k t_ik values_k of each row (n,), 0 where ignored."""
        return target_sum(self.rows(logits), values)


def problem_of(
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    anchor: float | Tensor,
    prior: Tensor | None,
    logits: Tensor,
) -> Problem:
    """Checked arguments of ``gen_cross_entropy`` as rows; no copy where they are rows already."""
    second = share = None
    if isinstance(target, TwoHot):
        mode = TWO_HOT
        first, second, share = _labels(target.first), _labels(target.second), _flat(target.share)
    elif target.is_floating_point():
        mode, first = PROBS, flatten_logits(target)
        if first.stride(1) != 1 and logits.shape[1] > 1:
            first = first.contiguous()
    else:
        mode, first = INDEX, _labels(target)
    if weight is not None:
        weight = weight.contiguous()
    if prior is not None:
        prior = prior.contiguous()
    kind = MEAN if reduction == "mean" else SUM if reduction == "sum" else NONE
    return Problem(mode, first, second, share, weight, prior, anchor, ignore_index, kind, float(label_smoothing))


def _labels(values: Tensor) -> Tensor:
    """Class indices as rows, in a type that can hold -1 and any K: the kernels compare with both."""
    flat = _flat(values)
    return flat if flat.dtype in (torch.int64, torch.int32) else flat.long()


def _flat(values: Tensor) -> Tensor:
    return values if values.dim() == 1 and values.is_contiguous() else values.reshape(-1).contiguous()


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
