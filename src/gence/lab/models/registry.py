"""Names of networks, users' own among them, the one function that builds them, and how they are initialised."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import inspect
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from gence.lab.models.networks import (
    Backbone,
    ImageClassifier,
    check_timm,
    mlp,
    resnet18,
    resnet50,
    small_cnn,
    timm_backbone,
    vgg19,
    vgg19_wide,
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
    "vgg19_wide": vgg19_wide,
    "wrn16_8": wrn16_8,
}
_TIMM = "timm:"
OWN = "own:"
"""What the names of users' own networks begin with: own:MODULE:FUNCTION, and after a # digits of the module's text."""


def known_models() -> tuple[str, ...]:
    """Return the names that :func:`create_model` knows; any timm network is there too, as ``timm:NAME``.

    >>> known_models()
    ('mlp', 'resnet18', 'resnet50', 'small_cnn', 'vgg19', 'vgg19_wide', 'wrn16_8')
    """
    return tuple(sorted(_BACKBONES))


def check_model(name: str) -> None:
    """Raise `ValueError` for a name that :func:`create_model` does not know, or timm, where it is installed.

    Nor are models on a pretrained encoder, HEAD@ENCODER: `gence.lab.features` knows them.

    >>> check_model("timm:resnet10t")
    """
    if name.startswith(OWN):
        _own_factory(name)
    elif name.startswith(_TIMM):
        check_timm(name.removeprefix(_TIMM))
    elif "@" not in name and name not in _BACKBONES:
        nearest = difflib.get_close_matches(name, known_models(), n=1, cutoff=0.4)
        hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
        raise ValueError(
            f"unknown model {name!r}{hint}; known: {', '.join(known_models())}, timm:NAME for any timm "
            "network from scratch, own:MODULE:FUNCTION for your own, and HEAD@ENCODER for a pretrained one, such "
            "as linear@efficientnet_lite0"
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
        name: one of :func:`known_models`, ``timm:NAME``, or ``own:MODULE:FUNCTION`` for a function of your own that
            returns an ``nn.Module``; :func:`model_name` makes that name.
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
        if name.startswith(OWN):
            return _own_model(name, num_classes=num_classes, in_channels=in_channels, image_size=image_size)
        backbone = _create_backbone(name, in_channels=in_channels, image_size=image_size, stem=stem)
        initialise(backbone, init)
        head = nn.Linear(backbone.width, num_classes, bias=head_bias)
    return ImageClassifier(backbone.module, head)


def _create_backbone(name: str, *, in_channels: int, image_size: int, stem: str) -> Backbone:
    check_model(name)
    if name.startswith(_TIMM):
        return timm_backbone(name.removeprefix(_TIMM), in_channels=in_channels, image_size=image_size, stem=stem)
    return _BACKBONES[name](in_channels=in_channels, image_size=image_size, stem=stem)


def model_name(factory: Callable[..., nn.Module]) -> str:
    """Return the name under which runs and files know a function of your own that makes a network.

    Args:
        factory: a function at the top level of a module or script that returns an ``nn.Module`` whose last operation
            is an ``nn.Linear`` with one output per class. It is called with those of the keywords ``num_classes``,
            ``in_channels`` and ``image_size`` that it takes.

    Raises:
        ValueError: it cannot be found again by its name, as other processes and later sessions have to.
    """
    module, name = getattr(factory, "__module__", None), getattr(factory, "__qualname__", "")
    try:
        found = getattr(importlib.import_module(str(module)), name, None)
    except ImportError:
        found = None
    if found is not factory:
        raise ValueError(
            f"model is {factory!r}; expected the name of a network, or a function at the top level of a module that "
            "returns an nn.Module: a lambda, a method or a function inside another cannot be found again by name"
        )
    return f"{OWN}{module}:{name}{_digits(str(module))}"


def named_model(model: str | Callable[..., nn.Module]) -> str:
    """Return the name of a network that is given by name or as a function; own ones with digits of their text."""
    if not isinstance(model, str):
        return model_name(model)
    return model_name(_own_factory(model)) if model.startswith(OWN) else model


def _digits(module: str) -> str:
    """Digits of a module's text: results of a network that was changed since are not taken for the new one's."""
    try:
        text = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):  # typed into an interpreter
        return ""
    return f"#{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _own_factory(name: str) -> Callable[..., nn.Module]:
    module, _, function = name.removeprefix(OWN).partition("#")[0].partition(":")
    if not module or not function:
        raise ValueError(f"model {name!r}; expected own:MODULE:FUNCTION, such as own:mynets:make")
    here = str(Path.cwd())
    if here not in sys.path:  # where a user's own modules lie; a command does not look there by itself
        sys.path.append(here)
    try:
        factory = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise ValueError(f"model {name!r}: cannot import {module} ({error}); run from the folder it is in") from error
    except AttributeError as error:
        raise ValueError(f"model {name!r}: the module {module} has no {function}") from error
    if not callable(factory):
        raise ValueError(f"model {name!r}: {function} is not callable; expected a function that returns an nn.Module")
    made: Callable[..., nn.Module] = factory
    return made


def _own_model(name: str, *, num_classes: int, in_channels: int, image_size: int) -> ImageClassifier:
    """A user's network, taken apart into what comes before its last linear layer and that layer."""
    factory = _own_factory(name)
    taken = inspect.signature(factory).parameters
    every = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    given = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    network = factory(**{key: value for key, value in given.items() if every or key in taken})
    if not isinstance(network, nn.Module):
        raise ValueError(f"model {name!r} returned a {type(network).__name__}; expected an nn.Module")
    images = torch.randn(2, in_channels, image_size, image_size)
    was_training = network.training
    with torch.no_grad():
        expected = network.eval()(images)
    heads = [
        (path, m) for path, m in network.named_modules() if isinstance(m, nn.Linear) and m.out_features == num_classes
    ]
    for path, head in reversed(heads):
        parent, _, last = path.rpartition(".")
        setattr(network.get_submodule(parent), last, nn.Identity())
        made = ImageClassifier(network, head)
        try:
            with torch.no_grad():
                same = torch.equal(made(images), expected)
        except RuntimeError:
            same = False
        if same and path:
            made.train(was_training)
            return made
        setattr(network.get_submodule(parent), last, head)
    raise ValueError(
        f"model {name!r}: its output has shape {tuple(expected.shape)} and does not come from an nn.Linear with "
        f"{num_classes} outputs; end the network with one, without a softmax behind it"
    )
