"""ResNet-18 and ResNet-50: torchvision's layers behind an explicit stem."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from gence.lab.models.classifier import Backbone
from gence.lab.models.fused_norm import ResidualBlock, norm_relu, norm_relu_for_two

_STAGES = ("layer1", "layer2", "layer3", "layer4")


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
    for stage in _STAGES:
        blocks = list(getattr(network, stage))
        layers[stage] = nn.Sequential(
            *(ResidualBlock(block, feeds_block=stage != "layer4" or block is not blocks[-1]) for block in blocks)
        )
    layers["avgpool"] = network.avgpool
    layers["flatten"] = nn.Flatten()
    last_norm = "bn3" if name == "resnet50" else "bn2"
    scales = tuple(
        block.get_parameter(f"{last_norm}.weight") for stage in _STAGES for block in layers[stage].children()
    )
    return Backbone(_ResNet(layers), network.fc.in_features, scales)


class _ResNet(nn.Sequential):
    """The layers in their order; the stem's BatchNorm and ReLU are one operation."""

    conv1: nn.Module
    bn1: nn.Module
    relu: nn.Module
    avgpool: nn.Module
    flatten: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        """Return features (n, d) of images (n, C, H, W)."""
        x = self.conv1(input)
        if "maxpool" in self._modules:
            x = self.get_submodule("maxpool")(norm_relu(self.bn1, self.relu, x))
        else:
            x = norm_relu_for_two(self.bn1, self.relu, x)
        for stage in _STAGES:
            x = self.get_submodule(stage)(x)
        features: Tensor = self.flatten(self.avgpool(x))
        return features
