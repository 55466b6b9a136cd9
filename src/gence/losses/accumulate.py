"""Exact gradient accumulation: the loss of a large batch, forward and backward through its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from gence.losses.generative import GenCELoss
from gence.losses.parts import BatchMarginal
from gence.losses.targets import Target


def _call(model: nn.Module, inputs: Any) -> Tensor:
    logits: Tensor = model(inputs)
    return logits


def two_pass_backward(
    model: nn.Module,
    criterion: GenCELoss,
    micro_batches: Iterable[tuple[Any, Target]],
    *,
    forward: Callable[[nn.Module, Any], Tensor] = _call,
    forward_context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scaler: torch.amp.GradScaler | None = None,
) -> Tensor:
    """Accumulate the gradient of the large batch that the micro-batches form, as if it had gone through at once.

    The first pass, without gradients, collects the class marginal; the second computes each micro-batch's share and its
    gradient. The price is one more forward pass. Both passes see the same network: the random states of torch (CPU and
    the model's devices) are replayed, so dropout repeats, and all buffers are put back in between, so that BatchNorm's
    running statistics move once. BatchNorm normalises each micro-batch by its own statistics, as it does in ordinary
    accumulation. Random numbers from other sources (``random``, NumPy) are not replayed.

    Gradients are added to those that are there; ``optimizer.zero_grad()`` and ``step()`` stay yours. With DDP and FSDP2
    gradients are synchronised once, in the last micro-batch; give the criterion a ``process_group`` so that the ranks
    form one batch. With DDP the ranks may have different numbers of micro-batches, but each at least one (it may have 0
    rows); FSDP talks in every forward pass and needs the same number on all.

    Args:
        model: the network, or its DDP or FSDP2 wrapper, in training mode.
        criterion: the loss, with reduction "mean" or "sum".
        micro_batches: pairs of inputs and target. They are held until the second pass is done.
        forward: how logits are made of the model and the inputs; ``model(inputs)`` by default.
        forward_context: makes the context of each forward pass, e.g. ``lambda: torch.autocast("cuda")``.
        scaler: multiplies the loss before backward.

    Returns:
        The large batch's loss, without gradient. With a process group: the number of ranks times this rank's share, so
        that its mean over the ranks is the whole batch's loss.

    >>> import torch, gence
    >>> model, criterion = torch.nn.Linear(4, 3), gence.GenCELoss()
    >>> images, labels = torch.randn(10, 4), torch.arange(10) % 3
    >>> micro_batches = list(zip(images.split(4), labels.split(4)))
    >>> loss = gence.two_pass_backward(model, criterion, micro_batches)
    >>> accumulated = model.weight.grad.clone()
    >>> model.zero_grad()
    >>> criterion(model(images), labels).backward()
    >>> torch.testing.assert_close(accumulated, model.weight.grad)
    """
    parts = list(micro_batches)
    if not parts:
        raise ValueError("micro_batches: expected at least one pair of inputs and target, got none")
    for part in parts:
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            seen = f"{len(part)} of them" if isinstance(part, (tuple, list)) else type(part).__name__
            raise TypeError(f"micro_batches: expected pairs of inputs and target, got {seen}")
    if not isinstance(criterion, GenCELoss):
        raise TypeError(
            f"criterion: expected a GenCELoss, got {type(criterion).__name__}; a loss that does not couple rows needs "
            "no second pass: accumulate its gradients as usual"
        )
    if criterion.reduction == "none":
        raise ValueError('criterion: expected reduction "mean" or "sum", got "none", which has no single gradient')

    marginal = criterion.batch_marginal()
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    states = []
    # DDP's wrapper would broadcast buffers, and count this as a step; the network inside it does neither.
    network = model.module if isinstance(model, DistributedDataParallel) else model
    with torch.no_grad(), _buffers_restored(network):
        for inputs, target in parts:
            states.append(_random_states(devices))
            with forward_context():
                marginal.update(forward(network, inputs), target)
    marginal.reduce()

    total: Tensor | None = None
    for place, (inputs, target) in enumerate(parts):
        _set_random_states(states[place])
        with _gradients_synchronised(model, last=place == len(parts) - 1):
            with forward_context():
                loss = criterion(forward(model, inputs), target, marginal=marginal)
            (loss if scaler is None else scaler.scale(loss)).backward()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None  # there was at least one part
    return total


@contextmanager
def _buffers_restored(model: nn.Module) -> Iterator[None]:
    """Put all buffers back at the end, also those that were replaced by new tensors, or that were not there.

    They move in between, and that is right: a buffer that the forward pass reads takes the same course again.
    """
    held = []
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and is_lazy(buffer):
                raise ValueError(
                    f"model: buffer {'.'.join(filter(None, (path, name)))} is not initialised, and could not be put "
                    "back; call the model once on some inputs before"
                )
        held.append((module, {name: (value, _copy(value)) for name, value in module._buffers.items()}))
    try:
        yield
    finally:
        for module, buffers in held:
            for name in module._buffers.keys() - buffers.keys():
                del module._buffers[name]
            for name, (buffer, value) in buffers.items():
                if buffer is not None and value is not None:
                    buffer.copy_(value)
                module._buffers[name] = buffer


def _copy(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.clone()


def _random_states(devices: set[torch.device]) -> dict[torch.device, Tensor]:
    states = {torch.device("cpu"): torch.get_rng_state()}
    for device in devices:
        states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


def _set_random_states(states: dict[torch.device, Tensor]) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def _gradients_synchronised(model: Any, *, last: bool) -> Iterator[None]:
    """Let DDP and FSDP exchange gradients in the last micro-batch only."""
    if hasattr(model, "set_requires_gradient_sync"):  # FSDP2
        model.set_requires_gradient_sync(last)
        yield
    elif hasattr(model, "no_sync") and not last:  # DDP, FSDP1
        with model.no_sync():
            yield
    else:
        yield


Batch = TypeVar("Batch")


class FirstPass:
    """Collects the class marginal of a step's micro-batches, without gradients and without a trace in the model.

    In the second pass run micro-batch ``place`` inside ``with first.replayed(place) as marginal:`` and give the loss
    ``marginal``: torch's random numbers are then those of the first pass, so that dropout repeats. Outside of it they
    continue as if there had been only one pass.

    Args:
        criterion: the loss; where it has a process group, the other ranks' rows are collected too.
        model: the network, or its DDP wrapper, in training mode.
        micro_batches: all of this rank's micro-batches of one step, at least one.
        forward: logits and target of the network (without its wrapper) and a micro-batch.

    >>> import torch, gence
    >>> from gence.losses.accumulate import FirstPass
    >>> network, criterion = torch.nn.Linear(4, 3), gence.GenCELoss()
    >>> batches = [(torch.randn(5, 4), torch.arange(5) % 3) for _ in range(2)]
    >>> first = FirstPass(criterion, network, batches, lambda network, batch: (network(batch[0]), batch[1]))
    >>> for place, (inputs, target) in enumerate(batches):
    ...     with first.replayed(place) as marginal:
    ...         criterion(network(inputs), target, marginal=marginal).backward()
    """

    def __init__(
        self,
        criterion: GenCELoss,
        model: nn.Module,
        micro_batches: Iterable[Batch],
        forward: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]],
    ) -> None:
        # DDP's wrapper would broadcast buffers, and count this as a step; the network inside it does neither.
        network = model.module if isinstance(model, DistributedDataParallel) else model
        self._devices = {p.device for p in network.parameters() if p.device.type not in ("cpu", "meta")}
        self._states = []
        self._marginal = criterion.batch_marginal()
        with torch.no_grad(), _buffers_restored(network):
            for batch in micro_batches:
                self._states.append(_random_states(self._devices))
                self._marginal.update(*forward(network, batch))
        self._marginal.reduce()

    @contextmanager
    def replayed(self, place: int) -> Iterator[BatchMarginal]:
        """The second pass of a micro-batch, with the random numbers it had in the first."""
        outside = _random_states(self._devices)
        _set_random_states(self._states[place])
        try:
            yield self._marginal
        finally:
            _set_random_states(outside)
