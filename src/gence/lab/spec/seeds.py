"""One seed, many named streams: changing the loss changes neither the images drawn nor their augmentation."""

from __future__ import annotations

import hashlib

import torch


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream with these names, e.g. ``stream_seed(0, "augment", epoch)``.

    >>> stream_seed(0, "init") == stream_seed(0, "init"), stream_seed(0, "init") == stream_seed(0, "order")
    (True, False)
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator for that stream. A stream per epoch needs no saved state: a resumed run draws the same."""
    return torch.Generator().manual_seed(stream_seed(seed, *names))
