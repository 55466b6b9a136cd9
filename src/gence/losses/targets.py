"""What a target may be, and how every layout becomes rows.

Losses here see one problem only: ``n`` rows of ``K`` logits, each with a target that is linear in the loss. This file
turns whatever ``nn.CrossEntropyLoss`` accepts (and MixUp's two-hot targets) into that form, and sums costs over it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gence.losses import _checks


class TwoHot(NamedTuple):
    """A target shared by two classes, as MixUp and CutMix make them: ``share * first + (1 - share) * second``.

    Means exactly what the class probabilities of that mixture would mean, without the (n, K) tensor.

    Args:
        first: class indices (n,) or (n, d1, ...).
        second: class indices of the same shape.
        share: the first class's share in [0, 1], floating, of the same shape.
    """

    first: Tensor
    second: Tensor
    share: Tensor


Target = Tensor | TwoHot


@dataclass(eq=False)
class Rows:
    """A checked classification problem as rows, the one form that all implementations take.

    Nothing is computed to make it: tensors are those of the call, flattened. Exactly one of ``index``, ``probs`` and
    ``two_hot`` is set. The methods turn them into what plain operations need.
    """

    logits: Tensor  # (n, K) of any floating type
    index: Tensor | None  # (n,) class indices of any integer type, ignored ones included
    probs: Tensor | None  # (n, K)
    two_hot: TwoHot | None  # each (n,)
    weight: Tensor | None  # (K,)
    ignore_index: int | None  # None where labels were looked at, and none is ignored
    label_smoothing: float
    reduction: str
    shape: torch.Size  # of the unreduced loss
    dtype: torch.dtype  # of the returned loss

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return self.logits.shape[1]

    @property
    def dense(self) -> bool:
        """Whether a target names all classes."""
        return self.probs is not None or self.label_smoothing > 0

    @property
    def computed(self) -> torch.dtype:
        """The type that the loss is computed in."""
        return compute_dtype(self.logits)

    def valid(self) -> Tensor | None:
        """Which rows take part (n,) bool; None where none can be ignored."""
        return None if self.index is None or self.ignore_index is None else self.index != self.ignore_index

    def values(self) -> Tensor:
        """Logits (n, K) in float32 or float64; 0 in ignored rows, so that not even a NaN in them reaches the loss."""
        values, valid = self.logits.to(self.computed), self.valid()
        return values if valid is None else values.masked_fill(~valid[:, None], 0.0)

    def labels(self) -> list[tuple[Tensor, Tensor | None]]:
        """The one or two classes of each row, (n,) int64 and in range, and their shares (n,); None for a whole row."""
        valid = self.valid()
        if self.index is not None:  # any class will do for an ignored row
            return [((self.index if valid is None else torch.where(valid, self.index, 0)).long(), None)]
        if self.two_hot is None:
            return []
        share = self.two_hot.share.to(self.computed)
        return [(self.two_hot.first.long(), share), (self.two_hot.second.long(), 1 - share)]

    def weights(self) -> Tensor | None:
        """Class weights (K,) in the type that is computed in."""
        return None if self.weight is None else self.weight.to(self.computed)

    def count(self) -> Tensor:
        """How many rows take part, as a 0-dim tensor."""
        valid = self.valid()
        if valid is None:
            return self.logits.new_full((), float(self.logits.shape[0]), dtype=self.computed)
        return valid.sum().to(self.computed)


def check_call(
    input: Tensor, target: Target, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> torch.Size:
    """Check the arguments that all losses share; returns the shape of the unreduced loss."""
    _checks.check_logits(input)
    _checks.check_reduction(reduction)
    _checks.check_label_smoothing(label_smoothing)
    _checks.check_ignore_index(ignore_index)
    K = input.shape[0] if input.dim() == 1 else input.shape[1]
    _checks.check_weight(weight, K)
    if isinstance(target, TwoHot):
        # Spelt out: the compiler of torch 2.6 cannot walk through a named tuple's field names.
        parts = {"first": target.first, "second": target.second, "share": target.share}
        return _checks.check_two_hot(input, parts, K, ignore_index)
    if _checks.is_probability_target(input, target):
        return _checks.check_probabilities(input, target, ignore_index)
    return _checks.check_indices(input, target, K, ignore_index)


def prepare_rows(
    input: Tensor, target: Target, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float
) -> Rows:
    """Check the arguments that all losses share and flatten them to :class:`Rows`."""
    shape = check_call(input, target, weight, ignore_index, reduction, label_smoothing)
    two_hot = probs = index = None
    if isinstance(target, TwoHot):
        two_hot = TwoHot(target.first.reshape(-1), target.second.reshape(-1), target.share.reshape(-1))
    elif target.is_floating_point():
        probs = flatten_logits(target)
    else:
        index = target.reshape(-1)
        # As a byte, -100 would be 156, and a byte's 255 would be no class of 300.
        index = index if index.dtype in (torch.int64, torch.int32) else index.long()
    logits = flatten_logits(input)
    smoothing = float(label_smoothing)
    return Rows(logits, index, probs, two_hot, weight, ignore_index, smoothing, reduction, shape, loss_dtype(input))


def flatten_logits(values: Tensor) -> Tensor:
    """(K,), (n, K) or (N, K, d1, ...) -> (rows, K)."""
    if values.dim() == 1:
        return values[None, :]
    if values.dim() == 2:
        return values
    return values.movedim(1, -1).reshape(-1, values.shape[1])


def compute_dtype(input: Tensor) -> torch.dtype:
    """Half types are computed in float32; float32 and float64 as they are."""
    return torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype


def loss_dtype(input: Tensor) -> torch.dtype:
    """The input's own type, as ``nn.CrossEntropyLoss`` has it, and float32 under autocast."""
    if input.device.type != "meta" and torch.is_autocast_enabled(input.device.type):  # meta knows no autocast
        return compute_dtype(input)
    return input.dtype


def column_logsumexp(values: Tensor) -> Tensor:
    """``values.logsumexp(0)``, with a zero gradient, not NaN, in columns that are -inf throughout -> (K,).

    Such a column is a class that the model rules out by a logit of -inf; the other classes must train on.
    """
    top = values.detach().amax(0)  # (K,)
    top = top.masked_fill(top == -torch.inf, 0.0)
    total = (values - top).exp().sum(0)  # (K,) at least 1, or 0 in such a column
    empty = total == 0
    return (total.masked_fill(empty, 1.0).log() + top).masked_fill(empty, -torch.inf)


def _unchanged(values: Tensor) -> Tensor:
    return values


def target_sum(rows: Rows, values: Tensor, cost: Callable[[Tensor], Tensor] = _unchanged) -> Tensor:
    """The target's expectation of a cost, per row: sum_k w_k t_ik cost(values_ik), 0 where ignored -> (n,).

    ``values`` is (n, K) or broadcasts to it by ``expand``. For class indices only the costs that count are computed. A
    class that a target does not name adds nothing, even if its cost is infinite.
    """
    n, K = rows.logits.shape
    values, weight = values.expand(n, K), rows.weights()

    def of_class(index: Tensor, share: Tensor | None) -> Tensor:
        picked = values.gather(1, index[:, None]).squeeze(1)  # (n,)
        return _shared(cost, picked, share, None if weight is None else weight[index])

    def over_classes(share: Tensor | None) -> Tensor:
        return _shared(cost, values, share, weight).sum(1)

    if rows.probs is not None:
        total = over_classes(rows.probs.to(rows.computed))
    else:
        parts = [of_class(label, share) for label, share in rows.labels()]
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    if rows.label_smoothing > 0:
        eps = rows.label_smoothing
        total = (1 - eps) * total + (eps / K) * over_classes(None)
    valid = rows.valid()
    return total if valid is None else torch.where(valid, total, 0.0)


def _shared(cost: Callable[[Tensor], Tensor], values: Tensor, *shares: Tensor | None) -> Tensor:
    """The product of the cost with the shares, where no share of what is infinite is 0, and has no gradient."""
    for share in shares:
        if share is not None:
            values = values.masked_fill((share == 0) & ~values.isfinite(), 0.0)
    costs = cost(values)
    for share in shares:
        costs = costs if share is None else share * costs
    return costs


def target_matrix(rows: Rows) -> Tensor:
    """The weighted targets w_k t_ik of all classes, 0 in ignored rows -> (n, K)."""
    n, K = rows.logits.shape
    if rows.probs is not None:
        found = rows.probs.to(rows.computed)
    else:
        found = rows.logits.new_zeros((n, K), dtype=rows.computed)
        for label, share in rows.labels():
            ones = found.new_ones(n) if share is None else share
            found = found.scatter_add(1, label[:, None], ones[:, None])
    if rows.label_smoothing > 0:
        found = (1 - rows.label_smoothing) * found + rows.label_smoothing / K
    weight, valid = rows.weights(), rows.valid()
    found = found if weight is None else found * weight
    return found if valid is None else found * valid[:, None]


def target_mass(rows: Rows) -> Tensor:
    """The row's weighted label mass tau_i = sum_k w_k t_ik, 0 where ignored -> (n,)."""
    return target_sum(rows, rows.logits.new_ones((), dtype=rows.computed))


def label_counts(rows: Rows, of_row: Tensor | None = None) -> Tensor:
    """Label mass before weights and smoothing, sum_i g_i t_ik, with g = 1 by default -> (K,)."""
    zeros = rows.logits.new_zeros(rows.num_classes, dtype=rows.computed)
    if rows.probs is not None:
        return (rows.probs.to(zeros.dtype) if of_row is None else of_row[:, None] * rows.probs).sum(0)
    if rows.index is not None and rows.ignore_index is None and of_row is None:
        return torch.bincount(rows.index, minlength=rows.num_classes).to(zeros.dtype)
    # Exactly: 2^24 + 1 is not a float32, and a class can have more rows than that.
    valid = rows.valid()
    exact = zeros if zeros.device.type == "mps" else zeros.double()  # Apple's devices lack it
    if valid is not None and of_row is None:
        exact, of_row = zeros.long(), valid.long()
    for label, share in rows.labels():
        assert share is not None or of_row is not None  # rows without shares were counted above
        part = cast(Tensor, share) if of_row is None else of_row if share is None else of_row * share
        exact = exact.scatter_add(0, label, part.to(exact.dtype))
    return exact.to(zeros.dtype)


def class_mass(rows: Rows, of_row: Tensor | None = None) -> Tensor:
    """The class's weighted label mass T_k = w_k sum_i g_i t_ik, with g = 1 by default (0 in ignored rows) -> (K,)."""
    mass = label_counts(rows, of_row)
    if rows.label_smoothing > 0:
        eps = rows.label_smoothing
        mass = (1 - eps) * mass + (eps / rows.num_classes) * (rows.count() if of_row is None else of_row.sum())
    weight = rows.weights()
    return mass if weight is None else mass * weight


def mean_denominator(rows: Rows) -> Tensor:
    """What "mean" divides by: sum_i w_{y_i} for class indices, the number of rows otherwise (PyTorch's rule)."""
    weight, valid = rows.weights(), rows.valid()
    if weight is None or rows.index is None:
        return rows.count()
    of_label = weight[rows.labels()[0][0]]
    return (of_label if valid is None else torch.where(valid, of_label, 0.0)).sum()


def reduce_rows(rows: Rows, losses: Tensor) -> Tensor:
    """Reduce the rows' losses (n,) the way ``nn.CrossEntropyLoss`` does."""
    if rows.reduction == "none":
        return losses.reshape(rows.shape).to(rows.dtype)
    total = losses.sum()
    if rows.reduction == "mean":
        denominator = mean_denominator(rows)
        nothing = denominator == 0  # the mean is NaN then, and no row has a gradient
        total = torch.where(nothing, torch.nan, total / denominator.masked_fill(nothing, 1.0))
    return total.to(rows.dtype)
