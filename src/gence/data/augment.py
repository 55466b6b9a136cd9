"""Whole-batch augmentation on the images' own device: padded crop, flip, normalisation, and a whole epoch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from gence.data.draws import Draws
from gence.data.mixing import MixDraws, draw_mixing
from gence.data.randaugment import RandAugmentDraws, draw_randaugment, randaugment

D = TypeVar("D", bound=Draws)


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
    """Everything random about one epoch of one run, or of several runs in a row; None where a part is switched off."""

    crop_flip: CropFlipDraws | None
    randaugment: RandAugmentDraws | None
    mixing: MixDraws | None

    @classmethod
    def cat(cls, parts: Sequence[EpochDraws]) -> EpochDraws:
        """Join the draws of several runs with the same settings, in the order of their images."""

        def joined(draws: type[D], members: Sequence[D | None]) -> D | None:
            present = [member for member in members if member is not None]
            if present and len(present) < len(members):
                raise ValueError(
                    f"{len(present)} of {len(members)} runs have {draws.__name__}; join runs of one recipe"
                )
            return draws.cat(present) if present else None

        return cls(
            joined(CropFlipDraws, [part.crop_flip for part in parts]),
            joined(RandAugmentDraws, [part.randaugment for part in parts]),
            joined(MixDraws, [part.mixing for part in parts]),
        )


@dataclass(frozen=True, kw_only=True)
class EpochAugmenter:
    """Crop, flip and RandAugment for all images of an epoch at once, in this order (that of torchvision's recipes).

    Mixing couples the samples of a batch and is applied by the training step; only its draws are made here.

    Args:
        crop_padding: zeros added at every side before a random crop to the old size; 0 for no crop.
        flip: mirror at even odds.
        randaugment_ops: RandAugment operations a sample; 0 for none.
        randaugment_magnitude: their strength, 0 to 30.
        mixup_alpha: of MixUp's Beta distribution; 0 for no MixUp.
        cutmix_alpha: of CutMix's; 0 for no CutMix.
        mix_probability: with which a batch is mixed.
        batch_size: samples that can be mixed with each other.

    >>> augmenter = EpochAugmenter(crop_padding=4, flip=True, randaugment_ops=2, batch_size=5)
    >>> images = torch.zeros(20, 3, 32, 32, dtype=torch.uint8)
    >>> augmented, mixing = augmenter(images, torch.Generator().manual_seed(0))
    >>> augmented.shape, augmented.dtype, mixing is None
    (torch.Size([20, 3, 32, 32]), torch.uint8, True)
    """

    crop_padding: int = 4
    flip: bool = True
    randaugment_ops: int = 0
    randaugment_magnitude: int = 9
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    mix_probability: float = 1.0
    batch_size: int

    def __call__(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, MixDraws | None]:
        """Draw and apply: uint8 images (n, C, H, W) in epoch order, and the draws for mixing on their device."""
        draws = self.draw(len(images), images.shape[-2], images.shape[-1], generator)
        mixing = None if draws.mixing is None else draws.mixing.to(images.device)
        return self.apply(images, draws), mixing

    def draw(self, n: int, height: int, width: int, generator: torch.Generator) -> EpochDraws:
        """Draw an epoch of ``n`` images of one run; with a CPU generator the same on every device, and no GPU waits."""
        crop_flip = (
            draw_crop_flip(n, padding=self.crop_padding, flip=self.flip, generator=generator)
            if self.crop_padding or self.flip
            else None
        )
        operations = (
            draw_randaugment(n, num_ops=self.randaugment_ops, generator=generator) if self.randaugment_ops else None
        )
        mixing = (
            draw_mixing(
                n,
                height,
                width,
                mixup_alpha=self.mixup_alpha,
                cutmix_alpha=self.cutmix_alpha,
                probability=self.mix_probability,
                batch_size=self.batch_size,
                generator=generator,
            )
            if self.mix_probability and (self.mixup_alpha or self.cutmix_alpha)
            else None
        )
        return EpochDraws(crop_flip, operations, mixing)

    def apply(self, images: Tensor, draws: EpochDraws) -> Tensor:
        """Return the augmented images, uint8 (n, C, H, W): a function of its arguments alone; mixing is left to do."""
        if draws.crop_flip is not None:
            images = crop_and_flip(images, draws.crop_flip.to(images.device), self.crop_padding)
        if draws.randaugment is not None:
            images = randaugment(images, draws.randaugment, magnitude=self.randaugment_magnitude)
        return images
