"""Trained networks in use: read one back, evaluate it on the images it may be judged by, predict folders of images."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

import numpy as np
import torch
from torch import Tensor

from gence.calibrate import Calibrator
from gence.lab.data import (
    HUB_PREFIX,
    IMAGE_SUFFIXES,
    Container,
    DataError,
    ImageSet,
    decode_all,
    decode_image,
    has_own_test_part,
    is_ignored,
    load,
    load_images,
    open_container,
    same_source,
    size_like,
    split_off_test,
)
from gence.lab.models import OWN, ImageClassifier, create_model
from gence.lab.spec import RunSpec, check_ood_names, ood_name
from gence.lab.store import changed_parts, data_checksums, spreadsheet_text, writing_file
from gence.lab.train.backbone import resolve_device, untrained_classifier
from gence.lab.train.checkpoint import read_calibrator, read_tensors
from gence.lab.train.evaluate import Detected, FeatureDetectors, predict_logits, score_saved
from gence.lab.train.frozen import FrozenClassifier, read_detectors, read_frozen

_FROZEN_CHUNK = 32
_CHUNK = 1000  # images decoded and predicted at a time, so that a folder of any size fits into memory


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A network with all that prediction needs.

    Attributes:
        classifier: the network, on its device.
        spec: the run that trained it.
        classes: class names in the order of the logits.
        image_shape: (C, H, W) of its inputs.
        mean: normalisation of its inputs, (C,).
        std: likewise.
        offset: the class offsets (K,) that put the marginal of its training logits back, or None.
        data: checksums of the images it was trained and judged on; empty for files of older versions.
        calibrator: what makes its probabilities better, or None where nothing was held out to fit one.
        detectors: fitted on the features that a head was trained on, or None.
    """

    classifier: ImageClassifier | FrozenClassifier
    spec: RunSpec
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: Tensor
    std: Tensor
    offset: Tensor | None
    data: dict[str, str] = field(default_factory=dict)
    calibrator: Calibrator | None = None
    detectors: FeatureDetectors | None = None

    def logits(self, images: Tensor) -> Tensor:
        """Float32 logits (n, K) of uint8 images (n, C, H, W), on the network's device."""
        return self.features_and_logits(images)[1]

    def features_and_logits(self, images: Tensor) -> tuple[Tensor | None, Tensor]:
        """Features (n, D) of images by a frozen encoder, None for other networks, and their logits."""
        if tuple(images.shape[1:]) != self.image_shape:
            raise ValueError(
                f"images: shape {tuple(images.shape)} was given, (n, {', '.join(map(str, self.image_shape))}) "
                "expected: the channels, height and width that the network was trained on"
            )
        if isinstance(self.classifier, FrozenClassifier):
            with torch.inference_mode():
                features = torch.cat([self.classifier.features(chunk) for chunk in torch.split(images, _FROZEN_CHUNK)])
                logits = self.classifier.logits(features)
            return features.clone(), logits.clone()
        return None, predict_logits(self.classifier, images.to(self.mean.device), self.mean, self.std)

    def probabilities(self, images: Tensor, *, offset: bool = False, calibrated: bool = False) -> Tensor:
        """Softmax (n, K) of the logits; with ``offset``, of the logits plus the class offsets; or calibrated.

        Raises:
            ValueError: the logits are NaN or infinite, as those of a network that diverged; or what is asked for is
                not in the file.
        """
        return adjusted(self, finite(self.logits(images)), offset, calibrated).softmax(1)


class Adjustable(Protocol):
    """A saved model with what may be done to its logits."""

    @property
    def offset(self) -> Tensor | None:
        """The class offsets (K,)."""

    @property
    def calibrator(self) -> Calibrator | None:
        """The calibrator."""


def check_adjustments(model: Adjustable, offset: bool, calibrated: bool) -> None:
    """Raise `ValueError` where a model has no offset or no calibrator to do what is asked for."""
    if offset and calibrated:
        raise ValueError("offset and calibrated: a temperature was fitted on logits without the offset; give one")
    if offset and model.offset is None:
        raise ValueError(
            "this model has no offset: its training predictions were too sharp for one; predict without --offset"
        )
    if calibrated and model.calibrator is None:
        raise ValueError(
            "this model has no calibrator: a head gets one where every class has two training samples, a network where "
            "a part is held out; train it with --set subset.val_fraction=0.2, or predict without --calibrated"
        )


def adjusted(model: Adjustable, logits: Tensor, offset: bool, calibrated: bool) -> Tensor:
    """Logits plus the class offsets, calibrated, or as they are."""
    check_adjustments(model, offset, calibrated)
    if calibrated and model.calibrator is not None:
        return model.calibrator.logits(logits)
    return logits + model.offset if offset and model.offset is not None else logits


class _OwnCodeError(ValueError):
    """A file names code that would have to be run."""


def load_model(path: str | Path, device: str = "auto", *, own_code: bool = False) -> TrainedModel:
    """Read a network that ``gence train --save`` wrote; nothing in the file is run.

    Args:
        path: the safetensors file.
        device: "auto", "cpu", "cuda" or "cuda:1".
        own_code: whether a network of your own may be built, for which the module that the file names is imported and
            its function called. Leave it out for files of somebody else.

    Raises:
        ValueError: the file is not such a network.
    """
    from safetensors import SafetensorError

    path, place = Path(path).expanduser(), resolve_device(device)
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder; expected the file that gence train --save wrote")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; gence train --save {path} would write it")
    try:
        tensors, notes = read_tensors(path)
    except (SafetensorError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}; it is truncated or not a model") from error
    if "rows" in notes:
        raise ValueError(f"{path} is a head on the rows of a table; read it with gence.lab.train.load_row_model")
    if not {"spec", "classes", "image_shape"} <= notes.keys():
        raise ValueError(f"{path} holds tensors, but has no spec: gence train --save did not write it")
    try:
        return _assembled(tensors, notes, place, own_code)
    except _OwnCodeError as error:
        raise ValueError(f"{path} {error}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{path} is damaged, or was not written by gence train --save ({type(error).__name__}: {error}); get the "
            "file again, or train the model again"
        ) from error


def _assembled(tensors: dict[str, Tensor], notes: dict[str, str], place: torch.device, own_code: bool) -> TrainedModel:
    """The model that a file's tensors and notes make; nearly any error where they are damaged."""
    spec = RunSpec.from_json(notes["spec"])
    if spec.model.startswith(OWN) and not own_code:
        raise _OwnCodeError(
            f"holds a network that is built by code, {spec.model.partition('#')[0]}; if you trust the file and that "
            "module, add --own-code (own_code=True in Python)"
        )
    classes, (channels, height, width) = tuple(json.loads(notes["classes"])), json.loads(notes["image_shape"])
    if not all(isinstance(name, str) for name in classes):
        raise TypeError("class names are not texts")
    if not all(type(length) is int and length > 0 for length in (channels, height, width)):
        raise TypeError("the shape of its images is not three positive integers")
    if "head" in notes:
        frozen = read_frozen(spec, tensors, notes)
        offset = tensors.get("offset")
        channels = len(frozen.preprocessing.mean) if channels != 1 else 1
        nothing = torch.zeros(channels)
        return TrainedModel(
            frozen, spec, classes, (channels, height, width), nothing, nothing + 1,
            None if offset is None else offset.reshape(len(classes)), json.loads(notes.get("data", "{}")),
            read_calibrator(tensors, notes), read_detectors(tensors),
        )  # fmt: skip
    weights = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    classifier = untrained_classifier(spec, height, len(classes)) or _empty_network(
        spec, weights, len(classes), channels, height
    )
    classifier.load_state_dict(weights)
    classifier.eval()
    offset = tensors.get("offset")
    return TrainedModel(
        classifier.to(place),
        spec,
        classes,
        (channels, height, width),
        tensors["mean"].reshape(channels).to(place),
        tensors["std"].reshape(channels).to(place),
        None if offset is None else offset.reshape(len(classes)).to(place),
        json.loads(notes.get("data", "{}")),
        read_calibrator(tensors, notes),
    )


def _empty_network(
    spec: RunSpec, weights: dict[str, Tensor], num_classes: int, channels: int, size: int
) -> ImageClassifier:
    """The network of a run, built only if a file's weights have its shapes: a damaged size could take any memory."""

    def build() -> ImageClassifier:
        return create_model(
            spec.model, num_classes=num_classes, in_channels=channels, image_size=size, stem=spec.recipe.stem,
            head_bias=spec.recipe.head_bias, seed=0,
        )  # fmt: skip

    if not spec.model.startswith(OWN):  # which may not know of devices
        with torch.device("meta"):
            planned = build().state_dict()
        other = [name for name, value in planned.items() if name not in weights or weights[name].shape != value.shape]
        if other:
            raise ValueError(f"the weights are those of another network: {other[0]} is missing or has another shape")
    return build()


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


def predict_folder(
    model: TrainedModel, folder: str | Path, *, offset: bool = False, calibrated: bool = False, progress: bool = False
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Predict every image below a folder or in an archive, whatever its subfolders, in the order of the names.

    Args:
        model: the network.
        folder: a folder, or a .zip or .tar archive.
        offset: whether the class offsets are added to the logits.
        calibrated: whether the logits are divided by the temperature.
        progress: a bar on stderr.

    Yields:
        Names relative to the folder, and their class probabilities (n, K) on the CPU, some hundreds at a time.

    Raises:
        DataError: there is no image, or one cannot be read.
        ValueError: the network diverged.
    """
    path = Path(folder).expanduser()
    if not path.exists():
        raise DataError(f"{path} does not exist; expected a folder or an archive of images")
    with open_container(path) as container:
        names = sorted(
            name for name in container.files if name.lower().endswith(IMAGE_SUFFIXES) and not is_ignored(name)
        )
        if not names:
            raise DataError(f"{path} holds no images ({', '.join(IMAGE_SUFFIXES)})")
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK]
            title = f"{start + len(chunk)} of {len(names)}" if progress else None
            images = _decoded(container, chunk, model.image_shape, title)
            yield tuple(chunk), model.probabilities(images, offset=offset, calibrated=calibrated).cpu()


def write_predictions(
    model: TrainedModel,
    folder: str | Path,
    out: Path,
    *,
    offset: bool = False,
    calibrated: bool = False,
    progress: bool = False,
) -> int:
    """Write a CSV with a line per image: file, predicted class, its probability, and that of every class.

    Columns of probabilities are called ``p_CLASS``. A name that a spreadsheet would compute (``=``, ``+``, ``-`` or
    ``@`` in front) has an apostrophe before it. Names with commas, quotes or line breaks are quoted as RFC 4180
    has it; bytes of a file name that are not UTF-8 become escapes. The file appears when all images are done.

    Returns:
        The number of images.
    """
    found = predict_folder(model, folder, offset=offset, calibrated=calibrated, progress=progress)
    return write_probabilities(out, "file", model.classes, found)


@dataclass(frozen=True)
class _Lines:
    """Takes rows that end in CR LF, and writes them with LF."""

    file: TextIO

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def write_probabilities(
    out: Path, first: str, classes: Sequence[str], predicted: Iterable[tuple[Sequence[str], Tensor]]
) -> int:
    """Write a CSV of predictions: what each line is about, under the name `first`, class and probabilities."""
    count = 0
    with (
        writing_file(out) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        # With both characters in its line end, Python quotes a name that has either of them; "\n" alone ends our lines.
        writer = csv.writer(_Lines(file), lineterminator="\r\n")
        writer.writerow([first, "predicted", "confidence", *(f"p_{name}" for name in classes)])
        for names, probs in predicted:
            for name, row in zip(names, probs.tolist(), strict=True):
                best = max(range(len(row)), key=row.__getitem__)
                shown = [f"{value:.6g}" for value in row]
                writer.writerow([spreadsheet_text(name), spreadsheet_text(classes[best]), shown[best], *shown])
            count += len(names)
    return count


def finite(logits: Tensor) -> Tensor:
    """The logits; a `ValueError` where some are NaN or infinite, as those of a network that diverged."""
    if not bool(logits.isfinite().all()):
        raise ValueError(
            "this network diverged in training: its outputs are NaN or infinite, and predict nothing; train it again, "
            "with a lower recipe.lr or a warm-up"
        )
    return logits


def _decoded(container: Container, names: list[str], shape: tuple[int, int, int], title: str | None) -> Tensor:
    """Images as the network takes them: uint8 (n, C, H, W)."""
    channels, size = shape[0], size_like(shape)

    def decode(name: str) -> np.ndarray:
        return decode_image(container.read(name), container.where(name), size)

    pixels = torch.from_numpy(decode_all(names, decode, progress=title))
    labels = torch.zeros(len(names), dtype=torch.long)
    return ImageSet.from_arrays(pixels, labels, ("unlabelled",), layout="NCHW").with_channels(channels).images


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
