"""Checks of the anchor and its prior, which scores, batches and curvatures share: the loss's own, and finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gence.losses._checks import check_anchor, check_prior


def checked_anchor(anchor: float) -> float:
    """Return ``anchor`` as a number after checking that it is finite and not negative.

    The loss takes any anchor >= 0. Here an infinite one is refused: it would multiply a divergence of 0.
    """
    check_anchor(anchor)
    anchor = float(anchor.detach() if isinstance(anchor, Tensor) else anchor)
    if math.isinf(anchor):
        raise ValueError("anchor: expected a finite number >= 0 (0 is the paper's loss), got inf")
    return anchor


def checked_prior(prior: Tensor | None, classes: int | None = None) -> Tensor | None:
    """Return ``prior`` in float64 after checking that it is a distribution over ``classes``, over any number if None.

    It is not divided by its sum: the loss takes a prior as it comes, and its curvature is compared with the loss's.
    """
    check_prior(prior, classes)
    return None if prior is None else prior.detach().to(torch.float64)
