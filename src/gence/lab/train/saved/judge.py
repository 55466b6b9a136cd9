"""Metrics of a trained network, on the images it may be judged by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from gence.lab.data import (
    HUB_PREFIX,
    DataError,
    ImageSet,
    has_own_test_part,
    load,
    load_images,
    same_source,
    size_like,
    split_off_test,
)
from gence.lab.spec import check_ood_names, ood_name
from gence.lab.store import changed_parts, data_checksums
from gence.lab.train.evaluate import Detected, score_saved
from gence.lab.train.frozen import FrozenClassifier
from gence.lab.train.saved.network import TrainedModel, finite


def evaluate_model(
    model: TrainedModel,
    data: str | ImageSet,
    ood: Sequence[str] = (),
    *,
    cache_dir: Path | None = None,
    progress: bool = False,
) -> dict[str, float]:
    """Metrics of a trained network: raw, "offset/..." with its class offsets, "calibrated/..." with its temperature.

    Args:
        model: the network.
        data: a source, of which `images_to_judge` are judged, or these images themselves.
        ood: sources of out-of-distribution images.
        cache_dir: where decoded images are kept.
        progress: a bar on stderr while images are decoded or downloaded.

    Raises:
        DataError: a source cannot be read, or may not be judged; see `images_to_judge`.
        SpecError: two OOD sources have one name.
        ValueError: the classes differ from the network's, or the network diverged.
    """
    check_ood_names(ood)
    channels, size = model.image_shape[0], size_like(model.image_shape)
    test = images_to_judge(model, data, cache_dir=cache_dir, progress=progress) if isinstance(data, str) else data
    features, logits = model.features_and_logits(test.images)
    labels = test.labels.to(model.mean.device)
    far: dict[str, tuple[Tensor | None, Tensor]] = {}
    for name in ood:
        found = load_images(
            name, "test", image_size=size, channels=channels, cache_dir=cache_dir, progress=progress
        )  # fmt: skip
        far[ood_name(name)] = model.features_and_logits(found.images)
    outside = {name: finite(values) for name, (_, values) in far.items()}
    detected: Detected = {}
    if features is not None and model.detectors is not None and isinstance(model.classifier, FrozenClassifier) and far:
        pairs = {name: (one, values) for name, (one, values) in far.items() if one is not None}
        detected = model.detectors.detected(features, {name: one for name, (one, _) in pairs.items()})
        detected = model.detectors.with_vim(detected, model.classifier.bare, (features, logits), pairs)
    return score_saved(
        finite(logits), labels, outside, offset=model.offset, calibrator=model.calibrator, detected=detected
    )  # fmt: skip


def images_to_judge(
    model: TrainedModel, data: str, *, cache_dir: Path | None = None, progress: bool = False, download: bool = True
) -> ImageSet:
    """The images of a source that a trained network may be evaluated on, converted to its size and channels.

    These are the test part; of a source that has none, and that the network was not trained on, all images.

    Args:
        model: the network.
        data: a source with the network's classes.
        cache_dir: where decoded images are kept.
        progress: a bar on stderr while images are decoded or downloaded.
        download: False to raise `NotAtHandError` where images would have to be downloaded.

    Raises:
        DataError: the source cannot be read; or it is the one the network was trained on, and has changed since, so
            that images of its test part may have been trained on.
        ValueError: the classes differ from the network's.
    """
    channels, size = model.image_shape[0], size_like(model.image_shape)
    # The data it was trained on is in the cache as it was read then.
    own = same_source(data, model.spec.data)
    if not own and (data.startswith(HUB_PREFIX) or not has_own_test_part(data)):
        found = load_images(data, "test", image_size=size, cache_dir=cache_dir, progress=progress, download=download)
        test = _unseen_part(model, found, data)
    else:
        side = model.spec.image_size if own else size
        splits = load(data, image_size=side, cache_dir=cache_dir, progress=progress, download=download)
        changed = changed_parts(model.data, data_checksums(splits)) if own else []
        # One part as it was is enough: the test images, or all that were trained on, are then where they were.
        if len(changed) == 2 and not has_own_test_part(data):
            raise DataError(
                f"{data} has changed since the model was trained ({' and '.join(changed)} differ), and images that "
                "are split off for testing may have been trained on. Train again, or name a folder of new "
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
