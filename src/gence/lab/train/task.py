"""What one seed of a spec trains and is judged on: its images on the device, and the statistics that come from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gence.lab.data import (
    DataSplits,
    ImageSet,
    RowSet,
    balanced_subset,
    holdout,
    load,
    load_images,
    long_tail_subset,
    size_like,
)
from gence.lab.spec import RunSpec
from gence.lab.store import data_checksums
from gence.lab.train.backbone import pretrained_encoder


@dataclass(frozen=True, eq=False)
class DeviceImages:
    """Images and labels on the device."""

    images: Tensor  # uint8 (n, C, H, W)
    labels: Tensor  # int64 (n,)
    index: Tensor  # (n,) on the CPU: positions in the source's split


@dataclass(frozen=True, eq=False)
class Problem:
    """The data of one seed.

    ``judged`` is the test set, or the held-out part of the subset while tuning; ``held`` is that part where the test
    set is judged, so that a calibrator can be fitted on it.
    """

    train: DeviceImages
    judged: DeviceImages
    ood: dict[str, Tensor]  # name -> uint8 images
    classes: tuple[str, ...]
    prior: Tensor  # (K,) class distribution of the training images
    mean: Tensor  # (C,) of the training images, on the scale of 0 to 1
    std: Tensor
    checksums: dict[str, str] = field(default_factory=dict)  # of the source's parts and of the out-of-distribution sets
    held: DeviceImages | None = None


class ProblemLoader:
    """Loads sources once and moves what is needed to the device once, whatever number of runs share it.

    Args:
        device: where the images go.
        cache_dir: where decoded images are kept.
        progress: a bar on stderr while images are decoded or downloaded.
    """

    def __init__(self, device: torch.device, cache_dir: Path | None = None, progress: bool = False) -> None:
        self.device, self.cache_dir, self.progress = device, cache_dir, progress
        self._splits: dict[tuple[str, int | None], DataSplits] = {}
        self._test: dict[tuple[str, int | None, int], DeviceImages] = {}
        self._ood: dict[tuple[str, tuple[int, int, int]], tuple[Tensor, str]] = {}  # images and their checksum

    def load(self, spec: RunSpec) -> Problem:
        """The problem of a spec; runs that differ in their loss alone get equal ones."""
        source = (spec.data, spec.image_size)
        if source not in self._splits:
            self._splits[source] = load(
                spec.data, image_size=spec.image_size, cache_dir=self.cache_dir, progress=self.progress
            )
        splits = self._splits[source]
        encoder = pretrained_encoder(spec, splits.train.image_shape[1])
        channels = splits.train.image_shape[0] if encoder is None else len(encoder.preprocessing.mean)
        whole = splits.train.with_channels(channels)
        labels, classes = whole.labels, whole.classes
        index = subset_index(spec, labels, len(classes), classes)
        if spec.subset.val_fraction > 0:
            kept, held = holdout(labels[index], spec.subset.val_fraction, spec.seed, len(classes), classes=classes)
            train_index, val_index = index[kept], index[held]
        else:
            train_index, val_index = index, index[:0]
        train = whole.subset(train_index)
        if spec.evaluate_on == "val":
            judged = self._move(whole, val_index)
        else:
            if (*source, channels) not in self._test:
                test = splits.test.with_channels(channels)
                self._test[*source, channels] = self._move(test, torch.arange(len(test)))
            judged = self._test[*source, channels]
        ood = {name: self._load_ood(name, train) for name in spec.ood}
        mean, std = train.mean_std()
        if encoder is not None:
            mean, std = (torch.tensor(values) for values in (encoder.preprocessing.mean, encoder.preprocessing.std))
        counts = train.counts().float()
        return Problem(
            train=self._move(whole, train_index),
            judged=judged,
            ood={name: images for name, (images, _) in ood.items()},
            classes=train.classes,
            prior=(counts / counts.sum()).to(self.device),
            mean=mean.to(self.device),
            std=std.clamp_min(1e-3).to(self.device),  # a constant channel would divide by 0
            checksums={**data_checksums(splits), **{f"ood/{name}": checksum for name, (_, checksum) in ood.items()}},
            held=self._move(whole, val_index) if len(val_index) and spec.evaluate_on != "val" else None,
        )

    def _move(self, images: ImageSet, index: Tensor) -> DeviceImages:
        return DeviceImages(images.images[index].to(self.device), images.labels[index].to(self.device), index)

    def _load_ood(self, name: str, like: ImageSet) -> tuple[Tensor, str]:
        channels, *_ = like.image_shape
        key = (name, like.image_shape)
        if key not in self._ood:
            found = load_images(
                name,
                "test",
                image_size=size_like(like.image_shape),
                channels=channels,
                cache_dir=self.cache_dir,
                progress=self.progress,
            )
            self._ood[key] = found.images.to(self.device), found.checksum
        return self._ood[key]


def subset_index(spec: RunSpec, labels: Tensor, num_classes: int, classes: Sequence[str] | None = None) -> Tensor:
    """Which training images a spec uses, before any hold-out: balanced, long-tailed, or all.

    With ``rho``, ``n`` is the size of the largest class (by default all of class 0), not of the subset. ``classes`` are
    their names, for error messages.
    """
    subset = spec.subset
    if subset.rho is not None:
        return long_tail_subset(labels, subset.rho, spec.seed, n_max=subset.n, num_classes=num_classes, classes=classes)
    if subset.n is not None:
        return balanced_subset(labels, subset.n, spec.seed, num_classes, classes=classes)
    return torch.arange(len(labels))


def drawn_counts(spec: RunSpec, train: ImageSet | RowSet) -> list[int]:
    """How many images of each class a spec uses, before any hold-out."""
    drawn = train.labels[subset_index(spec, train.labels, train.num_classes, train.classes)]
    counts: list[int] = drawn.bincount(minlength=train.num_classes).tolist()
    return counts


def most_balanced(train: ImageSet | RowSet) -> int:
    """The size of the largest subset that has as many images of each class."""
    return train.num_classes * int(train.counts().min())
