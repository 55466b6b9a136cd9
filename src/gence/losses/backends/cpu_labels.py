"""Targets of the CPU path: each row has one label, or two that share it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gence.losses.targets import Target, TwoHot, compute_dtype


@dataclass
class Labels:
    """Labels of the rows, and the settings of the loss.

    Attributes:
        labels: (class index (n,), share of the row (n,)) of each label; shares are 0 where the row is ignored.
        valid: (n,) bool, None where all rows take part.
        weight: class weights (K,).
        smoothing: label smoothing.
        reduction: "mean", "sum" or "none".
        anchor: strength of the anchor.
        prior: class distribution (K,) of the anchor.
        two_hot: whether there are two labels, so that "mean" divides by the rows.
    """

    labels: list[tuple[Tensor, Tensor]]
    valid: Tensor | None
    weight: Tensor | None
    smoothing: float
    reduction: str
    anchor: float | Tensor
    prior: Tensor | None
    two_hot: bool

    def tau(self) -> Tensor:
        """Weighted label mass of each row (n,)."""
        total = sum(share if self.weight is None else share * self.weight[index] for index, share in self.labels)
        assert isinstance(total, Tensor)  # there is at least one label
        if self.smoothing > 0:
            mean_weight = 1.0 if self.weight is None else self.weight.mean()
            total = (1 - self.smoothing) * total + self.smoothing * mean_weight * self.taking_part(total)
        return total

    def taking_part(self, like: Tensor) -> Tensor:
        """1 for rows that take part, 0 for the others (n,)."""
        return torch.ones_like(like) if self.valid is None else self.valid.to(like.dtype)

    def masses(self, of_row: Tensor, num_classes: int) -> Tensor:
        """T_k = w_k sum_i g_i t_ik (K,)."""
        # In float64: 2^24 + 1 is no float32, and a class can have more rows than that.
        exact = of_row.new_zeros(num_classes, dtype=torch.float64)
        for index, share in self.labels:
            exact.scatter_add_(0, index, (share * of_row).double())
        mass = exact.to(of_row.dtype)
        if self.smoothing > 0:
            rows = (self.taking_part(of_row) * of_row).sum()
            mass = (1 - self.smoothing) * mass + (self.smoothing / num_classes) * rows
        return mass if self.weight is None else mass * self.weight

    def parts(self, of_row: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(class index (n,), g_i w_k t_ik (n,)) of each label, without what smoothing gives to all classes."""
        found = []
        for index, share in self.labels:
            part = (1 - self.smoothing) * share * of_row
            found.append((index, part if self.weight is None else part * self.weight[index]))
        return found

    def denominator(self) -> Tensor:
        """What "mean" divides by: the weights of the rows' labels for class indices, the rows for two-hot targets."""
        index, share = self.labels[0]
        if self.two_hot:
            return share.new_full((), float(len(share)))
        return share.sum() if self.weight is None else (share * self.weight[index]).sum()

    def tensors(self) -> list[Tensor | None]:
        """The tensors that the caller may hold too."""
        anchor = self.anchor if isinstance(self.anchor, Tensor) else None
        return [part for label in self.labels for part in label] + [self.weight, self.prior, anchor]

    @property
    def indices(self) -> list[Tensor]:
        """Class indices (n,) of each label."""
        return [index for index, _ in self.labels]

    def differentiable_gradients(
        self, logits: Tensor, context: Tensor | None, upstream: Tensor, needed: tuple[bool, ...]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of logits and context by plain operations, for a second derivative."""
        from gence.losses.generative import plain_loss

        (index, share), *more = self.labels
        target: Target = index if self.valid is None else index.masked_fill(~self.valid, -100)
        if more:
            target = TwoHot(index, more[0][0], share)
        with torch.enable_grad():
            value = plain_loss(
                logits.to(compute_dtype(logits)),  # a half type's loss could not hold a scaled upstream gradient
                target,
                self.weight,
                -100,
                self.reduction,
                self.smoothing,
                self.anchor,
                self.prior,
                context,
            )
        wanted = [t for t, need in ((logits, needed[0]), (context, needed[1])) if need and t is not None]
        grads = list(torch.autograd.grad(value, wanted, upstream.to(value.dtype), create_graph=True))
        return grads.pop(0) if needed[0] else None, grads.pop(0) if needed[1] else None
