"""Marginals of more than one batch: collected over micro-batches, or averaged over steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gence.losses import _checks
from gence.losses.parts import ranks
from gence.losses.parts.share import Marginal, log_softmax_of, marginal_of, merge, over_ranks, prepare_part
from gence.losses.targets import Target


class BatchMarginal:
    r"""What the micro-batches of one large batch need to know of each other: :math:`\log S`, :math:`T` and :math:`D`.

    Fill it in a first pass without gradients, then hand it to the loss in the training pass. Each micro-batch's loss is
    then its share of the large batch's: the shares sum to its loss, and their gradients to its gradient, exactly.

    The three arguments are those of the loss; :meth:`GenCELoss.batch_marginal` makes one that has them already.

    Args:
        weight: class weights (K,).
        ignore_index: rows with this index take no part.
        label_smoothing: in [0, 1].
        process_group: ranks whose rows belong to the batch too; :meth:`reduce` adds them.

    >>> import torch, gence
    >>> logits, target = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    >>> criterion = gence.GenCELoss()
    >>> marginal = criterion.batch_marginal()
    >>> for part in (slice(0, 5), slice(5, 7)):
    ...     marginal.update(logits[part], target[part])
    >>> shares = [criterion(logits[part], target[part], marginal=marginal) for part in (slice(0, 5), slice(5, 7))]
    >>> torch.testing.assert_close(sum(shares), criterion(logits, target))
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        *,
        process_group: ranks.Group | None = None,
    ) -> None:
        _checks.check_label_smoothing(label_smoothing)
        self.weight = weight
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.process_group = process_group
        self._sum: Marginal | None = None
        self._world_size: int | None = None

    @property
    def reduced(self) -> bool:
        """Whether the other ranks' rows are in it."""
        return self._world_size is not None

    @torch.no_grad()
    def update(self, input: Tensor, target: Target, context: Tensor | None = None) -> None:
        """Add a micro-batch: its logits, its target and, where the loss gets one, its context. Takes no gradient."""
        if self.reduced:
            raise RuntimeError("marginal: it was reduced over the ranks and is complete; make a new one for each batch")
        rows = prepare_part(input, target, self.weight, self.ignore_index, "mean", self.label_smoothing)
        _checks.check_context(context, rows.num_classes)
        part = marginal_of(rows, log_softmax_of(rows, context))
        if self._sum is not None and self._sum.mass.shape != part.mass.shape:
            raise ValueError(f"input: expected {self._sum.mass.shape[0]} classes as before, got {rows.num_classes}")
        self._sum = part if self._sum is None else merge(self._sum, part)

    def reduce(self) -> None:
        """Add the other ranks' rows: once, after the last update, on every rank. Does nothing without a group."""
        if self.process_group is None or self.reduced:
            return
        own = self._sum
        if own is None:  # takes part in the comparison of terms, so that every rank learns of it
            own = Marginal(torch.zeros(0), torch.zeros(0), torch.zeros(()), torch.zeros(()))
        terms = ranks.Terms.of(
            own.mass.shape[0], own.mass.dtype, "mean", self.ignore_index, self.label_smoothing, 0.0, self.weight, None
        )
        self._sum, self._world_size = over_ranks(own, terms, self.process_group)

    def check_terms(self, num_classes: int, weight: Tensor | None, ignore_index: int, label_smoothing: float) -> None:
        """Raise if the loss has other arguments than those this was filled under."""
        if self._sum is None:
            raise RuntimeError("marginal: it is empty; call update(input, target) for each micro-batch first")
        if self._sum.mass.shape[0] != num_classes:
            seen = self._sum.mass.shape[0]
            raise ValueError(f"marginal: was filled with {seen} classes, the input has {num_classes}")
        for name, own, given in (
            ("ignore_index", self.ignore_index, ignore_index),
            ("label_smoothing", self.label_smoothing, label_smoothing),
        ):
            if own != given:
                raise ValueError(f"marginal: was filled with {name} = {own}, the loss has {given}")
        if not _same(self.weight, weight):
            raise ValueError("marginal: was filled with other class weights than the loss has")

    def whole(
        self, part: Callable[[], tuple[Marginal, int]], process_group: ranks.Group | None
    ) -> tuple[Marginal, int]:
        """What was collected; the current rows are in it already."""
        del part
        if process_group is not None and not self.reduced:
            raise RuntimeError(
                "marginal: the loss has a process_group, but this holds the rows of one rank. Make it with "
                "criterion.batch_marginal() and call reduce() after the last update, on every rank."
            )
        assert self._sum is not None  # check_terms has seen to it
        return self._sum, self._world_size or 1


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    if first is second or not (_checks.values_can_be_read(first) and _checks.values_can_be_read(second)):
        return True
    return torch.equal(first, second)


class RunningMarginal(nn.Module):
    r"""An exponential average of the class marginal, for batches that are much smaller than the number of classes.

    The current batch is completed by all earlier ones, as they were predicted then, each step weighted by
    ``momentum`` less than the next: :math:`\tilde S \leftarrow \mathrm{momentum} \cdot \tilde S + S`, and the same for
    :math:`T`. A batch of ``n`` rows thus competes with about ``n / (1 - momentum)`` rows. ``momentum=0`` is the plain
    loss.

    Biased: earlier predictions are those of earlier weights, and no gradient flows to their rows. The faster the
    network changes, the smaller ``momentum`` should be. Batches that are large enough need none of this.

    The average is in the ``state_dict``. With a ``process_group`` in the loss it is that of all ranks. It moves when
    the loss is computed with gradients enabled and this module is in training mode; a batch with NaN is skipped.

    Args:
        num_classes: number of classes K.
        momentum: in [0, 1); how much of the past is kept per step.

    >>> import torch, gence
    >>> running, criterion = gence.RunningMarginal(3, momentum=0.9), gence.GenCELoss()
    >>> for _ in range(5):
    ...     loss = criterion(torch.zeros(2, 3), torch.tensor([0, 1]), marginal=running)
    >>> round(float(running.total), 4)  # 2 * (1 + 0.9 + 0.9 ** 2 + ...)
    8.1902
    """

    log_sums: Tensor
    mass: Tensor
    total: Tensor

    def __init__(self, num_classes: int, momentum: float = 0.99) -> None:
        super().__init__()
        _checks.check_number("num_classes", num_classes, "a positive number")
        if num_classes < 1:
            raise ValueError(f"num_classes: expected a positive number, got {num_classes}")
        _checks.check_number("momentum", momentum, "a number in [0, 1)")
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum: expected a number in [0, 1), got {momentum}")
        self.momentum = momentum
        self.register_buffer("log_sums", torch.full((num_classes,), -torch.inf))
        self.register_buffer("mass", torch.zeros(num_classes))
        self.register_buffer("total", torch.zeros(()))

    @property
    def reduced(self) -> bool:
        """False: each batch's part of it has to come from all ranks, through the loss's ``process_group``."""
        return False

    def check_terms(self, num_classes: int, weight: Tensor | None, ignore_index: int, label_smoothing: float) -> None:
        """Raise if the loss has another number of classes. The other arguments may change on the way."""
        del weight, ignore_index, label_smoothing
        if self.mass.shape[0] != num_classes:
            raise ValueError(f"marginal: was made for {self.mass.shape[0]} classes, the input has {num_classes}")

    def whole(
        self, part: Callable[[], tuple[Marginal, int]], process_group: ranks.Group | None
    ) -> tuple[Marginal, int]:
        """The current rows and what is left of the earlier ones; "mean" divides by the current rows."""
        del process_group  # part() has seen to it
        own, world_size = part()
        own = own._replace(log_sums=own.log_sums.to(own.mass))  # as exact as what is kept of earlier batches
        log_momentum = math.log(self.momentum) if self.momentum > 0 else -math.inf
        log_sums = torch.logaddexp(self.log_sums.to(own.log_sums) + log_momentum, own.log_sums)
        mass = self.mass.to(own.mass) * self.momentum + own.mass
        total = self.total.to(own.total) * self.momentum + own.total
        if self.training and torch.is_grad_enabled():
            self._remember(log_sums, mass, total)
        return Marginal(log_sums, mass, own.denominator, total), world_size

    @torch.no_grad()
    def _remember(self, log_sums: Tensor, mass: Tensor, total: Tensor) -> None:
        spoilt = log_sums.isnan().any() | mass.isnan().any()
        self.log_sums.copy_(torch.where(spoilt, self.log_sums, log_sums))
        self.mass.copy_(torch.where(spoilt, self.mass, mass))
        self.total.copy_(torch.where(spoilt, self.total, total))

    def extra_repr(self) -> str:
        """What ``print(running)`` shows."""
        return f"{self.mass.shape[0]}, momentum={self.momentum}"
