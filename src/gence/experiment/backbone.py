"""How a backbone is run: plainly, or compiled once for all networks of a kind."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

RunBackbone = Callable[[nn.Module, Tensor], Tensor]
"""``backbone, images -> features``."""


def run_backbone(backbone: nn.Module, images: Tensor) -> Tensor:
    """The plain call."""
    features: Tensor = backbone(images)
    return features


def compiled_backbone() -> RunBackbone:
    """One compilation for all networks of a kind: parameters are inputs of the graph, not constants in it.

    The head stays outside, so that data sets with different numbers of classes share the compilation too.
    """
    torch._dynamo.config.inline_inbuilt_nn_modules = True
    compiled: RunBackbone = torch.compile(run_backbone, dynamic=False)
    return compiled
