"""Whole-batch augmentation on the images' own device: padded crop, flip, normalisation, and a whole epoch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gence.lab.data.augment.randaugment import Draws, RandAugmentDraws, draw_randaugment, randaugment


@dataclass(frozen=True)
class CropFlipDraws(Draws):
    """Where each sample is cut from its padded image, and whether it is mirrored; all fields are (n,)."""

    dy: Tensor
    dx: Tensor
    mirrored: Tensor


def draw_crop_flip(n: int, *, padding: int, flip: bool, generator: torch.Generator) -> CropFlipDraws:
    """Draw a crop offset in [0, 2 * padding] a side and, where ``flip``, a mirroring at even odds for ``n`` samples."""
    if padding < 0:
        raise ValueError(f"padding must be at least 0, got {padding}")
    device = generator.device
    dy = torch.randint(2 * padding + 1, (n,), generator=generator, device=device)
    dx = torch.randint(2 * padding + 1, (n,), generator=generator, device=device)
    mirrored = torch.rand(n, generator=generator, device=device) < (0.5 if flip else 0.0)
    return CropFlipDraws(dy, dx, mirrored)


def padded_crop(images: Tensor, dy: Tensor, dx: Tensor, padding: int) -> Tensor:
    """Pad with zeros and cut out the original size, each sample at its own offset.

    Args:
        images: (n, C, H, W), any dtype.
        dy: rows from the top of the padded image, (n,), in [0, 2 * padding]; ``padding`` leaves the image in place.
        dx: columns from its left, (n,).
        padding: pixels added at every side.
    """
    columns = torch.arange(images.shape[-1], device=images.device) + dx[:, None]  # (n, W)
    return _take_pixels(images, dy, columns, padding)


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror left and right where ``mask`` (n,) is true; images (n, C, H, W)."""
    return torch.where(mask[:, None, None, None], images.flip(-1), images)


def crop_and_flip(images: Tensor, draws: CropFlipDraws, padding: int) -> Tensor:
    """Return ``flip(padded_crop(images))`` in one pass: the mirroring only reverses the columns that are read."""
    columns = torch.arange(images.shape[-1], device=images.device)
    columns = torch.where(draws.mirrored[:, None], columns.flip(0), columns) + draws.dx[:, None]  # (n, W)
    return _take_pixels(images, draws.dy, columns, padding)


def _take_pixels(images: Tensor, dy: Tensor, columns: Tensor, padding: int) -> Tensor:
    n, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    rows = torch.arange(height, device=images.device) + dy[:, None]  # (n, H)
    # Two gathers with expanded indices read n * (H + W) offsets; one gather would need n * H * W of them in memory.
    rows_taken = padded.gather(2, rows[:, None, :, None].expand(n, channels, height, padded.shape[-1]))
    return rows_taken.gather(3, columns[:, None, None, :].expand(n, channels, height, width))


def normalize(
    images: Tensor,
    mean: Tensor | Sequence[float],
    std: Tensor | Sequence[float],
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.channels_last,
) -> Tensor:
    """Turn bytes into the network's input: ``(images / 255 - mean) / std``, computed in float32, returned in ``dtype``.

    Args:
        images: uint8, (..., C, H, W).
        mean: per channel on the scale of 0 to 1, (C,). Inside a captured step pass tensors on the images' device:
            copying a sequence of floats there makes the host wait.
        std: likewise.
        dtype: of the result.
        memory_format: of each batch in the result.
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, got {images.dtype}; normalize converts and scales by itself")
    mean = torch.as_tensor(mean, dtype=torch.float32, device=images.device)
    std = torch.as_tensor(std, dtype=torch.float32, device=images.device)
    scale = (1.0 / (255.0 * std))[:, None, None]  # (C, 1, 1)
    shift = (-mean / std)[:, None, None]  # (C, 1, 1)
    flat = images.flatten(0, -4) if images.ndim > 4 else images
    result = torch.addcmul(shift, flat, scale).to(dtype).contiguous(memory_format=memory_format)
    return result.view(images.shape)


@dataclass(frozen=True)
class EpochDraws:
    """What each image of an epoch undergoes; None for what is switched off."""

    crop_flip: CropFlipDraws | None
    randaugment: RandAugmentDraws | None

    def __getitem__(self, index: slice) -> EpochDraws:
        crop_flip = None if self.crop_flip is None else self.crop_flip[index]
        return EpochDraws(crop_flip, None if self.randaugment is None else self.randaugment[index])


@dataclass(frozen=True, kw_only=True)
class EpochAugmenter:
    """Crop, flip and RandAugment for all images of an epoch at once, in this order (that of torchvision's recipes).

    Called, it draws and applies. Where an epoch is made in parts, `draw` for all of it and `apply` each part: no image
    depends on the others, so the parts together are the epoch.

    Mixing couples the samples of a batch and comes after this: :mod:`gence.lab.data.augment.mixing`.

    Args:
        crop_padding: zeros added at every side before a random crop to the old size; 0 for no crop.
        flip: mirror at even odds.
        randaugment_ops: RandAugment operations a sample; 0 for none.
        randaugment_magnitude: their strength, 0 to 30.

    >>> augmenter = EpochAugmenter(crop_padding=4, flip=True, randaugment_ops=2)
    >>> images = torch.zeros(20, 3, 32, 32, dtype=torch.uint8)
    >>> augmented = augmenter(images, torch.Generator().manual_seed(0))
    >>> augmented.shape, augmented.dtype
    (torch.Size([20, 3, 32, 32]), torch.uint8)
    """

    crop_padding: int = 4
    flip: bool = True
    randaugment_ops: int = 0
    randaugment_magnitude: int = 9

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images, uint8 (n, C, H, W); a CPU generator gives the same on every device."""
        return self.apply(images, self.draw(len(images), generator))

    def draw(self, n: int, generator: torch.Generator) -> EpochDraws:
        """Draw for ``n`` images."""
        crop_flip = randaugment = None
        if self.crop_padding or self.flip:
            crop_flip = draw_crop_flip(n, padding=self.crop_padding, flip=self.flip, generator=generator)
        if self.randaugment_ops:
            randaugment = draw_randaugment(n, num_ops=self.randaugment_ops, generator=generator)
        return EpochDraws(crop_flip, randaugment)

    def apply(self, images: Tensor, draws: EpochDraws) -> Tensor:
        """Return images, uint8 (n, C, H, W), augmented as drawn."""
        if draws.crop_flip is not None:
            images = crop_and_flip(images, draws.crop_flip.to(images.device), self.crop_padding)
        if draws.randaugment is not None:
            images = randaugment(images, draws.randaugment, magnitude=self.randaugment_magnitude)
        return images
