"""Argument checks shared by the losses: each error names the argument, what came, and what was expected.

Shapes and types are checked always (they cost nothing). Values are checked only where looking at them neither stalls a
GPU nor breaks a graph: on ordinary CPU tensors outside of ``torch.compile``, ``vmap`` and export.
"""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any

import torch
from torch import Tensor

REDUCTIONS = ("mean", "sum", "none")


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether a look at the tensor's values is free of host synchronisation and of graph breaks."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is None  # a graph is being traced
    )


def check_logits(input: Any, name: str = "input") -> None:
    """``input`` must be a floating tensor (K,), (n, K) or (N, K, d1, ...) with at least one row and one class."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}: expected a tensor of logits, got {type(input).__name__}")
    if not input.is_floating_point():
        raise TypeError(f"{name}: expected floating-point logits, got dtype {input.dtype}")
    if input.dim() == 0:
        raise ValueError(f"{name}: expected logits of shape (K,), (n, K) or (N, K, d1, ...), got a scalar")
    if input.numel() == 0:
        raise ValueError(f"{name}: expected at least one row and one class, got shape {tuple(input.shape)}")


def check_reduction(reduction: Any) -> None:
    """``reduction`` must be one of PyTorch's three."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: expected one of {', '.join(map(repr, REDUCTIONS))}, got {reduction!r}")


def check_label_smoothing(label_smoothing: float) -> None:
    """``label_smoothing`` must lie in [0, 1]."""
    if label_smoothing is None or isinstance(label_smoothing, (str, Tensor)):
        raise TypeError(f"label_smoothing: expected a number in [0, 1], got {type(label_smoothing).__name__}")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing: expected a number in [0, 1], got {label_smoothing}")


def check_number(name: str, value: Any, expected: str) -> None:
    """A parameter of a loss must be a number; text and sequences are not compared with one."""
    if value is None or isinstance(value, (str, list, tuple, dict)):
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")


def check_q(q: float) -> None:
    """Generalised cross-entropy's ``q`` must lie in (0, 1]."""
    check_number("q", q, "a number in (0, 1]")
    if not 0.0 < q <= 1.0:
        raise ValueError(f"q: expected a number in (0, 1], got {q}")


def check_at_least(name: str, value: float, least: int) -> None:
    """A loss's own parameter must be a number that reaches ``least``."""
    check_number(name, value, f"a number >= {least}")
    if not value >= least:
        raise ValueError(f"{name}: expected a number >= {least}, got {value}")


def check_gamma(gamma: float) -> None:
    """The focal losses' ``gamma`` must not be negative."""
    check_at_least("gamma", gamma, 0)


def check_temperature(temperature: float, name: str = "temperature") -> None:
    """A loss's temperature must be positive."""
    check_number(name, temperature, "a number > 0")
    if not temperature > 0.0:
        raise ValueError(f"{name}: expected a number > 0, got {temperature}")


def check_ignore_index(ignore_index: int) -> None:
    """``ignore_index`` must be an integer."""
    if ignore_index is None or isinstance(ignore_index, (str, float, Tensor)):
        raise TypeError(f"ignore_index: expected an integer (-100 if nothing is ignored), got {ignore_index!r}")


def check_weight(weight: Tensor | None, num_classes: int) -> None:
    """``weight`` must be None or a floating tensor (K,)."""
    if weight is None:
        return
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        seen = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"weight: expected a floating-point tensor of {num_classes} class weights, got {seen}")
    if tuple(weight.shape) != (num_classes,):
        raise ValueError(f"weight: expected shape ({num_classes},), one for each class, got {tuple(weight.shape)}")


def check_prior(prior: Tensor | None, num_classes: int | None) -> None:
    """``prior`` must be None or a distribution over the classes: (K,), not negative, summing to 1."""
    if prior is None:
        return
    if not isinstance(prior, Tensor) or not prior.is_floating_point():
        seen = prior.dtype if isinstance(prior, Tensor) else type(prior).__name__
        raise TypeError(f"prior: expected a floating-point tensor of class probabilities, got {seen}")
    if prior.dim() != 1 or (num_classes is not None and prior.shape[0] != num_classes):
        expected = "(K,)" if num_classes is None else f"({num_classes},)"
        raise ValueError(f"prior: expected shape {expected}, one for each class, got {tuple(prior.shape)}")
    if values_can_be_read(prior):
        prior = prior.detach()  # it may be learnt
        if bool((prior < 0).any()):
            raise ValueError(f"prior: expected no negative entries, got {float(prior.min()):g}")
        total = float(prior.double().sum())
        allowed = 1e-3 if prior.dtype in (torch.float32, torch.float64) else 1e-2  # half types round by this much
        if not abs(total - 1.0) <= allowed:  # written so that NaN fails too
            raise ValueError(f"prior: expected entries that sum to 1, got a sum of {total:g}; divide the prior by it")


def check_positive(name: str, values: Tensor) -> None:
    """All entries must be positive, where they can be looked at."""
    if values_can_be_read(values) and not bool((values > 0).all()):
        raise ValueError(f"{name}: expected positive entries only, got {float(values.detach().min()):g}")


def check_anchor(anchor: float | Tensor) -> None:
    """``anchor`` must not be negative; a 0-dim tensor lets a schedule change it inside a captured graph."""
    if isinstance(anchor, Tensor):
        if anchor.dim() != 0:
            raise ValueError(f"anchor: expected a number or a 0-dim tensor, got shape {tuple(anchor.shape)}")
        if not values_can_be_read(anchor):
            return
        anchor = anchor.detach()  # it may be learnt
    elif not isinstance(anchor, (int, float)) and not isinstance(anchor, Real):  # NumPy's numbers are the latter
        raise TypeError(f"anchor: expected a number or a 0-dim tensor, got {type(anchor).__name__}")
    if not float(anchor) >= 0.0:
        raise ValueError(f"anchor: expected a number >= 0 (0 is the paper's loss), got {float(anchor):g}")


def check_context(context: Any, num_classes: int) -> None:
    """``context`` must be None or floating logits (m, K), (K,) or (M, K, d1, ...)."""
    if context is None:
        return
    if not isinstance(context, Tensor) or not context.is_floating_point():
        seen = context.dtype if isinstance(context, Tensor) else type(context).__name__
        raise TypeError(f"context: expected floating-point logits of extra rows, got {seen}")
    if context.dim() == 0 or context.shape[min(1, context.dim() - 1)] != num_classes:
        raise ValueError(f"context: expected shape (m, {num_classes}), got {tuple(context.shape)}")


def is_probability_target(input: Tensor, target: Any) -> bool:
    """PyTorch's rule: a target of the input's own shape holds class probabilities."""
    if not isinstance(target, Tensor):
        raise TypeError(
            f"target: expected a tensor of class indices or class probabilities, got {type(target).__name__}"
        )
    return target.shape == input.shape


def check_probabilities(input: Tensor, target: Tensor, ignore_index: int) -> torch.Size:
    """Class probabilities must be floating; returns the shape of the unreduced loss."""
    if not target.is_floating_point():
        raise TypeError(
            f"target: of the input's shape {tuple(input.shape)} means class probabilities and must be floating-point, "
            f"got dtype {target.dtype}; class indices have shape {_index_shape(input)}"
        )
    if ignore_index >= 0:
        raise ValueError(f"ignore_index: is for class indices, got {ignore_index} with class probabilities")
    return torch.Size(_index_shape(input))


def check_two_hot(input: Tensor, parts: dict[str, Any], num_classes: int, ignore_index: int) -> torch.Size:
    """The parts of a two-hot target ("first", "second", "share") must have one shape, that of class indices."""
    shape = _index_shape(input)
    for name, part in parts.items():
        if not isinstance(part, Tensor):
            raise TypeError(f"target.{name}: expected a tensor of shape {shape}, got {type(part).__name__}")
        if tuple(part.shape) != shape:
            raise ValueError(f"target.{name}: expected shape {shape}, got {tuple(part.shape)}")
    share = parts["share"]
    if not share.is_floating_point():
        raise TypeError(f"target.share: expected a floating-point tensor, got dtype {share.dtype}")
    if values_can_be_read(share) and bool(((share < 0) | (share > 1)).any()):
        low, high = (float(end) for end in share.detach().aminmax())
        raise ValueError(f"target.share: expected shares in [0, 1], got {low:g} to {high:g}")
    if ignore_index >= 0:
        raise ValueError(f"ignore_index: is for class indices, got {ignore_index} with a two-hot target")
    for name in ("first", "second"):
        check_index_type(f"target.{name}", parts[name])
        check_range(f"target.{name}", parts[name], num_classes, ignore_index=None)
    return torch.Size(shape)


def check_indices(input: Tensor, target: Tensor, num_classes: int, ignore_index: int) -> torch.Size:
    """Class indices must have the input's shape without K and lie in [0, K) or equal ``ignore_index``."""
    shape = _index_shape(input)
    if tuple(target.shape) != shape:
        raise ValueError(
            f"target: expected class indices of shape {shape} or class probabilities of shape {tuple(input.shape)}, "
            f"got {tuple(target.shape)}"
        )
    check_index_type("target", target)
    check_range("target", target, num_classes, ignore_index)
    return target.shape


def _index_shape(input: Tensor) -> tuple[int, ...]:
    shape = tuple(input.shape)
    return () if len(shape) == 1 else (shape[0], *shape[2:])


def check_index_type(name: str, index: Tensor) -> None:
    """Class indices must be of an integer type."""
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(f"{name}: expected class indices of an integer type, got dtype {index.dtype}")


def check_range(name: str, index: Tensor, num_classes: int, ignore_index: int | None) -> None:
    """Class indices must lie in [0, K) or equal ``ignore_index``, where they can be looked at."""
    if not values_can_be_read(index):
        return
    index = index.long()  # as a byte, -100 would be 156
    outside = (index < 0) | (index >= num_classes)
    if ignore_index is not None:
        outside &= index != ignore_index
    if bool(outside.any()):
        seen = int(index[outside].flatten()[0])
        allowed = "" if ignore_index is None else f" or ignore_index = {ignore_index}"
        raise IndexError(f"{name}: expected class indices in [0, {num_classes}){allowed}, got {seen}")


def callers_level() -> int:
    """The `stacklevel` with which a warning points at the line that called gence, through modules and whatever else."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("gence.", "torch.nn.")):
        frame, level = frame.f_back, level + 1
    return level
