"""What the frameworks' callbacks share: listening to a module while it trains, and closing the window each epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch import nn

from gence.losses import GenCELoss, MarginalMonitor


class MarginalWatch:
    """A :class:`gence.MarginalMonitor` fed by a hook, so that training needs neither a change nor a second pass.

    Args:
        monitor: the monitor. None: one that takes ``ignore_index`` and, where it has one, the prior from the loss that
            is listened to.

    >>> import torch, gence
    >>> from gence.integrations.marginal_watch import MarginalWatch
    >>> watch, criterion = MarginalWatch(), gence.GenCELoss()
    >>> watch.listen_to(criterion)
    >>> for epoch in range(2):
    ...     watch.begin_batch(epoch)
    ...     loss = criterion(torch.randn(8, 3), torch.arange(8) % 3)
    ...     value = watch.end_epoch("criterion")
    >>> watch.stop()
    >>> len(watch.monitor.history)
    2
    """

    def __init__(self, monitor: MarginalMonitor | None = None) -> None:
        if monitor is not None and not isinstance(monitor, MarginalMonitor):
            raise TypeError(f"monitor: expected a MarginalMonitor or None, got {type(monitor).__name__}")
        self.own = monitor is None
        self.monitor = MarginalMonitor() if monitor is None else monitor
        self._epoch = 0
        self._restored = False
        self._missed = False
        self._hooks = ExitStack()

    def listen_to(self, module: nn.Module, hook: Callable[..., None] | None = None) -> None:
        """Feed the monitor with what this module gets (a loss) or gives (a network), and with nothing else."""
        self.stop()
        if not self._restored:
            self.monitor.reset()  # of a training that broke off
        if self.own and isinstance(module, nn.CrossEntropyLoss):
            self.monitor.ignore_index = module.ignore_index
            # The anchor draws predictions there, wherever the labels are. Other losses mean other things by a prior.
            if isinstance(module, GenCELoss) and module.prior is not None:
                self.monitor.prior = module.prior.detach().clone()
        handle = module.register_forward_hook(hook or self.monitor.hook, with_kwargs=True)
        self._hooks.callback(handle.remove)

    def stop(self) -> None:
        """Leave the module as it was."""
        self._hooks.close()

    def begin_batch(self, epoch: int) -> None:
        """Say which epoch the next batch is of."""
        if self._restored and not self.monitor.empty:
            if epoch != self._epoch:  # the checkpoint was written after an epoch's last step and before its end
                self.monitor.check(warn=_rank() == 0)
            elif _rank() > 0:  # it holds the first rank's window, which must not count for each rank
                self.monitor.reset()
        self._restored = False
        self._epoch = epoch

    def end_epoch(self, source: str) -> float | None:
        """The divergence of the epoch, over all ranks; None where nothing came, which warns once."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.monitor.reduce("world")
        if not self.monitor.empty:
            return self.monitor.check(warn=_rank() == 0)
        if not self._missed:
            self._missed = True
            warnings.warn(
                f"MarginalCallback: no training batch came through {source} in this epoch, so nothing was watched. "
                "Call the loss as a module, criterion(logits, labels), or name what is called.",
                UserWarning,
                stacklevel=3,
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """The monitor's state, and which epoch its window is of."""
        return {"monitor": self.monitor.state_dict(), "epoch": self._epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.monitor.load_state_dict(state["monitor"])
        self._epoch, self._restored = state["epoch"], True


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
