"""A small convolutional network for CPUs and small images."""

from __future__ import annotations

from torch import nn

from gence.models.classifier import Backbone


def small_cnn(*, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return three convolutions with BatchNorm, two max-pools and an average (64 features, about 57,000 parameters)."""
    if stem == "imagenet":
        raise ValueError("stem='imagenet' does not exist for small_cnn; use 'auto'")
    if image_size < 4:
        raise ValueError(f"small_cnn halves the image twice and needs image_size >= 4, got {image_size}; use mlp")
    # Max-pools, though strided convolutions are a little faster on a CPU: on digits with 100 labels those were several
    # points of accuracy worse.
    return Backbone(
        nn.Sequential(
            *_convolution(in_channels, 32),
            nn.MaxPool2d(2),
            *_convolution(32, 64),
            nn.MaxPool2d(2),
            *_convolution(64, 64),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        width=64,
    )


def _convolution(in_channels: int, out_channels: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )
