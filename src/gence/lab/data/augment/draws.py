"""Random draws as data: small tensors, one row a sample, made apart from the images they will be applied to."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import torch


@dataclass(frozen=True)
class Draws:
    """Base of all draws: a dataclass whose fields are tensors that share their first dimensions.

    Draws made with a CPU generator are the same whatever device the images are on. They are small, so they are drawn on
    the CPU and copied, which also leaves the host free: nothing has to be read back from a GPU.
    """

    def to(self, device: torch.device | str) -> Self:
        """Return the draws on ``device``; the copy to a GPU goes through pinned memory and does not wait."""
        device = torch.device(device)
        return self._each(lambda tensor: to_device(tensor, device))

    def __getitem__(self, index: Any) -> Self:
        return self._each(lambda tensor: tensor[index])

    def _each(self, change: Any) -> Self:
        return type(self)(**{f.name: change(getattr(self, f.name)) for f in fields(self)})


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return ``tensor`` on ``device`` without making the host wait for a GPU."""
    if device.type == "cuda" and tensor.device.type == "cpu" and tensor.numel() > 0:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
