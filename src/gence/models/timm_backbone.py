"""Any network of timm by its name there."""

from __future__ import annotations

import difflib

import torch

from gence.models.classifier import Backbone


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
