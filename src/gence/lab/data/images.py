"""Labelled images in memory: the one form in which every source of data reaches the rest of the library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gence.lab.data.errors import DataError

if TYPE_CHECKING:
    import numpy as np

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow's conversion to "L"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with one label each, decoded, on the CPU.

    Attributes:
        images: uint8, (N, C, H, W), with C = 1 or 3.
        labels: int64, (N,), each in [0, K).
        classes: the K class names, in label order.
        name: where the images come from, such as "cifar10/train".
        checksum: SHA-256 of pixels, labels and class names (`contents_checksum`); the name does not enter.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    checksum: str

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] not in (1, 3):
            raise DataError(
                f"{self.name}: images must be uint8 (N, 1 or 3, H, W); "
                f"got {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{self.name}: labels must be int64 ({len(self.images)},), one per image; "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise DataError(
                f"{self.name}: labels run from {int(self.labels.min())} to {int(self.labels.max())}, "
                f"but the {len(self.classes)} classes are numbered 0 to {len(self.classes) - 1}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """K, the number of classes (absent ones included)."""
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def counts(self) -> Tensor:
        """Images per class: int64, (K,)."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    def subset(self, index: Tensor) -> ImageSet:
        """The images at `index`, in that order; classes keep their numbers, name and checksum follow the contents."""
        images, labels = self.images[index], self.labels[index]
        return ImageSet(images, labels, self.classes, self.name, contents_checksum(images, labels, self.classes))

    def renamed(self, name: str) -> ImageSet:
        """The same images under another name."""
        return ImageSet(self.images, self.labels, self.classes, name, self.checksum)

    def with_channels(self, channels: int) -> ImageSet:
        """The same images with 1 or 3 channels: gray is repeated, colour becomes ITU-R 601 luma."""
        if channels not in (1, 3):
            raise DataError(f"channels must be 1 or 3; got {channels}")
        if channels == self.images.shape[1]:
            return self
        if channels == 3:
            images = self.images.expand(-1, 3, -1, -1).contiguous()
        else:
            weight = torch.tensor(_LUMA, dtype=torch.float32)
            # In pieces: float32 copies of a large set would need twelve times its memory.
            pieces = [torch.einsum("nchw,c->nhw", piece.float(), weight) for piece in torch.split(self.images, 1024)]
            images = torch.cat([piece.round_().to(torch.uint8) for piece in pieces]).unsqueeze(1)
        return ImageSet(
            images, self.labels, self.classes, self.name, contents_checksum(images, self.labels, self.classes)
        )

    def mean_std(self) -> tuple[Tensor, Tensor]:
        """Per channel mean and population standard deviation of all pixels on the [0, 1] scale: float32, (C,) each.

        Exact integer sums underneath, so the result does not depend on the order of the images.

        >>> import torch
        >>> pair = ImageSet.from_arrays(torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1), [0, 1])
        >>> pair.mean_std()
        (tensor([0.5000]), tensor([0.5000]))
        """
        if not len(self):
            raise DataError(f"{self.name}: no images, so no mean")
        values = torch.arange(256, dtype=torch.float64) / 255
        mean, std = [], []
        for channel in range(self.images.shape[1]):
            histogram = torch.zeros(256, dtype=torch.int64)
            for piece in torch.split(self.images[:, channel], 8192):
                histogram += torch.bincount(piece.reshape(-1), minlength=256)
            share = histogram.double() / histogram.sum()
            mean.append((share * values).sum())
            std.append((share * (values - mean[-1]) ** 2).sum().sqrt())
        return torch.stack(mean).float(), torch.stack(std).float()

    @classmethod
    def from_arrays(
        cls,
        images: np.ndarray | Tensor,
        labels: np.ndarray | Tensor | Sequence[int],
        classes: Sequence[str] | None = None,
        name: str = "arrays",
        layout: str = "auto",
    ) -> ImageSet:
        """Images and labels that are already in memory, checked and copied into the common form.

        Args:
            images: uint8; (N, H, W) gray, (N, C, H, W) or (N, H, W, C) with C = 1 or 3.
            labels: integers, (N,).
            classes: class names in label order; by default "0", "1", ... up to the largest label.
            name: what to call the set in messages and records.
            layout: "NCHW" or "NHWC" where the shape alone leaves it open; "auto" otherwise.

        >>> import numpy as np
        >>> noise = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
        >>> ImageSet.from_arrays(noise, [0, 1, 0, 1], classes=["cat", "dog"]).image_shape
        (3, 8, 8)
        """
        pixels = torch.as_tensor(images)
        if pixels.dtype != torch.uint8:
            raise DataError(
                f"{name}: images must be uint8 in 0..255; got {pixels.dtype} "
                "(for floats in [0, 1]: (images * 255).round().astype('uint8'))"
            )
        pixels = _to_nchw(pixels, layout, name)
        targets = _checked_labels(labels, name)
        if len(pixels) == 0:
            raise DataError(f"{name}: images is empty")
        if classes is None:
            classes = [str(k) for k in range(int(targets.max()) + 1)] if len(targets) else []
        names = tuple(str(c) for c in classes)
        if len(set(names)) != len(names):
            raise DataError(f"{name}: class names must differ from each other; got {list(names)}")
        pixels = pixels.cpu().contiguous().clone()
        return cls(pixels, targets, names, name, contents_checksum(pixels, targets, names))


@dataclass(frozen=True, eq=False)
class DataSplits:
    """Training and test images of one source: same classes, same image shape, no image in both."""

    train: ImageSet
    test: ImageSet

    def __post_init__(self) -> None:
        if self.train.classes != self.test.classes:
            raise DataError(
                f"{self.train.name} and {self.test.name} have different classes: only in one of them: "
                f"{sorted(set(self.train.classes) ^ set(self.test.classes)) or 'none, the order differs'}"
            )
        if self.train.image_shape != self.test.image_shape:
            raise DataError(
                f"{self.train.name} has images of shape {self.train.image_shape} and {self.test.name} of "
                f"{self.test.image_shape} (channels, height, width); name one size for both, such as --image-size 64 "
                "(image_size=64 in Python)"
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in label order."""
        return self.train.classes


def contents_checksum(images: Tensor, labels: Tensor, classes: Sequence[str]) -> str:
    """SHA-256 over a JSON line (image shape and class names), the labels as little-endian int64, and the pixels."""
    digest = hashlib.sha256(json.dumps([list(images.shape), list(classes)]).encode() + b"\n")
    digest.update(labels.contiguous().numpy().astype("<i8").tobytes())
    digest.update(images.contiguous().numpy().data)
    return digest.hexdigest()


def _to_nchw(pixels: Tensor, layout: str, name: str) -> Tensor:
    if layout not in ("auto", "NCHW", "NHWC"):
        raise DataError(f"layout must be 'auto', 'NCHW' or 'NHWC'; got {layout!r}")
    if pixels.ndim == 3:
        return pixels.unsqueeze(1)
    shape = tuple(pixels.shape)
    if pixels.ndim != 4:
        raise DataError(f"{name}: images must be (N, H, W), (N, C, H, W) or (N, H, W, C); got shape {shape}")
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if layout == "auto" and first and last:
        raise DataError(f"{name}: shape {shape} could be NCHW or NHWC; pass layout='NCHW' or layout='NHWC'")
    if (layout == "NCHW" and not first) or (layout == "NHWC" and not last) or not (first or last):
        raise DataError(f"{name}: images need 1 or 3 channels; got shape {shape} with layout {layout!r}")
    return pixels if layout == "NCHW" or (layout == "auto" and first) else pixels.permute(0, 3, 1, 2)


def _checked_labels(labels: Any, name: str) -> Tensor:
    targets = torch.as_tensor(labels)
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool or targets.ndim != 1:
        raise DataError(f"{name}: labels must be integers of shape (N,); got {targets.dtype} {tuple(targets.shape)}")
    return targets.to(device="cpu", dtype=torch.int64, copy=True)
