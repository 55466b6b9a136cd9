"""VGG-19 with BatchNorm, and a head that fits small images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from gence.lab.models.classifier import Backbone
from gence.lab.models.fused_norm import FusedSequential

# Configuration E of the VGG paper: the channels of each convolution, stage by stage; a max-pool ends each stage.
_STAGES = ((64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512))


def vgg19(*, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return VGG-19 with BatchNorm (512 features).

    The three wide linear layers of the original, made for 224 px, are replaced by an average over what the five pools
    leave (1 x 1 of 32 px, 2 x 2 of 84 px) and the one linear head. The convolutions have no bias: the BatchNorm that
    follows each would cancel it.
    """
    if stem == "imagenet":
        raise ValueError("stem='imagenet' does not exist for vgg19, whose first layer is a 3x3 convolution; use 'auto'")
    if image_size < 32:
        raise ValueError(
            f"vgg19 halves the image five times and needs image_size >= 32, got {image_size}; "
            "use small_cnn or resnet18 for smaller images, or resize them"
        )
    layers: list[nn.Module] = []
    channels = in_channels
    for stage in _STAGES:
        for out_channels in stage:
            layers.append(nn.Conv2d(channels, out_channels, kernel_size=3, padding=1, bias=False))
            layers.append(nn.BatchNorm2d(out_channels))
            layers.append(nn.ReLU(inplace=True))
            channels = out_channels
        layers.append(nn.MaxPool2d(2))
    parts = OrderedDict(convolutions=FusedSequential(*layers), avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    return Backbone(nn.Sequential(parts), channels)
