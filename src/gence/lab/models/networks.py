"""The networks: an MLP and a small CNN for CPUs, ResNets, VGG-19, WideResNet-16-8, and any network of timm by its name.

ResNets are torchvision's layers behind an explicit stem; VGG-19 has BatchNorm and a head that fits small images;
WideResNet has pre-activation residual blocks, eight times as wide as a CIFAR ResNet.
"""

from __future__ import annotations

import difflib
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gence.lab.models.fused_norm import FusedSequential, ResidualBlock, norm_relu, norm_relu_for_two


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


def check_timm(name: str) -> None:
    """Raise `ValueError` for a name that timm does not know; where timm is not installed, none is looked up."""
    try:
        import timm
    except ImportError:
        return
    if not timm.is_model(name):
        similar = difflib.get_close_matches(name, timm.list_models(), n=5)
        hint = f"; similar: {', '.join(similar)}" if similar else ""
        raise ValueError(f"timm has no network named {name!r}{hint}; timm.list_models() gives all names")


def timm_backbone(name: str, *, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return the timm network ``name``, untrained, up to the input of its classifier.

    Networks that fix their input size (vision transformers) are built for ``image_size``. timm's classifier is
    replaced by the lab's own linear head, so its special initialisation, where there is one, does not apply.

    Raises:
        ValueError: timm cannot build ``name`` for ``image_size``, or a stem is asked for.
    """
    import timm

    if stem != "auto":
        raise ValueError(
            f"stem={stem!r} does not exist for timm networks, whose stem is part of their name; use 'auto'"
        )
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
        raise ValueError(f"{name!r} gives features of shape {tuple(features.shape)}, expected one vector per image")
    return Backbone(network.train(), features.shape[1], keeps_own_init=True)


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


# Configuration E of the VGG paper: the channels of each convolution, stage by stage; a max-pool ends each stage.
_VGG_STAGES = ((64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512))


def vgg19(*, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return VGG-19 with BatchNorm (512 features).

    The three wide linear layers of the original, made for 224 px, are replaced by an average over what the five pools
    leave (1 x 1 of 32 px, 2 x 2 of 84 px) and the one linear head; `vgg19_wide` keeps them. The convolutions have no
    bias: the BatchNorm that follows each would cancel it.
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
    for stage in _VGG_STAGES:
        for out_channels in stage:
            layers.append(nn.Conv2d(channels, out_channels, kernel_size=3, padding=1, bias=False))
            layers.append(nn.BatchNorm2d(out_channels))
            layers.append(nn.ReLU(inplace=True))
            channels = out_channels
        layers.append(nn.MaxPool2d(2))
    parts = OrderedDict(convolutions=FusedSequential(*layers), avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    return Backbone(nn.Sequential(parts), channels)


_WIDE = 4096  # of the VGG paper, whose dropout is a half


def vgg19_wide(*, in_channels: int, image_size: int, stem: str) -> Backbone:
    """Return VGG-19 with BatchNorm and the original's two wide layers with dropout before the head (4096 features)."""
    narrow = vgg19(in_channels=in_channels, image_size=image_size, stem=stem)
    layers = [nn.Linear(narrow.width, _WIDE), nn.ReLU(inplace=True), HalfDropout()]
    layers += [nn.Linear(_WIDE, _WIDE), nn.ReLU(inplace=True), HalfDropout()]
    return Backbone(nn.Sequential(OrderedDict(convolutions=narrow.module, wide=nn.Sequential(*layers))), _WIDE)


class HalfDropout(nn.Module):
    """Dropout of a half whose draws belong to the module: a seed and a counter in its buffers, hashed.

    PyTorch's dropout draws from the one generator of a device. Runs that train side by side would take turns with it,
    so that a run would depend on its neighbours, and a run that resumes would not find where it had stopped.

    >>> layer = HalfDropout()
    >>> sorted(set(layer(torch.ones(100)).tolist())), layer.eval()(torch.ones(2)).tolist()
    ([0.0, 2.0], [1.0, 1.0])
    """

    seed: Tensor
    drawn: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seed", torch.randint(2**62, ()))
        self.register_buffer("drawn", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Return x with half of its elements zeroed, the others doubled; in evaluation x itself."""
        if not self.training:
            return x
        draw = torch.arange(x.numel(), device=x.device) + (self.seed + (self.drawn << 40))
        self.drawn += 1
        # Two rounds of a multiplicative hash (splitmix64's multipliers, as signed numbers); the top bit decides.
        for multiplier, shift in ((-4658895280553007687, 30), (-7723592293110705685, 27)):
            draw = (draw ^ (draw >> shift)) * multiplier
        return x * ((draw < 0).view(x.shape).to(x.dtype) * 2)


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
