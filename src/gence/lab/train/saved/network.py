"""A trained network in a file: read back with all that prediction needs, and what may be done to its logits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gence.calibrate import Calibrator
from gence.lab.models import OWN, ImageClassifier, create_model
from gence.lab.spec import RunSpec
from gence.lab.train.backbone import resolve_device, untrained_classifier
from gence.lab.train.checkpoint import read_calibrator, read_tensors
from gence.lab.train.evaluate import FeatureDetectors, predict_logits
from gence.lab.train.frozen import FrozenClassifier, read_detectors, read_frozen

_FROZEN_CHUNK = 32


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


def finite(logits: Tensor) -> Tensor:
    """The logits; a `ValueError` where some are NaN or infinite, as those of a network that diverged."""
    if not bool(logits.isfinite().all()):
        raise ValueError(
            "this network diverged in training: its outputs are NaN or infinite, and predict nothing; train it again, "
            "with a lower recipe.lr or a warm-up"
        )
    return logits


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
        raise damaged(path, error) from error


def damaged(path: str | Path, error: Exception) -> ValueError:
    """What is said of a file whose reading raised `error`."""
    return ValueError(
        f"{path} is damaged, or was not written by gence train --save ({type(error).__name__}: {error}); get the "
        "file again, or train the model again"
    )


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
