"""What `fit` may be given: images, and weights of rows.

Images are arrays or file names, and become rows of a pretrained encoder. A weight of 2 must mean the row twice. For a
loss that treats rows alone that is a weighted mean; GenCE couples its rows, so a weight enters the summed predictions S
as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gence.losses import GenCELoss, Marginal, column_logsumexp

if TYPE_CHECKING:
    from gence.losses import Group


def image_features(images: Any, encoder: str) -> np.ndarray:
    """Return the features (n, D), float32, of images under a pretrained encoder; they are kept in the cache.

    Args:
        images: uint8 (n, H, W), (n, H, W, C) or (n, C, H, W); or file names.
        encoder: "efficientnet_lite0" (the extra `pretrained`) or "timm:NAME".

    Raises:
        ValueError: neither arrays of images nor file names, or an encoder whose weights are not to be had.
    """
    from gence.lab.data import ImageSet
    from gence.lab.features import ImageSource, embed, load_encoder

    network = load_encoder(encoder)
    if _are_names(images):
        source: Any = ImageSource.of_files([Path(os.fspath(one)) for one in images], network.preprocessing.size)
    else:
        pixels = np.asarray(images)
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
            raise ValueError(
                f"X: {pixels.dtype} of shape {pixels.shape} was given; with encoder={encoder!r} expected images, uint8 "
                "of shape (n, H, W), (n, H, W, C) or (n, C, H, W), or a list of file names"
            )
        source = ImageSet.from_arrays(pixels, np.zeros(len(pixels), dtype=np.int64), ["unlabelled"])
    rows: np.ndarray = embed(source, network).rows().float().numpy()
    return rows


def _are_names(images: Any) -> bool:
    first = images[0] if isinstance(images, Sequence | np.ndarray) and len(images) else None
    return isinstance(first, str | os.PathLike)


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
    >>> from gence.integrations.inputs import weighted_loss
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
