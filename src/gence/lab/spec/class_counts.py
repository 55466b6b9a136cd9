"""Classes with too few images, in words; and whether all can be divided for tuning, said before the first trial."""

from __future__ import annotations

from collections.abc import Sequence

from gence.lab.spec.run import Subset

_LEAST_TO_DIVIDE = 2  # images of a class: one to train on, one to hold out


def small_classes(counts: Sequence[int], classes: Sequence[str], least: int) -> list[str]:
    """Return the classes that have fewer images than `least`, each with how many.

    >>> small_classes([1, 5], ["cat", "dog"], least=2)
    ['cat (1)']
    """
    return [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < least]


def first_few(words: Sequence[str], shown: int = 5) -> str:
    """Return the first of many words, and how many more there are.

    >>> first_few(["a", "b", "c"], shown=2)
    'a, b and 1 more'
    """
    return ", ".join(words[:shown]) + (f" and {len(words) - shown} more" if len(words) > shown else "")


def check_held_out(
    counts: Sequence[int],
    classes: Sequence[str],
    subset: Subset,
    *,
    most: int,
    tuning: str,
    larger: str,
    otherwise: str = "",
) -> None:
    """Raise `DataError` if a class is too small to be divided for tuning.

    Args:
        counts: training images that are drawn of each class.
        classes: their names.
        subset: how they are drawn.
        most: the largest n that can be.
        tuning: who holds images out, for the message: "--tune".
        larger: how a larger n is asked for: "--n".
        otherwise: what else can be done, after all remedies.
    """
    from gence.lab.data import DataError

    small = small_classes(counts, classes, _LEAST_TO_DIVIDE)
    if not small:
        return
    least = _LEAST_TO_DIVIDE * len(classes)
    drawn = "all labels" if subset.n is None else f"n = {subset.n}"
    remedy = "label more of them or leave them out"
    if subset.rho is not None:
        drawn, remedy = f"rho = {subset.rho:g}", "use a smaller rho"
    elif subset.n is not None and least <= most:
        remedy = f"use {larger} {least} or more"
    raise DataError(
        f"{tuning} holds out a part of each class's training images, so each class needs at least {_LEAST_TO_DIVIDE} "
        f"of them; with {drawn}, {len(small)} of {len(classes)} classes have fewer: {first_few(small)}; "
        f"{remedy}{otherwise}"
    )
