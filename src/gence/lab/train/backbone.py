"""How a backbone is run, plainly or compiled once for all networks of a kind, and on which device.

A network may begin as a pretrained encoder: then encoder and head are one classifier, and a recipe says what of it is
trained.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gence.lab.features import (
    DEFAULT_ENCODER,
    Encoder,
    EncoderError,
    EncoderModel,
    is_encoder_model,
    is_row_encoder,
    named_encoder,
    untrained_encoder,
)
from gence.lab.models import ImageClassifier
from gence.lab.spec import Recipe, RunSpec

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
    """The torch device of a name other than "auto"; raise if invalid or unavailable. No GPU is touched."""
    expected = "expected 'auto', 'cpu', 'cuda' or 'cuda:1'"
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; {expected}") from error
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; {expected}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but PyTorch sees no GPU here; use 'cpu', or 'auto' to choose")
    if place.type == "cuda" and place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(f"device is {device!r}, but PyTorch sees {torch.cuda.device_count()} GPU here, counted from 0")
    return place


_HIDDEN = 512
_LAST_SHARE = 0.05  # of the parameters, which the last stage has at least
_NORMS = (nn.modules.batchnorm._BatchNorm,)


@functools.lru_cache(maxsize=2)
def _loaded(name: str, size: int | None, digits: str | None) -> Encoder:
    return named_encoder(name, size=size, digits=digits)


def pretrained_encoder(spec: RunSpec, size: int | None) -> Encoder | None:
    """The encoder of a run, or None for a network from scratch; it is shared, and not to be changed.

    Args:
        spec: the run.
        size: side of its input, for encoders that are trained on; None is the encoder's own.
    """
    if not is_encoder_model(spec.model):
        return None
    model = EncoderModel.parse(spec.model)
    if is_row_encoder(model.encoder):
        raise EncoderError(
            f"model {spec.model!r} reads the rows of a table, and {spec.data} has images; use linear@{DEFAULT_ENCODER}"
        )
    return _loaded(model.encoder, model.size or size, model.weights)


def head_and_encoder(
    network: nn.Module, head: str, width: int, num_classes: int, *, bias: bool, seed: int
) -> ImageClassifier:
    """A classifier of an encoder's network and a new head, whose initialisation depends on the seed alone."""
    if head == "cosine":
        raise ValueError("a cosine head is trained on frozen features only; fine-tune with linear@ or mlp@")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        hidden = [nn.Linear(width, _HIDDEN), nn.ReLU()] if head == "mlp" else []
        last = nn.Linear(_HIDDEN if hidden else width, num_classes, bias=bias)
    return ImageClassifier(nn.Sequential(network, *hidden), last)


def untrained_classifier(spec: RunSpec, size: int, num_classes: int) -> ImageClassifier | None:
    """The network of a saved run on an encoder, for the weights in its file; None for a network from scratch."""
    if not is_encoder_model(spec.model):
        return None
    model = EncoderModel.parse(spec.model)
    network, width = untrained_encoder(model.encoder, size=size)
    made = head_and_encoder(network, model.head, width, num_classes, bias=spec.recipe.head_bias, seed=0)
    choose_trained(made, spec.recipe)
    return made


class FrozenNorms(nn.Sequential):
    """A backbone whose BatchNorm layers keep the statistics they were pretrained with, in training too."""

    def train(self, mode: bool = True) -> FrozenNorms:
        """Set training mode everywhere but in the norms."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, _NORMS):
                module.eval()
        return self


def choose_trained(classifier: ImageClassifier, recipe: Recipe) -> None:
    """Let gradients reach what the recipe trains: the head, and of the encoder its last stage or all of it."""
    network = classifier.backbone[0]  # type: ignore[index]
    network.requires_grad_(recipe.tune_encoder == "all")
    if recipe.tune_encoder == "last":
        for parameter in _last_stage(network):
            parameter.requires_grad_(True)
    if recipe.freeze_norms:
        classifier.backbone = FrozenNorms(*classifier.backbone.children())


def parameter_groups(classifier: ImageClassifier, recipe: Recipe) -> list[dict[str, Any]]:
    """Groups for an optimiser, the head's first; "factor" is what the run's learning rate is multiplied by."""
    of_encoder = {id(p) for p in classifier.backbone[0].parameters()}  # type: ignore[index]
    trained = [p for p in classifier.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if id(p) not in of_encoder], "factor": 1.0},
        {"params": [p for p in trained if id(p) in of_encoder], "factor": recipe.encoder_lr},
    ]
    return [group for group in groups if group["params"]]


def _last_stage(network: nn.Module) -> list[nn.Parameter]:
    """The parameters of the last stages, as timm groups them, until they are a twentieth of all."""
    from timm.models import group_parameters

    grouped = group_parameters(network, network.group_matcher(coarse=True))  # type: ignore[operator]
    named = dict(network.named_parameters())
    total, chosen = sum(p.numel() for p in named.values()), []
    for stage in sorted(grouped, reverse=True):
        chosen += [named[name] for name in grouped[stage]]
        if sum(p.numel() for p in chosen) >= _LAST_SHARE * total:
            break
    return chosen
