"""The data sets that have a name: what is in them, and which files they are made from; and one spelling per source."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RemoteFile:
    """A file of a public data set, with the SHA-256 that it must have, wherever it comes from."""

    url: str
    sha256: str
    split: str  # the split it holds, or "all"

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class SourceInfo:
    """A named data set, as `gence data list` shows it."""

    name: str
    summary: str
    num_classes: int
    image_shape: tuple[int, int, int]  # channels, height, width
    train_images: int
    test_images: int
    terms: str
    files: tuple[RemoteFile, ...] = ()
    bundled: bool = False

    @property
    def origin(self) -> str:
        """How the images are obtained when no archive of them lies in `$GENCE_DATA`."""
        return "bundled with scikit-learn" if self.bundled else "download" if self.files else "bring your own archives"


_TORONTO = "https://www.cs.toronto.edu/~kriz"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"

KNOWN = {
    info.name: info
    for info in (
        SourceInfo(
            "digits", "handwritten digits, 8 x 8, gray", 10, (1, 8, 8), 896, 901, "CC BY 4.0 (UCI)", bundled=True
        ),
        SourceInfo(
            "cifar10",
            "CIFAR-10: small photographs",
            10,
            (3, 32, 32),
            50_000,
            10_000,
            "published for research",
            (
                RemoteFile(
                    f"{_TORONTO}/cifar-10-binary.tar.gz",
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    "all",
                ),
            ),
        ),
        SourceInfo(
            "cifar100",
            "CIFAR-100: small photographs, fine labels",
            100,
            (3, 32, 32),
            50_000,
            10_000,
            "published for research",
            (
                RemoteFile(
                    f"{_TORONTO}/cifar-100-binary.tar.gz",
                    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                    "all",
                ),
            ),
        ),
        SourceInfo(
            "svhn",
            "SVHN: cropped house numbers",
            10,
            (3, 32, 32),
            73_257,
            26_032,
            "non-commercial research",
            (
                RemoteFile(
                    f"{_STANFORD}/train_32x32.mat",
                    "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                    "train",
                ),
                RemoteFile(
                    f"{_STANFORD}/test_32x32.mat",
                    "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                    "test",
                ),
            ),
        ),
        SourceInfo(
            "mini-imagenet",
            "Mini-ImageNet: 500 training and 100 test images a class",
            100,
            (3, 84, 84),
            50_000,
            10_000,
            "ImageNet's research terms",
        ),
    )
}


def known_sources() -> list[SourceInfo]:
    """The data sets that can be asked for by name.

    >>> [info.name for info in known_sources()]
    ['digits', 'cifar10', 'cifar100', 'svhn', 'mini-imagenet']
    """
    return list(KNOWN.values())


HUB_PREFIX = "hf:"


def plain_source(source: str | os.PathLike[str]) -> str:
    """The one spelling of a source: a path without "./" in front, "/" behind and "//" inside; names stay as they are.

    A text may be a name; a path object is always a path.

    >>> plain_source("photos/"), plain_source("./photos"), plain_source("cifar10")
    ('photos', 'photos', 'cifar10')
    >>> plain_source("./digits/")  # a folder that has the name of a data set
    './digits'
    """
    if isinstance(source, str) and (not source or _is_name(source)):
        return source
    plain = str(Path(source))
    return f".{os.sep}{plain}" if _is_name(plain) else plain


def same_source(one: str, other: str) -> bool:
    """Whether two texts name one source, however the path to it is written.

    >>> same_source("photos", "other/../photos/"), same_source("digits", "./digits")
    (True, False)
    """
    if _is_name(one) or _is_name(other):
        return one == other
    return os.path.realpath(Path(one).expanduser()) == os.path.realpath(Path(other).expanduser())


def _is_name(source: str) -> bool:
    return source in KNOWN or source.startswith(HUB_PREFIX)
