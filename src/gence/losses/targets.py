"""What a target may be, and how every layout becomes rows.

Losses here see one problem only: ``n`` rows of ``K`` logits, each with a target that is linear in the loss. This file
turns whatever ``nn.CrossEntropyLoss`` accepts (and MixUp's two-hot targets) into that form, and sums costs over it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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


@dataclass(frozen=True)
class Rows:
    """A validated classification problem, flattened to rows.

    Exactly one of ``index``, ``probs`` and ``two_hot`` is set. ``valid`` is None where no row can be ignored.
    Rows that are ignored have their logits set to 0, so that not even a NaN in them reaches the loss or its gradient.
    """

    logits: Tensor  # (n, K), float32 or float64
    index: Tensor | None  # (n,)
    probs: Tensor | None  # (n, K)
    two_hot: TwoHot | None  # each (n,)
    valid: Tensor | None  # (n,) bool
    weight: Tensor | None  # (K,)
    label_smoothing: float
    shape: torch.Size  # of the unreduced loss
    dtype: torch.dtype  # of the returned loss

    @property
    def num_classes(self) -> int:
        """Number of classes K."""
        return self.logits.shape[1]

    def count(self) -> Tensor:
        """How many rows take part, as a 0-dim tensor."""
        if self.valid is None:
            return self.logits.new_full((), float(self.logits.shape[0]))
        return self.valid.sum().to(self.logits.dtype)


def check_call(
    input: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> torch.Size:
    """Check the arguments that all losses share; returns the shape of the unreduced loss."""
    _checks.check_logits(input)
    _checks.check_reduction(reduction)
    _checks.check_label_smoothing(label_smoothing)
    _checks.check_ignore_index(ignore_index)
    K = input.shape[0] if input.dim() == 1 else input.shape[1]
    _checks.check_weight(weight, K)
    if isinstance(target, TwoHot):
        return _checks.check_two_hot(input, target, K, ignore_index)
    if _checks.is_probability_target(input, target):
        return _checks.check_probabilities(input, target, ignore_index)
    return _checks.check_indices(input, target, K, ignore_index)


def prepare_rows(
    input: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Rows:
    """Check the arguments that all losses share and flatten them to :class:`Rows`."""
    shape = check_call(input, target, weight, ignore_index, reduction, label_smoothing)
    dtype = compute_dtype(input)
    logits = flatten_logits(input).to(dtype)  # (n, K)
    index = probs = two_hot = valid = None
    if isinstance(target, TwoHot):
        two_hot = TwoHot(
            target.first.reshape(-1).long(), target.second.reshape(-1).long(), target.share.reshape(-1).to(dtype)
        )
    elif target.is_floating_point():
        probs = flatten_logits(target).to(dtype)  # (n, K)
    else:
        flat = target.reshape(-1).long()  # (n,)
        valid = flat != ignore_index  # (n,)
        index = torch.where(valid, flat, 0)  # (n,) any class will do for an ignored row
        logits = logits.masked_fill(~valid[:, None], 0.0)  # (n, K)
    return Rows(
        logits=logits,
        index=index,
        probs=probs,
        two_hot=two_hot,
        valid=valid,
        weight=None if weight is None else weight.to(dtype),
        label_smoothing=float(label_smoothing),
        shape=shape,
        dtype=loss_dtype(input),
    )


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


def needs_plain_gradient(upstream: Tensor) -> bool:
    """Whether a backward pass must be plain operations: it will be differentiated itself, or does many at once."""
    # Where PyTorch takes many gradients at once (is_grads_batched, jacobian), it is by its older kind of batch.
    return torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(upstream)


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

    ``values`` is (n, K) or broadcasts to it by ``expand``. For class indices only the costs that count are computed.
    """
    n, K = rows.logits.shape
    values = values.expand(n, K)

    def of_class(index: Tensor) -> Tensor:
        picked = cost(values.gather(1, index[:, None]).squeeze(1))  # (n,)
        return picked if rows.weight is None else picked * rows.weight[index]

    def over_classes(share: Tensor | None) -> Tensor:
        costs = cost(values)  # (n, K)
        if share is not None:
            costs = share * costs
        return costs.sum(1) if rows.weight is None else (costs * rows.weight).sum(1)

    if rows.index is not None:
        total = of_class(rows.index)
    elif rows.two_hot is not None:
        first, second, share = rows.two_hot
        total = share * of_class(first) + (1 - share) * of_class(second)
    else:
        total = over_classes(rows.probs)
    if rows.label_smoothing > 0:
        eps = rows.label_smoothing
        total = (1 - eps) * total + (eps / K) * over_classes(None)
    return total if rows.valid is None else torch.where(rows.valid, total, 0.0)


def target_ratio(rows: Rows, log_s: Tensor, log_p: Tensor) -> Tensor:
    """The rows' losses before any anchor: sum_k w_k t_ik (log S_k - log p_ik), 0 where ignored -> (n,).

    Where a target names many classes, the difference is taken before the sum: of a class that every row masks by a huge
    number both logarithms are huge, and sums of them have no digits left for their difference.
    """
    if rows.probs is None and rows.label_smoothing == 0:
        return target_sum(rows, log_s) - target_sum(rows, log_p)
    return target_sum(rows, log_s - log_p)


def target_mass(rows: Rows) -> Tensor:
    """The row's weighted label mass tau_i = sum_k w_k t_ik, 0 where ignored -> (n,)."""
    return target_sum(rows, rows.logits.new_ones(()))


def class_mass(rows: Rows) -> Tensor:
    """The class's weighted label mass T_k = w_k sum_i t_ik -> (K,)."""
    zeros = rows.logits.new_zeros(rows.num_classes)
    if rows.index is not None and rows.valid is not None:
        # Counted as whole numbers: 2^24 + 1 is no float32, and a class can have more rows than that.
        mass = zeros.long().scatter_add(0, rows.index, rows.valid.long()).to(zeros.dtype)
    elif rows.two_hot is not None:
        first, second, share = rows.two_hot
        exact = zeros if zeros.device.type == "mps" else zeros.double()  # Apple's devices lack it
        share = share.to(exact.dtype)
        mass = exact.scatter_add(0, first, share).scatter_add(0, second, 1 - share).to(zeros.dtype)
    else:
        assert rows.probs is not None  # one of the three forms is set
        mass = rows.probs.sum(0)
    if rows.label_smoothing > 0:
        eps = rows.label_smoothing
        mass = (1 - eps) * mass + (eps / rows.num_classes) * rows.count()
    return mass if rows.weight is None else mass * rows.weight


def mean_denominator(rows: Rows) -> Tensor:
    """What "mean" divides by: sum_i w_{y_i} for class indices, the number of rows otherwise (PyTorch's rule)."""
    if rows.index is None or rows.weight is None or rows.valid is None:
        return rows.count()
    return torch.where(rows.valid, rows.weight[rows.index], 0.0).sum()


def reduce_rows(rows: Rows, losses: Tensor, reduction: str) -> Tensor:
    """Reduce the rows' losses (n,) the way ``nn.CrossEntropyLoss`` does."""
    if reduction == "none":
        return losses.reshape(rows.shape).to(rows.dtype)
    total = losses.sum()
    if reduction == "mean":
        total = total / mean_denominator(rows)
    return total.to(rows.dtype)
