"""From decoded images to an encoder's input: size, crop, interpolation, channels, scale; and further views of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gence.lab.data import DataError

PLAIN_VIEW = "plain"
_CORNERS = {"top_left": (0, 0), "top_right": (0, 1), "bottom_left": (1, 0), "bottom_right": (1, 1)}
_CORNER_SIDE = 0.875  # of an image's shorter side, as in a padded crop by an eighth

VIEWS = (PLAIN_VIEW, "flip", *_CORNERS)
"""What an image can be embedded as: itself, mirrored, or one of its four corners (7/8 of the side)."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """What an encoder wants done to an image before it sees it. Part of a feature cache's identity.

    Attributes:
        size: height and width of the encoder's input, in pixels.
        crop: share of the resized shorter side that is kept: 0.875 resizes to 256 and keeps the middle 224.
        interpolation: "bicubic" or "bilinear", antialiased.
        mean: per channel, on the scale of 0 to 1.
        std: per channel.

    >>> gray = torch.full((2, 1, 8, 8), 255, dtype=torch.uint8)
    >>> ready = Preprocessing(size=16, mean=(0.5,) * 3, std=(0.5,) * 3)(gray)
    >>> tuple(ready.shape), round(float(ready.min()), 6), round(float(ready.max()), 6)
    ((2, 3, 16, 16), 1.0, 1.0)
    """

    size: int
    crop: float = 1.0
    interpolation: str = "bicubic"
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size: expected at least 1 pixel, got {self.size}")
        if self.interpolation not in ("bicubic", "bilinear"):
            raise ValueError(f"interpolation: expected 'bicubic' or 'bilinear', got {self.interpolation!r}")
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop: expected a share in (0, 1], got {self.crop}")

    def __call__(self, images: Tensor, view: str = PLAIN_VIEW) -> Tensor:
        """Float32 (n, C, size, size), channels last in memory, of uint8 images (n, 1 or 3, H, W).

        Gray images are repeated for each of the encoder's channels.
        """
        channels = len(self.mean)
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, channels):
            raise DataError(
                f"images: the encoder takes uint8 images of 1 or {channels} channels, (n, C, H, W); "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        pixels = _seen_as(images, view).float()
        shorter = min(pixels.shape[2:])
        resized = round(self.size / self.crop)
        # Some sources are already of the right size: nothing to resize, nothing to crop.
        if pixels.shape[2:] != (self.size, self.size):
            height, width = (max(self.size, round(side * resized / shorter)) for side in pixels.shape[2:])
            pixels = F.interpolate(pixels, (height, width), mode=self.interpolation, antialias=True)
            pixels = _cut(pixels.clamp_(0, 255), self.size, 0.5, 0.5)
        pixels = pixels.expand(-1, channels, -1, -1).to(memory_format=torch.channels_last)
        scale = torch.tensor([1 / (255 * std) for std in self.std]).reshape(1, -1, 1, 1)
        shift = torch.tensor([-mean / std for mean, std in zip(self.mean, self.std, strict=True)]).reshape(1, -1, 1, 1)
        return (pixels * scale).add_(shift)

    def to_dict(self) -> dict[str, Any]:
        """Return the preprocessing as JSON-ready values."""
        return asdict(self)


def check_view(view: str) -> None:
    """Raise `ValueError` unless `view` is one of `VIEWS`."""
    if view not in VIEWS:
        raise ValueError(f"views: unknown view {view!r}; known: {', '.join(VIEWS)}")


def _seen_as(images: Tensor, view: str) -> Tensor:
    """The pixels that a view keeps, in its order."""
    check_view(view)
    if view == PLAIN_VIEW:
        return images
    if view == "flip":
        return images.flip(3)
    side = max(1, round(_CORNER_SIDE * min(images.shape[2:])))
    return _cut(images, side, *_CORNERS[view])


def _cut(images: Tensor, side: int, down: float, right: float) -> Tensor:
    """A square of each image; `down` and `right` say where, from 0 (at the edge) to 1 (at the other one)."""
    top, left = (int((length - side) * share) for length, share in zip(images.shape[2:], (down, right), strict=True))
    return images[:, :, top : top + side, left : left + side]
