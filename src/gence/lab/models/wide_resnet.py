"""WideResNet-16-8: pre-activation residual blocks, eight times as wide as a CIFAR ResNet."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from gence.lab.models.classifier import Backbone
from gence.lab.models.fused_norm import FusedSequential, norm_relu


class _PreActivationBlock(nn.Module):
    """BatchNorm-ReLU-convolution twice; where shapes change, the shortcut is a 1x1 convolution of the activated x."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.changes_shape = stride != 1 or in_channels != out_channels
        self.shortcut = (
            nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False) if self.changes_shape else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = norm_relu(self.bn1, self.relu, x)
        shortcut = self.shortcut(activated if self.changes_shape else x)
        branch = self.conv2(norm_relu(self.bn2, self.relu, self.conv1(activated)))
        total: torch.Tensor = branch + shortcut
        return total


def wrn16_8(*, in_channels: int, image_size: int, stem: str) -> Backbone:  # noqa: ARG001 - one signature for all
    """Return WideResNet-16-8 without dropout (512 features)."""
    if stem == "imagenet":
        raise ValueError("stem='imagenet' does not exist for wrn16_8, which starts at full resolution; use 'auto'")
    depth, widen = 16, 8
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
    channels = 16
    blocks: list[_PreActivationBlock] = []
    for group, (width, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        members: list[nn.Module] = []
        for position in range((depth - 4) // 6):
            block = _PreActivationBlock(channels, width * widen, stride if position == 0 else 1)
            members.append(block)
            blocks.append(block)
            channels = width * widen
        layers[f"group{group}"] = nn.Sequential(*members)
    layers["bn"] = nn.BatchNorm2d(channels)
    layers["relu"] = nn.ReLU(inplace=True)
    layers["avgpool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return Backbone(FusedSequential(layers), channels, tuple(block.conv2.weight for block in blocks))
