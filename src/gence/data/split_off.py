"""The test part of a source that has none of its own: a fifth of each class, the same fifth each time."""

from __future__ import annotations

from pathlib import Path

from gence.data.images import DataError, ImageSet
from gence.data.subsets import holdout

TEST_FRACTION, SPLIT_SEED = 0.2, 0


def split_off_test(whole: ImageSet, source: str | Path) -> tuple[ImageSet, ImageSet]:
    """Training and test part of a source that has none of its own; the same each time."""
    title = whole.name.rpartition("/")[0]
    if whole.num_classes < 2:
        raise DataError(
            f"{source} has one class, {whole.classes[0]!r}; classification needs at least two class folders"
        )
    for k, count in enumerate(whole.counts().tolist()):
        if count < 2:
            raise DataError(
                f"{source}: class {whole.classes[k]!r} has one image; to split off a test part it needs two"
            )
    train, test = holdout(whole.labels, TEST_FRACTION, SPLIT_SEED)
    return whole.subset(train).renamed(f"{title}/train"), whole.subset(test).renamed(f"{title}/test")
