"""What every network of the lab is: a backbone that gives features, and one linear head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Backbone:
    """A network without its head.

    Args:
        module: maps images (n, C, H, W) to features (n, ``width``).
        width: number of features.
        residual_scales: the weights that switch off the residual branches when they are zero; empty where there are
            no residual branches.
        keeps_own_init: True where the library that built ``module`` has initialised it in its own way.
    """

    module: nn.Module
    width: int
    residual_scales: tuple[torch.Tensor, ...] = ()
    keeps_own_init: bool = False


class ImageClassifier(nn.Module):
    """``head(features(x))``, with the head always an ``nn.Linear``.

    Supervised contrastive learning trains ``features`` alone, and ``marginal_offset`` folds into ``head.bias``, so both
    parts have the same name in every architecture.
    """

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input of the head, (n, d), for images (n, C, H, W)."""
        features: torch.Tensor = self.backbone(x)
        return features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, K) for images (n, C, H, W)."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits
