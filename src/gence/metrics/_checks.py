"""Argument checks of the metrics: what comes in is refused with a clear error or handed on in float64.

Evaluation is not a hot path, so a check may read a value back from the device; each argument costs one such read.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows of probabilities must sum to 1 within this much: a softmax in the same type stays far inside, logits do not.
_ROW_SUM_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


# Numbers taken to float64 at a time, where rows can be looked at block by block: on a CPU so few that what is made of
# them stays in its caches, and that the system is not asked for new memory at every step.
_BLOCK, _BLOCK_ON_CPU = 1 << 22, 1 << 18


def as_logits(logits: Tensor, name: str = "logits") -> Tensor:
    """Check logits of shape (n, K) and return them, detached, in float64.

    A single logit may be -inf (a class that is ruled out); NaN, +inf and rows of -inf alone are refused.
    """
    return checked_logits(logits, name).double()


def blocks(values: Tensor) -> tuple[Tensor, ...]:
    """Checked (n, K) values as blocks of rows: of 10,000 classes, all in float64 would take gigabytes."""
    return torch.split(values, max(1, (_BLOCK_ON_CPU if values.is_cpu else _BLOCK) // values.shape[1]))


def checked_logits(logits: Tensor, name: str = "logits") -> Tensor:
    """Check logits as `as_logits` does and return them, detached, in their own type."""
    values = _checked_matrix(logits, name)
    top = values.amax(dim=1)  # (n,); NaN if the row holds one
    bad = ~top.isfinite()
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"{name}: row {row} holds NaN or +inf, or only -inf (its maximum is {float(top[row])}); finite logits were "
            f"expected. A diverged run has no metrics: record it as diverged."
        )
    return values


def as_probs(probs: Tensor, name: str = "probs") -> Tensor:
    """Check probabilities of shape (n, K), rows summing to 1, and return them, detached, in float64."""
    values = _as_matrix(probs, name)
    tolerance = _ROW_SUM_TOLERANCE.get(probs.dtype, 1e-4)
    sums = values.sum(dim=1)
    # Written so that NaN, for which every comparison is false, counts as bad.
    bad = ~((values.amin(dim=1) >= 0) & ((sums - 1).abs() <= tolerance))
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"{name}: row {row} has minimum {float(values[row].amin()):.6g} and sum {float(sums[row]):.6g}; "
            f"probabilities >= 0 that sum to 1 (within {tolerance:g}) were expected. If these are logits, pass "
            f"{name}.softmax(dim=1)."
        )
    return values


def as_class_scores(scores: Tensor, name: str = "scores") -> Tensor:
    """Check scores of shape (n, K) of which only the order within a row counts."""
    return as_logits(scores, name)


def as_target(target: Tensor, like: Tensor, name: str = "target") -> Tensor:
    """Check class indices of shape (n,) against checked (n, K) values and return them as int64."""
    _require_tensor(target, name)
    n, classes = like.shape
    if target.shape != (n,):
        raise ValueError(
            f"{name}: shape {tuple(target.shape)} was given, ({n},) expected: one class index for each row. Class "
            f"probabilities (n, K) have no single right answer; pass their argmax if that is what you mean."
        )
    _require_device(target, like, name)
    return as_labels(target, classes, name)


def as_labels(target: Tensor, classes: int, name: str = "target") -> Tensor:
    """Check class indices of shape (n,) in 0..classes-1 and return them as int64."""
    _require_tensor(target, name)
    if target.dtype == torch.bool or target.is_floating_point() or target.is_complex():
        raise TypeError(f"{name}: dtype {target.dtype} was given, an integer type expected; convert with .long().")
    if target.dim() != 1 or target.numel() == 0:
        raise ValueError(f"{name}: shape {tuple(target.shape)} was given, (n,) with n >= 1 expected.")
    labels = target.detach().long()
    low, high = torch.stack([labels.amin(), labels.amax()]).tolist()
    if low < 0 or high >= classes:
        raise ValueError(
            f"{name}: class indices from {low} to {high} were given, 0 to {classes - 1} expected. Take rows to be "
            f"ignored out of both arguments first."
        )
    return labels


def as_scores(scores: Tensor, name: str) -> Tensor:
    """Check one score per row, shape (n,), without NaN, and return them, detached, in float64."""
    _require_tensor(scores, name)
    if not scores.is_floating_point():
        raise TypeError(f"{name}: dtype {scores.dtype} was given, a floating point type expected.")
    if scores.dim() != 1 or scores.numel() == 0:
        raise ValueError(
            f"{name}: shape {tuple(scores.shape)} was given, (n,) with n >= 1 expected: one score per row."
        )
    values = scores.detach().double()
    bad = values.isnan()
    if bool(bad.any()):
        raise ValueError(
            f"{name}: row {int(bad.nonzero()[0, 0])} is NaN, which has no rank; a diverged run has no metrics."
        )
    return values


def as_correct(correct: Tensor, like: Tensor, name: str = "correct") -> Tensor:
    """Check right-or-wrong flags, bool of shape (n,)."""
    _require_tensor(correct, name)
    if correct.dtype != torch.bool:
        raise TypeError(f"{name}: dtype {correct.dtype} was given, torch.bool expected; pass predicted == target.")
    if correct.shape != like.shape:
        raise ValueError(f"{name}: shape {tuple(correct.shape)} was given, {tuple(like.shape)} expected.")
    _require_device(correct, like, name)
    return correct


def check_bins(bins: int) -> int:
    """Check a number of bins."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins: {bins!r} was given, a whole number of at least 1 expected.")
    return bins


def _as_matrix(values: Tensor, name: str) -> Tensor:
    return _checked_matrix(values, name).double()


def _checked_matrix(values: Tensor, name: str) -> Tensor:
    _require_tensor(values, name)
    if not values.is_floating_point():
        raise TypeError(f"{name}: dtype {values.dtype} was given, a floating point type expected.")
    if values.dim() != 2 or values.numel() == 0:
        raise ValueError(
            f"{name}: shape {tuple(values.shape)} was given, (n, K) with n >= 1 rows and K >= 1 classes expected. "
            f"Flatten dense predictions to rows first."
        )
    return values.detach()


def _require_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: {type(value).__name__} was given, a torch.Tensor expected.")


def _require_device(value: Tensor, like: Tensor, name: str) -> None:
    if value.device != like.device:
        raise ValueError(f"{name}: is on {value.device}, the predictions on {like.device}; move one to the other.")
