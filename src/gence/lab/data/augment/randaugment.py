"""RandAugment with draws of its own for every sample, applied to a whole epoch at once.

torchvision's RandAugment draws once per call, so on a batch every image gets the same operations. Here the samples are
sorted by (operation, sign), and each group is one batched call. The magnitude is fixed, which makes this exact: of the
14 operations five move pixels in a way that is the same for every image (a table of where each pixel comes from), three
map a byte to a byte (a table of 256), and the rest are computed by torchvision's batched kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Draws:
    """Base of all draws: a dataclass whose fields are tensors that share their first dimensions.

    Draws made with a CPU generator are the same whatever device the images are on. They are small, so they are drawn on
    the CPU and copied, which also leaves the host free: nothing has to be read back from a GPU.
    """

    def to(self, device: torch.device | str) -> Self:
        """Return the draws on ``device``; the copy to a GPU goes through pinned memory and does not wait."""
        device = torch.device(device)
        return self._each(lambda tensor: to_device(tensor, device))

    def __getitem__(self, index: Any) -> Self:
        return self._each(lambda tensor: tensor[index])

    def _each(self, change: Any) -> Self:
        return type(self)(**{f.name: change(getattr(self, f.name)) for f in fields(self)})


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``tensor`` on ``device`` without making the host wait for a GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu" and tensor.numel() > 0:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


MAGNITUDE_BINS = 31

# The order is torchvision's. Signs are drawn for every operation and ignored by those without one.
OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_BYTEWISE = ("Brightness", "Posterize", "Solarize")
_UNSIGNED = ("Identity", "Posterize", "Solarize", "AutoContrast", "Equalize")


@dataclass(frozen=True)
class RandAugmentDraws(Draws):
    """Operation (index into :data:`OPERATIONS`) and sign of each sample, in order of application; both (n, num_ops)."""

    operation: Tensor
    negative: Tensor


def draw_randaugment(n: int, *, num_ops: int, generator: torch.Generator) -> RandAugmentDraws:
    """Draw ``num_ops`` operations, each uniform among the 14, and a sign at even odds, for each of ``n`` samples.

    With a CPU generator the sizes of the groups are known to the host; draws on a GPU have to be read back once.
    """
    if num_ops < 0:
        raise ValueError(f"num_ops must be at least 0, got {num_ops}")
    shape, device = (n, num_ops), generator.device
    operation = torch.randint(len(OPERATIONS), shape, generator=generator, device=device)
    negative = torch.randint(2, shape, generator=generator, device=device) == 1
    return RandAugmentDraws(operation, negative)


def randaugment(images: Tensor, draws: RandAugmentDraws, *, magnitude: int) -> Tensor:
    """Apply each sample's own operations.

    Args:
        images: uint8, (n, C, H, W) with C 1 or 3.
        draws: on the CPU if the host is not to wait for a GPU.
        magnitude: strength on torchvision's scale of 31 bins, 0 to 30.

    Returns:
        uint8 images, equal to ``torchvision.transforms.v2.RandAugment`` (nearest interpolation, zeros outside) on each
        image alone with the same draws.
    """
    _check(images, draws, magnitude)
    current: np.ndarray = np.arange(len(images))  # current[i]: where sample i now stands in `images`
    for step in range(draws.operation.shape[1]):
        group = _group_numbers(draws.operation[:, step], draws.negative[:, step])
        order = np.argsort(group, kind="stable")
        images = images.index_select(0, to_device(torch.from_numpy(current[order]), images.device))
        _apply_in_place(images, group[order], magnitude)
        current = np.empty_like(order)
        current[order] = np.arange(len(order))
    if draws.operation.shape[1] == 0:
        return images
    return images.index_select(0, to_device(torch.from_numpy(current), images.device))


def strength(operation: str, magnitude: int, height: int, width: int) -> float:
    """Return the unsigned parameter of ``operation`` at ``magnitude`` on torchvision's scale of 31 bins."""

    def between(start: float, end: float) -> float:
        return float(torch.linspace(start, end, MAGNITUDE_BINS)[magnitude])

    if operation in ("ShearX", "ShearY"):
        return between(0.0, 0.3)
    if operation == "TranslateX":
        return between(0.0, 150.0 / 331.0 * width)
    if operation == "TranslateY":
        return between(0.0, 150.0 / 331.0 * height)
    if operation == "Rotate":
        return between(0.0, 30.0)
    if operation in ("Brightness", "Color", "Contrast", "Sharpness"):
        return between(0.0, 0.9)
    if operation == "Posterize":
        return float((8 - torch.arange(MAGNITUDE_BINS) / ((MAGNITUDE_BINS - 1) / 4)).round()[magnitude])
    if operation == "Solarize":
        return 255 * between(1.0, 0.0)
    return 0.0


def _check(images: Tensor, draws: RandAugmentDraws, magnitude: int) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(
            f"images must be uint8 of shape (n, 1 or 3, H, W), got {images.dtype} {tuple(images.shape)}; "
            "apply RandAugment before normalize"
        )
    if len(draws.operation) != len(images):
        raise ValueError(f"draws are for {len(draws.operation)} samples, images has {len(images)}")
    if not 0 <= magnitude < MAGNITUDE_BINS:
        raise ValueError(f"magnitude must be from 0 to {MAGNITUDE_BINS - 1}, got {magnitude}")


def _group_numbers(operation: Tensor, negative: Tensor) -> np.ndarray:
    """Return ``_GROUPS`` indices (n,) as bytes, for which NumPy's stable sort is a radix sort."""
    code = (2 * operation + negative).cpu().numpy()
    numbers: np.ndarray = _GROUP_OF_CODE[code]
    return numbers


def _groups() -> tuple[list[tuple[str, float]], np.ndarray]:
    """Order the (operation, sign) pairs so that those that share a call are neighbours."""
    together = [*_GEOMETRIC, *_BYTEWISE, "Color", "Contrast", "Sharpness", "AutoContrast", "Equalize", "Identity"]
    groups = [(name, sign) for name in together for sign in ((1.0,) if name in _UNSIGNED else (1.0, -1.0))]
    codes = [
        groups.index((name, -1.0 if negative and name not in _UNSIGNED else 1.0))
        for name in OPERATIONS
        for negative in (False, True)
    ]
    return groups, np.array(codes, dtype=np.uint8)


_GROUPS, _GROUP_OF_CODE = _groups()
_GEOMETRIC_GROUPS = sum(name in _GEOMETRIC for name, _ in _GROUPS)
_TABLE_GROUPS = _GEOMETRIC_GROUPS + sum(name in _BYTEWISE for name, _ in _GROUPS)


def _apply_in_place(images: Tensor, group: np.ndarray, magnitude: int) -> None:
    """Change ``images`` (n, C, H, W), whose rows are sorted by ``group``."""
    height, width = images.shape[-2:]
    sources, bytes_out = _tables(height, width, magnitude, images.device)
    starts = np.searchsorted(group, np.arange(len(_GROUPS) + 1)).tolist()
    numbers = to_device(torch.from_numpy(group[: starts[_TABLE_GROUPS]].astype(np.int64)), images.device)

    end = starts[_GEOMETRIC_GROUPS]
    if end:
        images[:end] = _move_pixels(images[:end], sources[numbers[:end]])
    start, end = end, starts[_TABLE_GROUPS]
    if end > start:
        images[start:end] = _map_bytes(images[start:end], bytes_out, numbers[start:] - _GEOMETRIC_GROUPS)
    for number in range(_TABLE_GROUPS, len(_GROUPS)):
        start, end = starts[number], starts[number + 1]
        name, sign = _GROUPS[number]
        if end > start and name != "Identity":
            factor = 1.0 + sign * strength(name, magnitude, height, width)
            images[start:end] = _image_operation(name)(images[start:end], factor)


def _move_pixels(images: Tensor, sources: Tensor) -> Tensor:
    """Read every pixel from where ``sources`` (n, H * W) says; 0 is the outside, 1 the first pixel."""
    n, channels, height, width = images.shape
    flat = functional.pad(images.flatten(2), (1, 0))  # (n, C, 1 + H * W)
    return flat.gather(2, sources[:, None].expand(n, channels, height * width)).view(images.shape)


def _map_bytes(images: Tensor, bytes_out: Tensor, row: Tensor) -> Tensor:
    """Look every byte up in its sample's row of ``bytes_out`` (rows, 256)."""
    return bytes_out.flatten()[images.long() + 256 * row[:, None, None, None]]


@lru_cache(maxsize=32)
def _tables(height: int, width: int, magnitude: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Let torchvision transform an image of pixel numbers and an image of all bytes, once a size, on the CPU.

    So that every device moves the same pixels: the coordinates of a rotation round differently on a GPU.
    """
    # Float32 holds every pixel number exactly up to 2^24, and torchvision samples nearest pixels in float32 anyway.
    pixel_numbers = torch.arange(1.0, height * width + 1).view(1, height, width)
    all_bytes = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    sources, bytes_out = [], []
    for name, sign in _GROUPS[:_TABLE_GROUPS]:
        value = sign * strength(name, magnitude, height, width)
        if name in _GEOMETRIC:
            sources.append(_geometric(name, pixel_numbers, value).flatten().long())
        else:
            bytes_out.append(_bytewise(name, all_bytes, value).flatten())
    return torch.stack(sources).to(device), torch.stack(bytes_out).to(device)


def _geometric(name: str, image: Tensor, value: float) -> Tensor:
    from torchvision.transforms.v2 import functional as tv

    moved: Tensor
    if name == "Rotate":
        moved = tv.rotate(image, value)
    elif name.startswith("Translate"):
        translate = [int(value), 0] if name == "TranslateX" else [0, int(value)]
        moved = tv.affine(image, angle=0.0, translate=translate, scale=1.0, shear=[0.0, 0.0])
    else:
        angle = math.degrees(math.atan(value))
        shear = [angle, 0.0] if name == "ShearX" else [0.0, angle]
        moved = tv.affine(image, angle=0.0, translate=[0, 0], scale=1.0, shear=shear, center=[0, 0])
    return moved


def _bytewise(name: str, image: Tensor, value: float) -> Tensor:
    from torchvision.transforms.v2 import functional as tv

    mapped: Tensor
    if name == "Brightness":
        mapped = tv.adjust_brightness(image, 1.0 + value)
    elif name == "Posterize":
        mapped = tv.posterize(image, int(value))
    else:
        mapped = tv.solarize(image, value)
    return mapped


def _image_operation(name: str) -> Callable[[Tensor, float], Tensor]:
    from torchvision.transforms.v2 import functional as tv

    operations: dict[str, Callable[[Tensor, float], Tensor]] = {
        "Color": tv.adjust_saturation,
        "Contrast": tv.adjust_contrast,
        "Sharpness": _adjust_sharpness,
        "AutoContrast": lambda images, _: tv.autocontrast(images),
        "Equalize": lambda images, _: tv.equalize(images),
    }
    return operations[name]


def _adjust_sharpness(images: Tensor, factor: float) -> Tensor:
    """Blend with the 3 x 3 blur (weights 1, centre 5, over 13) as torchvision does, border pixels unchanged.

    The blur is summed in integers. torchvision convolves, which on a GPU may run in TF32 and round differently, and
    copies the weights there from the host, which waits.
    """
    if min(images.shape[-2:]) <= 2:
        return images
    wide = images.to(torch.int16)
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    inside = wide[..., 1:-1, 1:-1]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inside
    # round(total / 13): halves cannot occur, 13 being odd.
    blurred = torch.div(total + 6, 13, rounding_mode="floor").float()
    sharpened = images.float()
    view = sharpened[..., 1:-1, 1:-1]
    view.add_(blurred.sub_(view), alpha=1.0 - factor)
    return sharpened.clamp_(0, 255).to(torch.uint8)
