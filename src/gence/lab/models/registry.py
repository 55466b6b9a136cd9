"""Names of networks, the one function that builds them, and the initialisations that the paper leaves open."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn

from gence.lab.models.networks import (
    Backbone,
    ImageClassifier,
    mlp,
    resnet18,
    resnet50,
    small_cnn,
    timm_backbone,
    vgg19,
    wrn16_8,
)

INITS = ("kaiming_fan_out", "torch", "zero_residual")

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def initialise(backbone: Backbone, init: str) -> None:
    """Initialise a backbone in place, with randomness from the global generator.

    - ``kaiming_fan_out``: convolutions normal with variance 2 / fan-out, BatchNorm 1 and 0, everything else as PyTorch
      or the library that built the network leaves it. This is what torchvision does for its ResNets.
    - ``torch``: PyTorch's defaults (a timm network keeps timm's own).
    - ``zero_residual``: as ``kaiming_fan_out``, and every residual branch starts at zero: the scale of its last
      BatchNorm, or its last convolution where the block ends with one. Without residual branches there is nothing to
      set to zero, and the two are the same.

    Raises:
        ValueError: ``zero_residual`` for a network whose residual branches are not known (timm).
    """
    if init == "torch":
        if not backbone.keeps_own_init:
            _reset(backbone.module)
        return
    if init == "zero_residual" and backbone.keeps_own_init:
        raise ValueError(
            "init='zero_residual' is not available for timm networks, whose residual branches are not known here; "
            "use init='torch' (timm's own initialisation) or init='kaiming_fan_out'"
        )
    for module in backbone.module.modules():
        if isinstance(module, _CONVOLUTIONS):
            # Divided by the groups, which nn.init.kaiming_normal_ does not do: a depthwise filter feeds one channel.
            fan_out = module.out_channels * math.prod(module.kernel_size) // module.groups
            nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, _BATCH_NORMS) and module.affine:
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    if init == "zero_residual":
        for scale in backbone.residual_scales:
            nn.init.zeros_(scale)


def _reset(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, (nn.Linear, *_CONVOLUTIONS, *_BATCH_NORMS)):
            module.reset_parameters()


STEMS = ("auto", "cifar", "imagenet")

_BACKBONES: dict[str, Callable[..., Backbone]] = {
    "mlp": mlp,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "small_cnn": small_cnn,
    "vgg19": vgg19,
    "wrn16_8": wrn16_8,
}
_TIMM = "timm:"


def known_models() -> tuple[str, ...]:
    """Return the names that :func:`create_model` knows; any timm network is there too, as ``timm:NAME``.

    >>> known_models()
    ('mlp', 'resnet18', 'resnet50', 'small_cnn', 'vgg19', 'wrn16_8')
    """
    return tuple(sorted(_BACKBONES))


def check_model(name: str) -> None:
    """Raise `ValueError` for a name that :func:`create_model` does not know; those of timm are not looked up.

    Nor are models on a pretrained encoder, HEAD@ENCODER: `gence.lab.features` knows them.

    >>> check_model("timm:resnet10t")
    """
    if "@" not in name and not name.startswith(_TIMM) and name not in _BACKBONES:
        nearest = difflib.get_close_matches(name, known_models(), n=1, cutoff=0.4)
        hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
        raise ValueError(
            f"unknown model {name!r}{hint}; known: {', '.join(known_models())}, timm:NAME for any timm "
            "network from scratch, and HEAD@ENCODER for a pretrained one, such as linear@efficientnet_lite0"
        )


def create_model(
    name: str,
    *,
    num_classes: int,
    in_channels: int = 3,
    image_size: int = 32,
    stem: str = "auto",
    init: str = "kaiming_fan_out",
    head_bias: bool = True,
    seed: int | None = None,
) -> ImageClassifier:
    """Build an untrained network on the CPU.

    Args:
        name: one of :func:`known_models`, or ``timm:NAME``.
        num_classes: K, the number of logits.
        in_channels: 1 for gray, 3 for colour.
        image_size: side of the square images in pixels. It chooses the stem under ``auto``, and fixes the input size of
            ``mlp`` and of vision transformers.
        stem: first layers of a ResNet. ``cifar``: 3x3 convolution with stride 1 and no max-pool; ``imagenet``: 7x7 with
            stride 2 and max-pool; ``auto``: ``cifar`` up to 64 px, ``imagenet`` above. Other networks have one stem.
        init: ``kaiming_fan_out``, ``torch`` or ``zero_residual``; see :func:`gence.lab.models.registry.initialise`. The
            head always has PyTorch's default initialisation.
        head_bias: whether the head has a bias.
        seed: where given, initialisation depends on it alone and the global generator is left as it was; otherwise the
            global generator is used.

    Returns:
        An :class:`ImageClassifier` with ``features(x)`` and ``head``.

    Raises:
        ValueError: an unknown name, stem or init, a size that the network cannot take, or a stem it does not have.

    >>> model = create_model("small_cnn", num_classes=10, in_channels=1, image_size=8, seed=0)
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    for argument, value in (("num_classes", num_classes), ("in_channels", in_channels), ("image_size", image_size)):
        if value < 1:
            raise ValueError(f"{argument} must be at least 1, got {value}")
    if stem not in STEMS:
        raise ValueError(f"stem must be one of {', '.join(STEMS)}, got {stem!r}")
    if init not in INITS:
        raise ValueError(f"init must be one of {', '.join(INITS)}, got {init!r}")
    # devices=[]: everything is built on the CPU, so the generators of GPUs are neither read nor moved.
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        backbone = _create_backbone(name, in_channels=in_channels, image_size=image_size, stem=stem)
        initialise(backbone, init)
        head = nn.Linear(backbone.width, num_classes, bias=head_bias)
    return ImageClassifier(backbone.module, head)


def _create_backbone(name: str, *, in_channels: int, image_size: int, stem: str) -> Backbone:
    check_model(name)
    if name.startswith(_TIMM):
        return timm_backbone(name.removeprefix(_TIMM), in_channels=in_channels, image_size=image_size, stem=stem)
    return _BACKBONES[name](in_channels=in_channels, image_size=image_size, stem=stem)
