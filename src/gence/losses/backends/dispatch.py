"""From a call of the loss to its fused implementation, or back to the plain one where that does not apply."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from gence.losses import _checks
from gence.losses.backends import cpu, cpu_usual
from gence.losses.backends.setting import get_backend
from gence.losses.targets import Target, TwoHot, check_call, flatten_logits, loss_dtype

_TENSORS = (Tensor, nn.Parameter)
_NUMBERS = (float, int)
_TRITON_TYPES = (torch.float16, torch.bfloat16, torch.float32)
OLDEST_TRITON = (3, 6)
"""The oldest Triton that the kernels are tested with; with an older one the plain operations compute the loss."""


def _triton_version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return (0, 0)


# Constants, so that a compiled graph need not ask: torch.compile can trace neither question.
HAS_TRITON = _triton_version() >= OLDEST_TRITON
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

# What each call asks torch, looked up once. The public question for the device may first start CUDA, which it has.
_transforms = torch._C._functorch.peek_interpreter_stack
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)

_plans: dict[tuple[Any, ...], Any] = {}
_MOST_PLANS = 1024  # where every batch has another size, plans are made anew, and not kept for ever


def fused_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    anchor: float | Tensor,
    prior: Tensor | None,
    context: Tensor | None,
) -> Tensor | None:
    """The loss by the fused implementation, or None where the plain one has to compute it.

    Arguments as in ``gen_cross_entropy``. Arguments that are wrong are left to the plain implementation, or raise what
    it would raise.

    Raises:
        RuntimeError: the backend is "triton" and cannot compute this.
    """
    backend = get_backend()
    if backend == "torch" or type(input) not in _TENSORS:
        return None
    use_triton = backend == "triton" or input.is_cuda
    compiling = torch.compiler.is_compiling()
    if use_triton and not compiling and weight is None and prior is None and context is None:
        # The tests before comparing: an anchor on the device must not be looked at.
        if type(anchor) in _NUMBERS and type(label_smoothing) in _NUMBERS and anchor == 0 == label_smoothing:
            loss = _planned_loss(input, target, ignore_index, reduction)
            if loss is not None:
                return loss
    elif not use_triton and (compiling or not input.is_cpu):
        return None
    if input.dim() == 0 or input.numel() == 0:
        return None
    usual = weight is None and _is_usual(
        input, target, ignore_index, reduction, label_smoothing, anchor, prior, context
    )
    reason = _why_plain(input)
    if reason is None and not usual:
        reason = _why_plain_for(input, target, weight, anchor, prior, context)
    if reason is None and use_triton:
        reason = _why_not_triton(input, context)
    if reason is not None:
        if backend == "triton":
            raise RuntimeError(f'backend "triton": {reason}; use gence.set_backend("auto") to fall back by itself')
        return None
    if use_triton and usual:
        return _by_triton(input, target, weight, ignore_index, reduction, label_smoothing, anchor, prior, context)
    if usual and isinstance(target, Tensor):
        loss = cpu_usual.usual_loss(input, target, ignore_index, reduction)
        if loss is not None:
            return loss
    if not use_triton and isinstance(target, Tensor) and target.shape == input.shape:
        return None  # dense targets leave nothing to save on a CPU
    shape = _check(input, target, weight, ignore_index, reduction, label_smoothing, anchor, prior, context)
    logits = flatten_logits(input)
    rows = None if context is None else flatten_logits(context)
    if logits.shape[0] == 1 and rows is None and not (isinstance(anchor, Tensor) or anchor > 0):
        return None  # the plain path warns of it
    losses: Tensor | None
    if use_triton:
        losses = _by_triton(logits, target, weight, ignore_index, reduction, label_smoothing, anchor, prior, rows)
    else:
        losses = cpu.loss(logits, target, weight, ignore_index, reduction, label_smoothing, anchor, prior, rows)
    if losses is None:
        return None
    if reduction == "none" and losses.shape != shape:
        return losses.reshape(shape)
    return losses


def _is_usual(
    input: Tensor,
    target: Any,
    ignore_index: Any,
    reduction: Any,
    label_smoothing: Any,
    anchor: Any,
    prior: Any,
    context: Any,
) -> bool:
    """Whether this is rows and class indices and nothing else, and the checks could find nothing but a wrong index.

    Most calls are, and on a small batch the checks would be a good part of their cost.
    """
    return (
        prior is None
        and context is None
        and type(target) is Tensor
        and target.dtype == torch.int64
        and input.dim() == 2
        and target.dim() == 1
        and target.shape[0] == input.shape[0] > 1
        and target.device == input.device
        and input.is_floating_point()
        and reduction in _checks.REDUCTIONS
        and isinstance(label_smoothing, (int, float))
        and label_smoothing == 0
        and isinstance(anchor, (int, float))
        and anchor == 0
        and isinstance(ignore_index, int)
    )


def _why_plain(input: Tensor) -> str | None:
    """Why no fused implementation applies to these logits, or None."""
    if not torch.compiler.is_compiling():
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return "function transforms (vmap, grad, jvp) need plain operations"
        if forward_ad._current_level >= 0:
            return "forward-mode differentiation needs plain operations"
    if input.dtype == torch.float64 and input.is_cuda:
        return "float64 is computed by plain operations"
    return None


def _why_plain_for(
    input: Tensor,
    target: Any,
    weight: Any,
    anchor: Any,
    prior: Any,
    context: Any,
) -> str | None:
    """Why no fused implementation applies to these arguments, or None."""
    constants = (*target, weight, anchor, prior) if isinstance(target, TwoHot) else (target, weight, anchor, prior)
    for constant in constants:
        if isinstance(constant, Tensor):
            if constant.requires_grad and torch.is_grad_enabled():
                return "a target, weight, anchor or prior needs a gradient"
            if constant.device != input.device:
                return f"tensors are on different devices ({constant.device} and {input.device})"
    if isinstance(context, Tensor) and (context.device != input.device or context.numel() == 0):
        return "the context is empty or on another device"
    return None


def _why_not_triton(input: Tensor, context: Tensor | None) -> str | None:
    if not HAS_TRITON:
        return f"Triton {'.'.join(map(str, OLDEST_TRITON))} or newer is not installed"
    if not input.is_cuda and not INTERPRETED:
        return "a CPU tensor needs TRITON_INTERPRET=1 set before Triton is imported"
    for values in (input, context):
        if isinstance(values, Tensor) and values.dtype not in _TRITON_TYPES:
            return f"dtype {values.dtype} is computed by plain operations"
    return None


def _check(
    input: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    anchor: float | Tensor,
    prior: Tensor | None,
    context: Tensor | None,
) -> torch.Size:
    """The plain path's checks; returns the shape of the unreduced loss."""
    shape = check_call(input, target, weight, ignore_index, reduction, label_smoothing)
    K = input.shape[0] if input.dim() == 1 else input.shape[1]
    _checks.check_anchor(anchor)
    _checks.check_prior(prior, K)
    _checks.check_context(context, K)
    return shape


def _by_triton(
    logits: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    anchor: float | Tensor,
    prior: Tensor | None,
    context: Tensor | None,
) -> Tensor:
    logits = _unit_column_stride(logits)
    if context is not None:
        context = _unit_column_stride(context)
    arguments = (target, weight, ignore_index, reduction, label_smoothing, anchor, prior, logits)
    if torch.compiler.is_compiling():
        from gence.losses.backends.triton import operator
        from gence.losses.backends.triton.problem import problem_of

        return operator.loss(logits, context, problem_of(*arguments), loss_dtype(logits))
    problem_of, eager_loss, _ = _eager()
    loss: Tensor = eager_loss(logits, context, problem_of(*arguments), loss_dtype(logits))
    return loss


def _planned_loss(logits: Tensor, index: Any, ignore_index: Any, reduction: Any) -> Tensor | None:
    """The usual call of a problem that trains, or None where the general call has to look.

    On a small problem the checks would be a good part of the cost, so one lookup stands for them: what passed them once
    passes them again, if nothing is different of all that they look at.
    """
    device, dtype = logits.device, logits.dtype
    if (
        not logits.requires_grad
        or type(index) is not Tensor
        or type(ignore_index) is not int
        or not torch.is_grad_enabled()
        or _transforms() is not None
        or forward_ad._current_level >= 0
        or (logits.is_cuda and device.index != _current_device())
    ):
        return None
    key = (
        logits.shape,
        logits.stride(),
        dtype,
        device,
        index.shape,
        index.stride(),
        index.dtype,
        index.device,
        logits.data_ptr() & 15,
        index.data_ptr() & 15,
        ignore_index,
        reduction,
        dtype is not torch.float32 and torch.is_autocast_enabled(device.type),  # decides on the type of the loss
        torch.are_deterministic_algorithms_enabled(),
        _tuning().fingerprint(),
    )
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _plans[key] = _new_plan(logits, index, ignore_index, reduction)
    except TypeError:  # a reduction that is no string
        return None
    return None if plan is None else plan.apply(logits, index, plan)


def _new_plan(logits: Tensor, index: Tensor, ignore_index: int, reduction: Any) -> Any:
    if (
        not _is_usual(logits, index, ignore_index, reduction, 0.0, 0.0, None, None)
        or logits.numel() == 0
        or logits.stride(1) != 1
        or index.stride(0) != 1
        or _why_plain(logits) is not None
        or _why_not_triton(logits, None) is not None
    ):
        return None
    *_, plan_of = _eager()
    return plan_of(logits, index, ignore_index, reduction)


@functools.cache
def _tuning() -> Any:
    """The kernels' tunables; not imported before a call needs them."""
    from gence.losses.backends.triton import tuning

    return tuning


@functools.cache
def _eager() -> tuple[Any, Any, Any]:
    """The kernels' entries, imported where there is Triton, and looked up once: a call must not import."""
    from gence.losses.backends.triton import eager
    from gence.losses.backends.triton.plans import plan_of
    from gence.losses.backends.triton.problem import problem_of

    return problem_of, eager.loss, plan_of


def _unit_column_stride(values: Tensor) -> Tensor:
    return values if values.stride(1) == 1 or values.shape[1] == 1 else values.contiguous()
