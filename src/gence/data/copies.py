"""Images that occur twice where they should not: in training and test, or under two labels.

Compared are digests of the pixels that an image file decodes to, at its own size: brought to a common size, images
that differ can become equal. File formats do not matter, and gray equals colour with three equal channels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gence.data.images import ImageSet


@dataclass(frozen=True)
class Fingerprints:
    """What is compared of one part, image by image."""

    digests: Sequence[bytes | None]  # None for an image that could not be read
    labels: Tensor  # int64, (N,)
    classes: Sequence[str]  # the K names, in label order
    places: Sequence[str]  # how messages call the image

    @classmethod
    def of_files(cls, part: ImageSet, places: Sequence[str], digests: Mapping[str, bytes]) -> Fingerprints:
        """Of image files whose digests were taken when they were decoded, under the names in `places`."""
        return cls([digests.get(place) for place in places], part.labels, part.classes, places)

    @classmethod
    def of_pixels(cls, part: ImageSet) -> Fingerprints:
        """Of images that were never files, or whose size was not changed."""
        digests = [pixels_digest(image.transpose(1, 2, 0)) for image in part.images.numpy()]
        return cls(digests, part.labels, part.classes, [f"{part.name} image {i}" for i in range(len(part))])

    def digests_at(self, index: Tensor) -> list[bytes | None]:
        """The digests of some of the images."""
        return [self.digests[i] for i in index.tolist()]


def pixels_digest(pixels: np.ndarray) -> bytes:
    """SHA-256 of an image's size and colours.

    Args:
        pixels: uint8, (H, W), (H, W, 1) or (H, W, 3).

    >>> gray = np.zeros((2, 3), np.uint8)
    >>> pixels_digest(gray) == pixels_digest(np.stack([gray] * 3, axis=2)), pixels_digest(gray) == pixels_digest(gray.T)
    (True, False)
    """
    height, width = pixels.shape[:2]
    # The size enters: a row and a column of the same bytes are not the same image.
    digest = hashlib.sha256(f"{height} x {width} ".encode())
    colours = np.broadcast_to(pixels.reshape(height, width, -1), (height, width, 3))
    digest.update(np.ascontiguousarray(colours).data)
    return digest.digest()


def leak_notes(train: Iterable[bytes | None], test: Sequence[bytes | None], of_which: str = "") -> list[str]:
    """A sentence if test images are among the training images, by their digests.

    Args:
        train: digests of the training images.
        test: digests of the test images.
        of_which: what kind of test images these are, to be put behind "test images".
    """
    known = set(train) - {None}
    count = sum(digest in known for digest in test)
    if not count:
        return []
    are = "is" if count == 1 else "are"
    return [
        f"{count} of {len(test)} test images{of_which} {are} also in the training part, pixel by pixel: "
        "this makes every score too good"
    ]


def contradiction_notes(parts: Iterable[Fingerprints]) -> list[str]:
    """A sentence if there are equal pixels under different labels: at least one of the labels is wrong."""
    seen: dict[bytes, tuple[str, str]] = {}  # digest -> class and place of the first image
    count, example = 0, ""
    for part in parts:
        for digest, label, place in zip(part.digests, part.labels.tolist(), part.places, strict=True):
            if digest is None:
                continue
            name = part.classes[label]
            known, first = seen.setdefault(digest, (name, place))
            if known != name:
                count += 1
                example = example or f"{first} ({known}) and {place} ({name})"
    have = "image has" if count == 1 else "images have"
    return [f"{count} {have} the pixels of an image with another label, such as {example}"] if count else []
