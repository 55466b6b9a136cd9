"""From a call of the loss to its implementation: one table, and a short way to it for the calls that most people make.

Each implementation lists what it requires; the first that has all it requires computes the loss. `why_backend` tells
which one that is, and why none before it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from gence.losses import _checks
from gence.losses.backends import cpu, cpu_small, setting
from gence.losses.formula import generative_loss
from gence.losses.targets import Rows, Target, TwoHot, flatten_logits, loss_dtype, prepare_rows

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
_masked: dict[tuple[Any, ...], bool] = {}
_warned_of_one_row = False
_known_prior: tuple[Callable[[], Tensor | None], int] = (lambda: None, 0)
_HUGE = -1e5  # below it the kernels have lost digits that a loss needs
_LOOKED_AT = 1 << 24  # logits at once, where the table looks for such numbers
_MOST_PLANS = 1024  # where every batch has another size, plans are made again, and not kept for ever


class Call(NamedTuple):
    """The arguments of a call of the loss, of one batch that is not a part of another."""

    input: Tensor
    target: Target
    weight: Tensor | None
    ignore_index: int
    reduction: str
    label_smoothing: float
    anchor: float | Tensor
    prior: Tensor | None
    context: Tensor | None


class Choice(NamedTuple):
    """Which implementation computes a call of the loss.

    Attributes:
        name: "triton", "cpu_small", "cpu", "formula", or "parts" where the rows are a part of a larger batch.
        reason: why none that comes before it does.
    """

    name: str
    reason: str


# Requirements: each returns why a call does not meet it, or None.


def _fast(call: Call) -> str | None:
    """What no fast path can do."""
    if setting.get_backend() == "torch":
        return 'the backend is "torch"'
    if type(call.input) not in _TENSORS:
        return f"the input is a {type(call.input).__name__}, not a plain tensor"
    if call.input.dim() == 0 or call.input.numel() == 0:
        return "the input is empty"
    if not torch.compiler.is_compiling():
        if _transforms() is not None:
            return "function transforms (vmap, grad, jvp) need plain operations"
        if forward_ad._current_level >= 0:
            return "forward-mode differentiation needs plain operations"
    return None


def _several_rows(call: Call) -> str | None:
    """One row alone has no loss, which the formula warns of."""
    z = call.input
    one = z.dim() == 1 or (z.shape[0] == 1 and (z.dim() == 2 or z.numel() == z.shape[1]))
    return "there is one row alone" if one and call.context is None and not _anchored(call.anchor) else None


def _constants(call: Call) -> str | None:
    """What stands beside the logits is a constant, and on their device."""
    target = tuple(call.target) if isinstance(call.target, TwoHot) else (call.target,)
    for constant in (*target, call.weight, call.anchor, call.prior):
        if isinstance(constant, Tensor):
            if constant.requires_grad and torch.is_grad_enabled():
                return "a target, weight, anchor or prior needs a gradient"
            if constant.device != call.input.device:
                return f"tensors are on different devices ({constant.device} and {call.input.device})"
    context = call.context
    if isinstance(context, Tensor) and (context.device != call.input.device or context.numel() == 0):
        return "the context is empty or on another device"
    return None


def _on_gpu(call: Call) -> str | None:
    if not call.input.is_cuda and setting.get_backend() != "triton":
        return f"the tensors are on the {call.input.device.type}"
    if not HAS_TRITON:
        return f"Triton {'.'.join(map(str, OLDEST_TRITON))} or newer is not installed"
    if not call.input.is_cuda and not INTERPRETED:
        return "a CPU tensor needs TRITON_INTERPRET=1 set before Triton is imported"
    return None


def _single_precision(call: Call) -> str | None:
    for values in (call.input, call.context):
        if isinstance(values, Tensor) and values.dtype not in _TRITON_TYPES:
            return f"dtype {values.dtype} is computed by plain operations"
    return None


def _digits(call: Call) -> str | None:
    """Classes that count are not masked by a huge number in all rows: the kernels add logarithms.

    The first call of its kind is looked at, for which the host has to wait; masks rarely come and go.
    """
    z, target = call.input, call.target
    if torch.compiler.is_compiling() or (z.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    anchored = call.prior is not None and _anchored(call.anchor)
    # These alone name classes that no row may be able to have; labels do so by mistake.
    named = call.label_smoothing > 0, isinstance(target, Tensor) and target.shape == z.shape, anchored
    weighted = call.weight is not None, call.context is not None, _anchored(call.anchor)
    kind = (z.dtype, z.device, str(call.reduction), named, weighted, _kernels().fingerprint())
    key = (z.shape, *kind)
    if key not in _masked:
        if len(_masked) >= _MOST_PLANS:
            _masked.clear()
        _masked[key] = _loses_digits(call, None if any(named) else kind)
    return "all rows mask a class by a huge number, where the kernels would lose digits" if _masked[key] else None


def _loses_digits(call: Call, kind: tuple[Any, ...] | None) -> bool:
    """Whether such a class counts. Of one kind whose targets are labels, one batch is looked at, whatever its size."""
    rows = _rows(call)
    if _kernels().is_tiny(rows.logits, call.context, _kernels().operands_of(rows, 0.0, None).reduction):
        return False  # the one program keeps all digits
    if kind is None:
        return _is_masked(call, rows)
    key = (rows.num_classes, *kind)
    if key not in _masked:
        _masked[key] = _is_masked(call, rows)
    return _masked[key]


def _is_masked(call: Call, rows: Rows) -> bool:
    logits, valid = rows.logits.detach(), rows.valid()
    n, K = logits.shape
    lowest = torch.full((K,), -torch.inf, device=logits.device)
    at_once = max(_LOOKED_AT // K, 1)
    for first in range(0, n, at_once):
        below = _below_peak(logits[first : first + at_once])
        if valid is not None:
            below = below.masked_fill(~valid[first : first + at_once, None], -torch.inf)
        lowest = torch.maximum(lowest, below.amax(0))
    if call.context is not None and call.context.numel():
        lowest = torch.maximum(lowest, _below_peak(flatten_logits(call.context.detach())).amax(0))
    counts = torch.zeros_like(lowest, dtype=torch.bool)
    if rows.label_smoothing > 0:
        counts |= True
    elif rows.probs is not None:
        counts |= (rows.probs != 0).any(0)
    else:
        for labels in (rows.index,) if rows.two_hot is None else rows.two_hot[:2]:
            assert labels is not None  # one of the three forms is set
            own = (labels if valid is None else labels[valid]).long()
            counts[own[(own >= 0) & (own < K)]] = True
    if rows.weight is not None:
        counts &= rows.weight != 0
    if call.prior is not None and _anchored(call.anchor):
        counts |= call.prior > 0
    return bool((counts & (lowest < _HUGE) & (lowest > -torch.inf)).any())


def _below_peak(logits: Tensor) -> Tensor:
    z = logits.float()
    return z - z.amax(1, keepdim=True)


def _on_cpu(call: Call) -> str | None:
    if setting.get_backend() != "auto":
        return f'the backend is "{setting.get_backend()}"'
    if torch.compiler.is_compiling():
        return "the call is compiled"
    return None if call.input.is_cpu else f"the tensors are on the {call.input.device.type}"


def _sparse_target(call: Call) -> str | None:
    if isinstance(call.target, Tensor) and call.target.shape == call.input.shape:
        return "class probabilities leave nothing to save on a CPU"
    return None


def _labels_alone(call: Call) -> str | None:
    if isinstance(call.target, TwoHot):
        return "the target is two-hot"
    return None if call.context is None else "there are context rows"


def _few(call: Call) -> str | None:
    K = call.input.shape[0] if call.input.dim() == 1 else call.input.shape[1]
    n = call.input.numel() // K
    if _is_small(n, K):
        return None
    return f"{n} rows of {K} logits are more than {cpu_small.MOST_ROWS} rows or {cpu_small.SMALL} logits"


def _is_small(n: int, K: int) -> bool:
    """Whether rows (n, K) are better computed by few operations than in few passes over memory."""
    return n * K <= cpu_small.SMALL and n <= cpu_small.MOST_ROWS


_Requirement = Callable[[Call], str | None]
_ALWAYS = (_fast, _constants, _several_rows)
TABLE: dict[str, tuple[_Requirement, ...]] = {
    #            any device  device    types, targets      shape
    "triton": (*_ALWAYS, _on_gpu, _single_precision, _digits),
    "cpu_small": (*_ALWAYS, _on_cpu, _sparse_target, _labels_alone, _few),
    "cpu": (*_ALWAYS, _on_cpu, _sparse_target),
    "formula": (),
}
"""Implementations, fastest first, and what each requires."""


def choose(call: Call) -> Choice:
    """The first implementation whose requirements the call meets. Wrong arguments are for the checks to find."""
    against: dict[str, str] = {}
    for name, requirements in TABLE.items():
        why = next(filter(None, (requirement(call) for requirement in requirements)), None)
        if why is None:
            break
        against.setdefault(why, name)
    return Choice(name, "; ".join(f"not {other}: {why}" for why, other in against.items()) or "the first choice")


def batch_loss(
    input: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    anchor: float | Tensor,
    prior: Tensor | None,
    context: Tensor | None,
) -> Tensor:
    """The loss of one batch, by the implementation that the table names.

    Raises:
        RuntimeError: the backend is "triton" and cannot compute this.
    """
    eager = type(input) in _TENSORS and not torch.compiler.is_compiling()
    loss = None
    if eager and input.is_cpu and (setting.current or setting.get_backend()) == "auto":
        if context is None:
            loss = _usual_on_cpu(input, target, weight, ignore_index, reduction, label_smoothing, anchor, prior)
        if loss is not None:
            return loss
        eager = False
    call = Call(input, target, weight, ignore_index, reduction, label_smoothing, anchor, prior, context)
    if eager and weight is None and context is None and setting.get_backend() != "torch":
        loss = _planned_loss(call)
        if loss is not None:
            return loss
    name, reason = choose(call)
    if name != "triton" and setting.get_backend() == "triton":
        _say_why_not_triton(call, reason)
    return _IMPLEMENTATIONS[name](call)


def _say_why_not_triton(call: Call, reason: str) -> None:
    """An error, but where the plain operations have something to say or to pass on."""
    given = call.input
    if type(given) in _TENSORS and given.dim() > 0 and given.numel() > 0 and _several_rows(call) is None:
        raise RuntimeError(f'backend "triton": {reason}; use gence.set_backend("auto") to fall back by itself')


# Implementations


def _by_formula(call: Call) -> Tensor:
    rows = _rows(call)
    if rows.logits.shape[0] == 1 and call.context is None and not _anchored(call.anchor):
        _warn_of_one_row()
    return generative_loss(rows, call.anchor, call.prior, call.context)


def _warn_of_one_row() -> None:
    global _warned_of_one_row
    if _warned_of_one_row or torch.compiler.is_compiling():
        return
    _warned_of_one_row = True
    warnings.warn(
        "gen_cross_entropy on one row is 0 with a zero gradient: a row competes with the others in its batch, and "
        "there are none. Use a larger batch, pass `context`, or set `anchor` > 0.",
        UserWarning,
        stacklevel=_checks.callers_level(),
    )


def _by_blocks(call: Call) -> Tensor:
    rows = _rows(call)
    context = None if call.context is None else flatten_logits(call.context)
    losses = cpu.blocks_loss(rows, call.anchor, call.prior, context)
    if losses is None:
        return generative_loss(rows, call.anchor, call.prior, context)
    return losses.reshape(rows.shape) if rows.reduction == "none" else losses


def _by_few_operations(call: Call) -> Tensor:
    rows = _rows(call)
    assert rows.index is not None  # the table says so
    z, index, at = rows.logits, rows.index.long(), None
    valid = cpu.some_invalid(rows)
    if valid is not None:
        at = valid.nonzero().squeeze(1)
        z, index = z.index_select(0, at), index.index_select(0, at)
    losses = None
    if len(index):
        anchor = float(call.anchor)
        losses = cpu_small.small_loss(z, index, call.weight, rows.reduction, rows.label_smoothing, anchor, call.prior)
    if losses is None:
        return _by_blocks(call)
    if rows.reduction != "none":
        return losses
    if at is not None:
        losses = losses.new_zeros(len(rows.logits)).index_copy(0, at, losses)
    return losses.reshape(rows.shape)


def _by_triton(call: Call) -> Tensor:
    rows = _rows(call)
    context = None if call.context is None else _unit_column_stride(flatten_logits(call.context))
    rows.logits = _unit_column_stride(rows.logits)
    from gence.losses.backends import triton as kernels  # not above: Triton may be missing

    compute = kernels.compiled_loss if torch.compiler.is_compiling() else kernels.eager_loss
    losses: Tensor = compute(rows, kernels.operands_of(rows, call.anchor, call.prior), context)
    return losses.reshape(rows.shape) if rows.reduction == "none" else losses


_IMPLEMENTATIONS: dict[str, Callable[[Call], Tensor]] = {
    "triton": _by_triton,
    "cpu_small": _by_few_operations,
    "cpu": _by_blocks,
    "formula": _by_formula,
}


def _rows(call: Call) -> Rows:
    """All checks, and the one form of rows."""
    rows = prepare_rows(*call[:6])
    _checks.check_anchor(call.anchor)
    _checks.check_prior(call.prior, rows.num_classes)
    _checks.check_context(call.context, rows.num_classes)
    if type(call.prior) is Tensor and not torch.compiler.is_compiling():
        global _known_prior
        _known_prior = weakref.ref(call.prior), call.prior._version
    return rows


# The short way


def _is_usual(
    input: Tensor,
    target: Any,
    weight: Any,
    ignore_index: Any,
    reduction: Any,
    label_smoothing: Any,
    anchor: Any,
    prior: Any,
) -> bool:
    """Whether this is rows, class indices and numbers, and the checks could find nothing but a wrong index.

    Most calls are, and on a small batch the checks would be a good part of their cost.
    """
    return (
        type(target) is Tensor
        and target.dtype is torch.int64
        and input.dim() == 2
        and target.dim() == 1
        and target.shape[0] == input.shape[0] > 1
        and target.device == input.device
        and input.is_floating_point()
        and (weight is None or _is_usual_weight(weight, input))
        and reduction in _checks.REDUCTIONS
        and type(label_smoothing) in _NUMBERS
        and 0 <= label_smoothing <= 1
        and type(anchor) in _NUMBERS
        and 0 <= anchor < math.inf
        and type(ignore_index) is int
        and (prior is None or _is_known_prior(prior, input))
    )


def _is_known_prior(prior: Any, input: Tensor) -> bool:
    """Whether the prior is the one that passed the checks last, and was not written into since."""
    known, version = _known_prior
    return (
        type(prior) is Tensor
        and known() is prior
        and prior._version == version
        and not prior.requires_grad
        and prior.shape[0] == input.shape[1]
        and prior.device == input.device
    )


def _is_usual_weight(weight: Any, input: Tensor) -> bool:
    return (
        type(weight) is Tensor
        and weight.is_floating_point()
        and not weight.requires_grad
        and weight.dim() == 1
        and weight.shape[0] == input.shape[1]
        and weight.device == input.device
    )


def _usual_on_cpu(
    input: Tensor,
    target: Any,
    weight: Any,
    ignore_index: Any,
    reduction: Any,
    label_smoothing: Any,
    anchor: Any,
    prior: Any,
) -> Tensor | None:
    """The usual call on a CPU, or None where the table has to be asked."""
    if (
        not _is_usual(input, target, weight, ignore_index, reduction, label_smoothing, anchor, prior)
        or _transforms() is not None
        or forward_ad._current_level >= 0
        or 0 <= ignore_index < input.shape[1]
    ):
        return None
    n, K = input.shape
    if K == 0:
        return None
    if _is_small(n, K):
        return cpu_small.small_loss(input, target, weight, reduction, label_smoothing, anchor, prior)
    lowest, highest = target.aminmax()
    if lowest.item() < 0 or highest.item() >= K:
        return None
    smoothing = float(label_smoothing)
    rows = Rows(input, target, None, None, weight, None, smoothing, reduction, target.shape, loss_dtype(input))
    return cpu.blocks_loss(rows, anchor, prior, None)


def _planned_loss(call: Call) -> Tensor | None:
    """The usual call of a problem that trains, or None where the general call has to look.

    On a small problem the checks would be a good part of the cost, so one lookup stands for them: what passed them once
    passes them again, if nothing is different of all that they look at.
    """
    logits, index, _, ignore_index, reduction, label_smoothing, anchor, prior, _ = call
    device, dtype = logits.device, logits.dtype
    if (
        not logits.requires_grad
        or type(index) is not Tensor
        or type(ignore_index) is not int
        or type(anchor) not in _NUMBERS  # an anchor on the device must not be looked at
        or type(label_smoothing) not in _NUMBERS
        or not (prior is None or (type(prior) is Tensor and not prior.requires_grad))
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
        label_smoothing,
        anchor,
        None if prior is None else (prior.shape, prior.stride(), prior.dtype, prior.device, prior.data_ptr() & 15),
        dtype is not torch.float32 and torch.is_autocast_enabled(device.type),  # decides on the type of the loss
        torch.are_deterministic_algorithms_enabled(),
        _kernels().fingerprint(),
    )
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        plan = _new_plan(call)
        _plans[key] = plan
    except TypeError:  # a reduction that is not a string
        return None
    loss: Tensor | None = None if plan is None else plan.apply(logits, index, prior, plan)
    return loss


def _new_plan(call: Call) -> Any:
    logits, index = call.input, call.target
    if (
        not _is_usual(*call._replace(prior=None)[:8])
        or not isinstance(index, Tensor)
        or logits.numel() == 0
        or logits.stride(1) != 1
        or index.stride(0) != 1
        or choose(call).name != "triton"
    ):
        return None
    if call.prior is not None:
        _checks.check_prior(call.prior, logits.shape[1])
        if call.prior.stride(0) != 1:
            return None
    return _kernels().plan_of(prepare_rows(*call[:6]), float(call.anchor), call.prior)


@functools.cache
def _kernels() -> Any:
    """The Triton kernels' front door, looked up once: a planned call must not import."""
    from gence.losses.backends import triton

    return triton


def _anchored(anchor: Any) -> bool:
    return isinstance(anchor, Tensor) or (isinstance(anchor, _NUMBERS) and anchor > 0)


def _unit_column_stride(values: Tensor) -> Tensor:
    return values if values.stride(1) == 1 or values.shape[1] == 1 else values.contiguous()
