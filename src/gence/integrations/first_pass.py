"""The first of the two passes of exact accumulation, for trainers that do the second themselves.

:func:`gence.two_pass_backward` does both where the loop is the caller's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gence.losses import BatchMarginal, GenCELoss
from gence.losses.two_pass import _buffers_restored, _random_states, _set_random_states

Batch = TypeVar("Batch")


class FirstPass:
    """Collects the class marginal of a step's micro-batches, without gradients and without a trace in the model.

    In the second pass run micro-batch ``place`` inside ``with first.replayed(place) as marginal:`` and give the loss
    ``marginal``: torch's random numbers are then those of the first pass, so that dropout repeats. Outside of it they
    go on as if there had been one pass only.

    Args:
        criterion: the loss; where it has a process group, the other ranks' rows are collected too.
        model: the network, or its DDP wrapper, in training mode.
        micro_batches: all of this rank's micro-batches of one step, at least one.
        forward: logits and target of the network (without its wrapper) and a micro-batch.

    >>> import torch, gence
    >>> from gence.integrations.first_pass import FirstPass
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
