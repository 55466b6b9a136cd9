"""What recalibration would take away: the temperature that minimises the NLL, and the parts of NLL and Brier score.

A score is refinement plus calibration: refinement is what is left when the probabilities are divided by the best
temperature, calibration what that temperature takes away. A loss that only makes a network more or less confident
changes the second part alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from gence.metrics._checks import as_target, blocks, checked_logits
from gence.metrics.classification import brier_of, nll_of

_WIDEST = 10.0  # |log| of a temperature, in units of the logits' own spread
_STEPS = 100
_KEPT = 1 << 22  # logits up to which float64 copies are kept while a temperature is looked for


class ScoreParts(NamedTuple):
    """NLL and Brier score in parts; each score is the sum of its two.

    Attributes:
        nll_calibration: what the best temperature takes off the NLL; never negative.
        nll_refinement: the NLL at that temperature.
        brier_calibration: what the same temperature takes off the Brier score; it is the NLL's best and not this
            score's, so this may be a little below 0.
        brier_refinement: the Brier score at that temperature.
    """

    nll_calibration: float
    nll_refinement: float
    brier_calibration: float
    brier_refinement: float


def best_temperature(logits: Tensor, target: Tensor) -> float:
    """The T > 0 that minimises the mean of -log softmax(logits / T)_y over the given rows; always finite.

    The NLL is convex in 1 / T, so there is one minimum; it is found to eight digits. It lies within a factor of e^10 of
    the logits' own spread. Where every row is right, a smaller temperature would always be better, and none the best:
    then the target gets the probability (n + 1) / (n + 2) instead of 1, by the rule of succession.

    Args:
        logits: (n, K).
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> right_in_half = torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])  # so sure of itself
        >>> best_temperature(*right_in_half) > 1000
        True
        >>> 0 < best_temperature(torch.tensor([[9.0, 0.0], [0.0, 9.0]]), torch.tensor([0, 1])) < 100
        True
    """
    values = checked_logits(logits)
    return temperature_of(values, as_target(target, values))


def score_parts(logits: Tensor, target: Tensor) -> ScoreParts:
    """NLL and Brier score as refinement plus calibration, by the best temperature of these very rows.

    Args:
        logits: (n, K).
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> parts = score_parts(torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]))
        >>> parts.nll_calibration < 0.1 < parts.nll_refinement
        True
    """
    values = checked_logits(logits)
    labels = as_target(target, values)
    return ScoreParts(*torch.stack(parts_of(values, labels)).tolist())


# What follows takes checked float64 input and is shared with `summary`, which checks once for all metrics.


def parts_of(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four parts, in the order of `ScoreParts`, of logits in any type: a block of rows is in float64 at a time."""
    temperature = temperature_of(logits, labels)
    parts = torch.zeros(4, dtype=torch.float64, device=logits.device)
    for block, own in _with_labels(logits, labels):
        values = block.double()
        raw, scaled = values.log_softmax(1), (values / temperature).log_softmax(1)
        means = [nll_of(raw, own), brier_of(raw.exp(), own), nll_of(scaled, own), brier_of(scaled.exp(), own)]
        parts += torch.stack(means) * (len(own) / len(labels))
    nll, brier, best_nll, best_brier = parts
    if bool(best_nll > nll):  # all rows right: the rule of succession keeps it from being the smallest
        best_nll, best_brier = nll, brier
    return nll - best_nll, best_nll, brier - best_brier, best_brier


def temperature_of(logits: Tensor, labels: Tensor) -> float:
    """The best temperature: Newton's steps on the derivative in 1 / T, kept inside a bracket that shrinks."""
    n, K = logits.shape
    unit, all_known = _spread(logits)
    if K == 1 or not unit > 0:
        return 1.0

    def known(block: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits at most 0, the same with 0 where a class is ruled out (0 * -inf would be NaN), and the target's."""
        values = block.double()
        z = (values - values.amax(1, keepdim=True)).div_(unit)  # (rows, K)
        return z, z if all_known else z.where(z.isfinite(), 0.0), z.gather(1, own[:, None]).squeeze(1)

    pieces = _with_labels(logits, labels)
    kept = [known(*piece) for piece in pieces] if logits.numel() <= _KEPT else None  # of few numbers they are made once

    def rows() -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        return (known(*piece) for piece in pieces) if kept is None else kept

    target, everything = 0.0, 0.0
    for _, finite, own in rows():
        target, everything = target + float(own.sum()), everything + float(finite.sum())
    if not math.isfinite(target):  # a class that was ruled out came: no temperature makes that finite
        return unit * math.exp(_WIDEST)
    wanted = target / n
    if wanted == 0:
        missed = 1 / (n + 2)
        wanted = missed * everything / n / (K - 1)  # mean logit of the other classes; the target's is 0

    def slope(sharpness: float) -> tuple[float, float]:
        """Derivative of the mean NLL in 1 / T, and its own derivative."""
        first, second = 0.0, 0.0
        for z, finite, _ in rows():
            p = (sharpness * z).softmax(1)
            mean = (p * finite).sum(1)
            first += float(mean.sum())
            second += float((finite - mean[:, None]).square_().mul_(p).sum())
        return first / n - wanted, second / n

    low, high = math.exp(-_WIDEST), math.exp(_WIDEST)
    if everything / (n * K) >= wanted:  # the slope at 1 / T = 0: worse than saying nothing
        return unit / low
    at = 1.0
    for _ in range(_STEPS):
        value, rise = slope(at)
        low, high = (low, at) if value > 0 else (at, high)
        step = at - value / rise if rise > 0 else math.nan
        before, at = at, step if low < step < high else math.sqrt(low * high)
        if abs(before - at) <= 1e-5 * at:  # Newton squares what is left
            break
    return unit / at


def _spread(logits: Tensor) -> tuple[float, bool]:
    """Root mean square distance of logits from their row's mean, and whether no row rules out a class.

    Classes that a row rules out are not of the distance.
    """
    total, count = 0.0, 0
    for block in blocks(logits):
        values = block.double()
        known = values.isfinite()
        of_row = known.sum(1, keepdim=True)
        mean = values.where(known, 0.0).sum(1, keepdim=True) / of_row
        total += float((values - mean).where(known, 0.0).square().sum())
        count += int(of_row.sum())
    return math.sqrt(total / count), count == logits.numel()


def _with_labels(logits: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    found = blocks(logits)
    return list(zip(found, torch.split(labels, len(found[0])), strict=True))
