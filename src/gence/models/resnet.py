"""ResNet-18 and ResNet-50: torchvision's blocks behind an explicit stem."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from gence.models.classifier import Backbone


def resnet18(*, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return ResNet-18 (512 features)."""
    return _resnet("resnet18", in_channels, image_size, stem)


def resnet50(*, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return ResNet-50 (2048 features)."""
    return _resnet("resnet50", in_channels, image_size, stem)


def _resnet(name: str, in_channels: int, image_size: int, stem: str) -> Backbone:
    from torchvision import models

    network = getattr(models, name)(weights=None)
    if stem == "auto":
        # The ImageNet stem divides the side by four: of 32 pixels 8 would be left before the first block.
        stem = "cifar" if image_size <= 64 else "imagenet"
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stem == "cifar":
        layers["conv1"] = nn.Conv2d(in_channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
    else:
        layers["conv1"] = nn.Conv2d(in_channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    layers["bn1"] = network.bn1
    layers["relu"] = network.relu
    if stem == "imagenet":
        layers["maxpool"] = network.maxpool
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        layers[stage] = getattr(network, stage)
    layers["avgpool"] = network.avgpool
    layers["flatten"] = nn.Flatten()
    last_norm = "bn3" if name == "resnet50" else "bn2"
    scales = tuple(
        block.get_parameter(f"{last_norm}.weight")
        for stage in ("layer1", "layer2", "layer3", "layer4")
        for block in layers[stage].children()
    )
    return Backbone(nn.Sequential(layers), network.fc.in_features, scales)
