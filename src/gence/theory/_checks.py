"""Checks that the files here share: tensors, counts, and the loss's own checks of the anchor and its prior."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor

from gence.losses import check_anchor, check_prior


def check_tensor(name: str, value: Any, expected: str) -> None:
    """``value`` must be a tensor of real numbers; lists and arrays are refused, as they are by the losses."""
    if not isinstance(value, Tensor):
        seen = type(value).__name__
        raise TypeError(f"{name}: expected a tensor {expected}, got {seen}; torch.as_tensor({name}) makes one.")
    if value.is_complex():
        raise TypeError(f"{name}: expected a tensor {expected} of real numbers, got dtype {value.dtype}.")


def checked_count(name: str, value: Any, least: int) -> int:
    """Return ``value`` as an int after checking that it is a whole number of at least ``least``."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, at least {least}, got {value!r}.") from None
    if count < least:
        raise ValueError(f"{name}: expected at least {least}, got {count}.")
    return count


def checked_seed(seed: Any) -> int:
    """Return ``seed`` as an int after checking that it is a whole number."""
    try:
        return operator.index(seed)
    except TypeError:
        raise TypeError(f"seed: expected a whole number, got {seed!r}.") from None


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
