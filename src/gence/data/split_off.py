"""The test part of a source that has none of its own: a fifth of each class, the same fifth each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from gence.data.images import DataError, ImageSet
from gence.data.subsets import holdout

TEST_FRACTION, SPLIT_SEED = 0.2, 0


def split_off_test(whole: ImageSet, source: str | Path) -> tuple[ImageSet, ImageSet]:
    """Training and test part of a source that has none of its own; the same each time."""
    problems = split_problems(whole, source)
    if problems:
        raise DataError(problems[0])
    title = whole.name.rpartition("/")[0]
    train, test = split_off_index(whole.labels, whole.classes)
    return whole.subset(train).renamed(f"{title}/train"), whole.subset(test).renamed(f"{title}/test")


def split_off_index(labels: Tensor, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Which images of a source without `split_problems` are for training and which for testing."""
    return holdout(labels, TEST_FRACTION, SPLIT_SEED, len(classes), classes=classes)


def split_problems(whole: ImageSet, source: str | Path) -> list[str]:
    """All that keeps a test part from being split off."""
    if whole.num_classes < 2:
        return [f"{source} has one class, {whole.classes[0]!r}; classification needs at least two class folders"]
    return [
        f"{source}: class {whole.classes[k]!r} has {'one image' if count else 'no images'}; "
        "to split off a test part it needs two"
        for k, count in enumerate(whole.counts().tolist())
        if count < 2
    ]
