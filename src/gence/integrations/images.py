"""Images as features for scikit-learn: arrays or file names in, rows of a pretrained encoder out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def image_features(images: Any, encoder: str) -> np.ndarray:
    """Return the features (n, D), float32, of images under a pretrained encoder; they are kept in the cache.

    Args:
        images: uint8 (n, H, W), (n, H, W, C) or (n, C, H, W); or file names.
        encoder: "efficientnet_lite0" (the extra `pretrained`) or "timm:NAME".

    Raises:
        ValueError: neither arrays of images nor file names, or an encoder whose weights are not to be had.
    """
    from gence.lab.data import ImageSet
    from gence.lab.features import ImageSource, embed, load_encoder

    network = load_encoder(encoder)
    if _are_names(images):
        source: Any = ImageSource.of_files([Path(os.fspath(one)) for one in images], network.preprocessing.size)
    else:
        pixels = np.asarray(images)
        if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
            raise ValueError(
                f"X: {pixels.dtype} of shape {pixels.shape} was given; with encoder={encoder!r} expected images, uint8 "
                "of shape (n, H, W), (n, H, W, C) or (n, C, H, W), or a list of file names"
            )
        source = ImageSet.from_arrays(pixels, np.zeros(len(pixels), dtype=np.int64), ["unlabelled"])
    rows: np.ndarray = embed(source, network).rows().float().numpy()
    return rows


def _are_names(images: Any) -> bool:
    first = images[0] if isinstance(images, Sequence | np.ndarray) and len(images) else None
    return isinstance(first, str | os.PathLike)
