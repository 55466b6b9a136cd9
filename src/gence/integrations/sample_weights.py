"""Losses of rows that count more or less than once.

A weight of 2 must mean the row twice. For a loss that treats rows alone that is a weighted mean; GenCE couples its
rows, so a weight enters the summed predictions S as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gence.losses import GenCELoss, Marginal, column_logsumexp

if TYPE_CHECKING:
    from gence.losses import Group


class WeightedMarginal:
    r"""What GenCE's rows need to know of each other, where row j counts :math:`u_j` times.

    :math:`S_k = \sum_j u_j p_{jk}`, :math:`T_k = w_k \sum_i u_i t_{ik}`, :math:`D = \sum_i u_i w_{y_i}`. To be
    passed to the loss as ``marginal``.
    """

    # No other rank's rows belong to it.
    reduced = True

    def __init__(self, criterion: GenCELoss, logits: Tensor, target: Tensor, sample_weight: Tensor) -> None:
        K = logits.shape[1]
        log_p = logits.detach().log_softmax(1)  # (n, K)
        smoothing = criterion.label_smoothing
        mass = logits.new_zeros(K).index_add_(0, target, sample_weight)  # (K,)
        mass = (1.0 - smoothing) * mass + smoothing / K * sample_weight.sum()
        self._marginal = Marginal(
            log_sums=column_logsumexp(log_p + sample_weight.log()[:, None]),
            mass=mass if criterion.weight is None else mass * criterion.weight,
            denominator=row_mass(criterion, target, sample_weight).sum(),
            total=sample_weight.sum(),
        )

    def check_terms(self, num_classes: int, weight: Tensor | None, ignore_index: int, label_smoothing: float) -> None:
        """Nothing to check: it was made from the loss itself."""

    def whole(self, part: Callable[[], tuple[Marginal, int]], process_group: Group | None) -> tuple[Marginal, int]:
        """The marginal, on one rank."""
        del part, process_group
        return self._marginal, 1


def row_mass(criterion: nn.CrossEntropyLoss, target: Tensor, sample_weight: Tensor) -> Tensor:
    """What each row adds to the denominator of "mean": its own weight times its class's -> (n,)."""
    return sample_weight if criterion.weight is None else sample_weight * criterion.weight[target]


def weighted_loss(criterion: nn.CrossEntropyLoss, logits: Tensor, target: Tensor, sample_weight: Tensor) -> Tensor:
    """The mean loss of a batch in which row i counts ``sample_weight[i]`` times.

    Args:
        criterion: any loss of the registry on logits, with reduction "none".
        logits: (n, K).
        target: class indices (n,).
        sample_weight: (n,), >= 0 and not all 0.

    >>> import torch, gence
    >>> from gence.integrations.sample_weights import weighted_loss
    >>> logits, target = torch.randn(3, 2), torch.tensor([0, 1, 0])
    >>> weighted = weighted_loss(gence.GenCELoss(reduction="none"), logits, target, torch.tensor([2.0, 1.0, 0.0]))
    >>> torch.testing.assert_close(weighted, gence.gen_cross_entropy(logits[[0, 0, 1]], target[[0, 0, 1]]))
    """
    if criterion.reduction != "none":
        raise ValueError(f'criterion: expected reduction "none", got {criterion.reduction!r}')
    if isinstance(criterion, GenCELoss):
        marginal = WeightedMarginal(criterion, logits, target, sample_weight)
        losses: Tensor = criterion(logits, target, marginal=marginal)  # (n,)
    else:
        losses = criterion(logits, target)
    # where: 0 times an infinite loss is NaN, and a row that does not count must not spoil the rest.
    counted = torch.where(sample_weight > 0, losses, 0.0)
    return (sample_weight * counted).sum() / row_mass(criterion, target, sample_weight).sum()
