"""A multilayer perceptron on the pixels."""

from __future__ import annotations

from torch import nn

from gence.models.classifier import Backbone


def mlp(*, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return two hidden layers of 256 with ReLU (256 features), for images of exactly ``image_size`` pixels."""
    if stem != "auto":
        raise ValueError(f"stem={stem!r} does not exist for mlp, which has no convolutions; use 'auto'")
    hidden = 256
    return Backbone(
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(in_channels * image_size**2, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
        ),
        width=hidden,
    )
