"""Networks of a few lines (a CNN and an MLP for CPUs and small images), and any network of timm by its name there."""

from __future__ import annotations

import difflib

import torch
from torch import nn

from gence.lab.models.classifier import Backbone


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


def timm_backbone(name: str, *, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return the timm network ``name``, untrained, up to the input of its classifier.

    Networks that fix their input size (vision transformers) are built for ``image_size``. timm's classifier is
    replaced by the lab's own linear head, so its special initialisation, where there is one, does not apply.

    Raises:
        ValueError: timm does not know ``name`` or cannot build it for ``image_size``, or a stem is asked for.
    """
    import timm

    if stem != "auto":
        raise ValueError(
            f"stem={stem!r} does not exist for timm networks, whose stem is part of their name; use 'auto'"
        )
    if not timm.is_model(name):
        similar = difflib.get_close_matches(name, timm.list_models(), n=5)
        hint = f"; similar: {', '.join(similar)}" if similar else ""
        raise ValueError(f"timm has no network named {name!r}{hint}; timm.list_models() gives all names")
    size = {"img_size": image_size} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    try:
        network = timm.create_model(name, pretrained=False, num_classes=0, in_chans=in_channels, **size).eval()
        # Many networks are built without complaint for images they cannot take, so one image is sent through.
        with torch.no_grad():
            features = network(torch.zeros(1, in_channels, image_size, image_size))
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"timm could not build {name!r} for images of {image_size} px: {error}") from error
    if getattr(getattr(network, "patch_embed", None), "num_patches", 1) < 1:
        raise ValueError(
            f"timm could not build {name!r} for images of {image_size} px: they are smaller than one patch"
        )
    if features.ndim != 2:
        raise ValueError(f"{name!r} gives features of shape {tuple(features.shape)}, expected one vector an image")
    return Backbone(network.train(), features.shape[1], keeps_own_init=True)
