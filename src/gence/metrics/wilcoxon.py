"""Wilcoxon's signed-rank test, exact with ties and zeros, and Holm's correction for several of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import add
from typing import TypeVar, overload

Name = TypeVar("Name")

# Up to here the null distribution is enumerated, which takes a few ms.
_EXACT_UP_TO = 50


def smallest_p(n: int) -> float:
    """Smallest two-sided p-value that n pairs can give in the signed-rank test: 2 / 2^n, all differences one way.

    With 5 seeds it is 0.0625: no result whatever is significant at 0.05, which takes 6; with Holm's correction over
    several losses it takes more.

    Example:
        >>> smallest_p(5), smallest_p(6)
        (0.0625, 0.03125)
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ValueError(f"n: {n!r} was given, a whole number of at least 0 expected.")
    return min(1.0, math.ldexp(1.0, 1 - n))


def wilcoxon_signed_rank(differences: Sequence[float], *, tolerance: float = 0.0) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test for "the differences are symmetric about 0".

    Zeros are dropped (Wilcoxon's own rule) and equal magnitudes share their mean rank. Up to 50 differences the p-value
    is exact for the given ranks: all 2^n ways of giving them signs are counted, ties or not. Above that it is the
    normal approximation with the variance corrected for ties and no continuity correction. Without any non-zero
    difference it is 1.

    Args:
        differences: one for each pair; NaN and infinities are errors.
        tolerance: magnitudes that differ by no more than this are equal, and those not above it are zero: accuracies
            are multiples of 1 / (number of test images), and subtraction leaves rounding where they tie.

    Example:
        >>> wilcoxon_signed_rank([0.3, 0.1, 0.2, 0.5, 0.4])
        0.0625
    """
    bad = [i for i, d in enumerate(differences) if not math.isfinite(d)]
    if bad:
        raise ValueError(f"differences: number {bad[0]} is {differences[bad[0]]}; finite numbers expected.")
    if not tolerance >= 0:
        raise ValueError(f"tolerance: {tolerance!r} was given, a number of at least 0 expected.")
    kept = sorted((d for d in differences if abs(d) > tolerance), key=abs)
    ranks = _doubled_midranks([abs(d) for d in kept], tolerance)
    positive = sum(rank for rank, d in zip(ranks, kept, strict=True) if d > 0)
    if not kept:
        return 1.0
    return _exact_p(ranks, positive) if len(kept) <= _EXACT_UP_TO else _normal_p(ranks, positive)


@overload
def holm(p_values: Mapping[Name, float]) -> dict[Name, float]: ...
@overload
def holm(p_values: Sequence[float]) -> list[float]: ...
def holm(p_values: Mapping[Name, float] | Sequence[float]) -> dict[Name, float] | list[float]:
    """Holm's step-down adjusted p-values: compare them with alpha itself, and the family-wise error is at most alpha.

    The i-th smallest of m is multiplied by m - i + 1, made monotone and cut at 1. All hypotheses that were looked at
    belong in one call; a NaN is an error, because leaving one out would change m for the others.

    Args:
        p_values: a mapping from names, or a sequence; the result has the same names or order.

    Example:
        >>> holm({"gence": 0.01, "brier": 0.04, "focal": 0.03})
        {'gence': 0.03, 'brier': 0.06, 'focal': 0.06}
    """
    if isinstance(p_values, Mapping):
        return dict(zip(p_values, holm(list(p_values.values())), strict=True))
    bad = [i for i, p in enumerate(p_values) if not 0 <= p <= 1]
    if bad:
        raise ValueError(f"p_values: number {bad[0]} is {p_values[bad[0]]}; numbers from 0 to 1 expected.")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for i, index in enumerate(sorted(range(len(p_values)), key=lambda j: p_values[j])):
        largest = max(largest, min(1.0, (len(p_values) - i) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _doubled_midranks(ascending: list[float], tolerance: float) -> list[int]:
    """Twice the mean ranks (whole numbers) of ascending magnitudes; a gap up to the tolerance ties neighbours."""
    ranks: list[int] = []
    while len(ranks) < len(ascending):
        first = last = len(ranks)
        while last + 1 < len(ascending) and ascending[last + 1] - ascending[last] <= tolerance:
            last += 1
        ranks += [first + last + 2] * (last - first + 1)
    return ranks


def _exact_p(ranks: list[int], positive: int) -> float:
    total = sum(ranks)
    ways = [1] + [0] * total  # ways[s]: sign choices whose positive ranks sum to s
    for rank in ranks:
        ways = [*ways[:rank], *map(add, ways[rank:], ways)]
    smaller = min(positive, total - positive)  # the distribution is symmetric, so one tail doubled is both
    return min(1.0, math.ldexp(sum(ways[: smaller + 1]), 1 - len(ranks)))


def _normal_p(ranks: list[int], positive: int) -> float:
    # Each rank enters with probability 1/2: mean sum/2, variance sum of squares/4. With midranks this is the tie-
    # corrected variance.
    z = (positive - sum(ranks) / 2) / math.sqrt(sum(rank * rank for rank in ranks) / 4)
    return math.erfc(abs(z) / math.sqrt(2))
