"""How a backbone is run: plainly, or compiled once for all networks of a kind; and on which device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

RunBackbone = Callable[[nn.Module, Tensor], Tensor]
"""``backbone, images -> features``."""


def run_backbone(backbone: nn.Module, images: Tensor) -> Tensor:
    """The plain call."""
    features: Tensor = backbone(images)
    return features


def run_backbone_in_half(backbone: nn.Module, images: Tensor) -> Tensor:
    """The plain call under autocast, with all convolutions' weights rounded together.

    Autocast rounds them one by one, and so it does with their gradients: a hundred launches a step of a ResNet-50.
    """
    place = images.device.type
    if not torch.is_autocast_enabled(place):
        return run_backbone(backbone, images)
    weights = convolution_weights(backbone)
    if not weights:
        return run_backbone(backbone, images)
    rounded = _RoundAll.apply(torch.get_autocast_dtype(place), *weights.values())
    return run_backbone_with(dict(zip(weights, rounded, strict=True)), backbone, images)


def run_backbone_with(weights: Mapping[str, Tensor], backbone: nn.Module, images: Tensor) -> Tensor:
    """The plain call with some parameters replaced, by their names in the backbone."""
    features: Tensor = torch.func.functional_call(backbone, dict(weights), (images,))
    return features


def convolution_weights(backbone: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that pay to be rounded together: nearly all that a network has."""
    return {name: p for name, p in backbone.named_parameters() if p.dim() == 4 and p.dtype == torch.float32}


class _RoundAll(torch.autograd.Function):
    """Tensors in another type, and their gradients in float32, by few launches."""

    @staticmethod
    def forward(_: Any, dtype: torch.dtype, *values: Tensor) -> tuple[Tensor, ...]:
        return _converted(values, dtype)

    @staticmethod
    @once_differentiable
    def backward(_: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_converted(grads, torch.float32)


def _converted(values: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    results = [torch.empty_like(value, dtype=dtype) for value in values]
    torch._foreach_copy_(results, list(values))
    return tuple(results)


def compiled_backbone() -> RunBackbone:
    """One compilation for all networks of a kind: parameters are inputs of the graph, not constants in it.

    The head stays outside, so that data sets with different numbers of classes share the compilation too.
    """
    torch._dynamo.config.inline_inbuilt_nn_modules = True
    compiled: RunBackbone = torch.compile(run_backbone, dynamic=False)
    return compiled


def resolve_device(device: str) -> torch.device:
    """The torch device of a name; "auto" is the first GPU, or the CPU.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = check_device(device)
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else place


def check_device(device: str) -> torch.device:
    """The torch device of a name other than "auto"; an error if it is none, or not here. No GPU is touched."""
    expected = "expected 'auto', 'cpu', 'cuda' or 'cuda:1'"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; {expected}") from error
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; {expected}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but PyTorch sees no GPU here; use 'cpu', or 'auto' for what there is")
    if place.type == "cuda" and place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(f"device is {device!r}, but PyTorch sees {torch.cuda.device_count()} GPU here, counted from 0")
    return place
