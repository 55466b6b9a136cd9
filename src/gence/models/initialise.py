"""Weight initialisation: the paper leaves it open, so it is an explicit choice."""

from __future__ import annotations

import math

from torch import nn

from gence.models.classifier import Backbone

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
