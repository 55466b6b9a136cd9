"""Which images of a source a trained network may be judged on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gence.data import DataError, ImageSet, load, load_images
from gence.data.source_names import HUB_PREFIX, same_source
from gence.data.sources import has_own_test_part
from gence.data.split_off import split_off_test
from gence.experiment.same_data import changed_parts, data_checksums

if TYPE_CHECKING:
    from gence.experiment.predict import TrainedModel


def images_to_judge(
    model: TrainedModel, data: str, *, cache_dir: Path | None = None, progress: bool = False
) -> ImageSet:
    """The images of a source that a trained network may be judged on, brought to its size and channels.

    These are the test part; of a source that has none, and that the network was not trained on, all images.

    Args:
        model: the network.
        data: a source with the network's classes.
        cache_dir: where decoded images are kept.
        progress: a bar on stderr while images are decoded or downloaded.

    Raises:
        DataError: the source cannot be read; or it is the one the network was trained on, and has changed since, so
            that images of its test part may have been trained on.
        ValueError: the classes differ from the network's.
    """
    channels, height, _ = model.image_shape
    # The data it was trained on is in the cache as it was read then.
    own = same_source(data, model.spec.data)
    if not own and (data.startswith(HUB_PREFIX) or not has_own_test_part(data)):
        found = load_images(data, "test", image_size=height, cache_dir=cache_dir, progress=progress)
        test = _unseen_part(model, found, data)
    else:
        size = model.spec.image_size if own else height
        splits = load(data, image_size=size, cache_dir=cache_dir, progress=progress)
        changed = changed_parts(model.data, data_checksums(splits)) if own else []
        # One part as it was is enough: the test images, or all that were trained on, are then where they were.
        if len(changed) == 2 and not has_own_test_part(data):
            raise DataError(
                f"{data} is not what it was when the model was trained: {' and '.join(changed)} are others now, and "
                "images that are split off for testing may have been trained on; train again, or name a folder of new "
                "images with --data"
            )
        test = splits.test
    if test.classes != model.classes:
        only = sorted(set(test.classes) ^ set(model.classes))
        raise ValueError(
            f"data: {data} has {len(test.classes)} classes and the model {len(model.classes)}, which must be the same; "
            f"in one of them only: {', '.join(only[:5])}{', ...' if len(only) > 5 else ''}"
        )
    return test.with_channels(channels)


def _unseen_part(model: TrainedModel, whole: ImageSet, source: str) -> ImageSet:
    """All images of a source without a test part; its test part alone if the network was trained on its like."""
    try:
        train, test = split_off_test(whole, source)
    except DataError:  # too few images to be split, and so to have been trained on
        return whole
    # The folder it was trained on may have been moved or packed since.
    return test if train.checksum == model.data.get("train") else whole
