"""Where to compute."""

from __future__ import annotations

import torch


def resolve_device(device: str) -> torch.device:
    """The torch device of a name; "auto" is the first GPU, or the CPU.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = check_device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else place


def check_device(device: str) -> torch.device:
    """The torch device of a name other than "auto"; an error if it is none, or not here. No GPU is touched."""
    expected = "expected 'auto', 'cpu', 'cuda' or 'cuda:1'"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; {expected}") from error
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; {expected}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but PyTorch sees no GPU here; use 'cpu', or 'auto' for what there is")
    if place.type == "cuda" and place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(f"device is {device!r}, but PyTorch sees {torch.cuda.device_count()} GPU here, counted from 0")
    return place
