"""Argument checks of what is fitted on held-out rows: an error names the argument, what came and what was expected."""

from __future__ import annotations

import torch
from torch import Tensor


def check_logits(logits: Tensor, name: str = "logits", *, finite: bool = False) -> None:
    """Logits (n, K) without NaN or +inf; a class may be ruled out by -inf, unless all have to be finite."""
    _check_matrix(logits, name)
    values = logits.detach()
    if finite and not bool(values.isfinite().all()):
        raise ValueError(f"{name}: NaN or infinity was given, finite logits expected.")
    if not bool(values.amax(1).isfinite().all()):
        raise ValueError(f"{name}: a row holds NaN or +inf, or only -inf; finite logits were expected.")


def check_probs(probs: Tensor, name: str = "probs") -> None:
    """Probabilities (n, K), whose rows sum to 1."""
    _check_matrix(probs, name)
    values = probs.detach().double()
    off = (values.sum(1) - 1).abs().amax()
    allowed = 1e-4 if probs.dtype in (torch.float32, torch.float64) else 5e-2  # half types round by this much
    if not (bool((values >= 0).all()) and bool(off <= allowed)):  # written so that NaN fails too
        raise ValueError(
            f"{name}: a minimum of {float(values.amin()):.6g} and row sums off by up to {float(off):.6g} were given, "
            f"probabilities >= 0 that sum to 1 expected. If these are logits, pass {name}.softmax(dim=1)."
        )


def as_labels(labels: Tensor, like: Tensor, name: str = "labels") -> Tensor:
    """Class indices (n,) for the rows of (n, K), as int64."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name}: {type(labels).__name__} was given, a torch.Tensor expected.")
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"{name}: dtype {labels.dtype} was given, an integer type expected; convert with .long().")
    n, K = like.shape
    if labels.shape != (n,):
        raise ValueError(f"{name}: shape {tuple(labels.shape)} was given, ({n},) expected: one class index per row.")
    found = labels.detach().long()
    low, high = int(found.amin()), int(found.amax())
    if low < 0 or high >= K:
        raise ValueError(f"{name}: class indices from {low} to {high} were given, 0 to {K - 1} expected.")
    return found


def _check_matrix(values: Tensor, name: str) -> None:
    if not isinstance(values, Tensor):
        raise TypeError(f"{name}: {type(values).__name__} was given, a torch.Tensor expected.")
    if not values.is_floating_point():
        raise TypeError(f"{name}: dtype {values.dtype} was given, a floating point type expected.")
    if values.dim() != 2 or values.numel() == 0:
        raise ValueError(f"{name}: shape {tuple(values.shape)} was given, (n, K) with n >= 1 and K >= 1 expected.")
