"""Lightning with GenCE: exact gradient accumulation, with an ordinary ``LightningModule`` and automatic optimisation,
and a watch over the class marginal.

A callback sees one micro-batch at a time, and GenCE compares the rows of all of them. So the loader looks ahead: it
shows the micro-batches of a step before it hands out the first, and the callback runs the first pass over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gence.integrations.evaluation import EvaluationSums
from gence.integrations.marginal_watch import MarginalWatch
from gence.losses import BatchMarginal, FirstPass, GenCELoss, MarginalMonitor


class LookAheadLoader(DataLoader):
    """A ``DataLoader`` that fetches the batches of an accumulated step together.

    Args:
        *args, **kwargs: those of ``DataLoader``.
        group_size: the trainer's ``accumulate_grad_batches``.
    """

    def __init__(self, *args: Any, group_size: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if group_size < 1:
            raise ValueError(f"group_size: expected at least 1, got {group_size}")
        self.group_size = group_size
        self._groups: dict[int, list[Any]] = {}

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        number = 0
        while group := list(islice(batches, self.group_size)):
            # The one before is kept: the trainer may fetch a batch ahead of the one it trains on.
            self._groups = {number - 1: self._groups.get(number - 1, []), number: group}
            yield from group
            number += 1

    def group(self, batch_idx: int) -> list[Any]:
        """The batches of the step that batch number ``batch_idx`` of the epoch begins."""
        return self._groups[batch_idx // self.group_size]


def _inputs_and_target(module: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, target = batch
    return module(inputs), target


class ExactAccumulation(Callback):
    """Makes ``Trainer(accumulate_grad_batches=N)`` take the steps of one batch that holds all N micro-batches.

    The module's ``training_step`` stays as it is. It calls a :class:`gence.GenCELoss` once, which this callback tells
    of the other micro-batches. The loss it returns is N times the micro-batch's share of the whole batch's, because
    Lightning divides by N: its mean over the micro-batches is the whole batch's loss. Each step costs one more forward
    pass. With DDP give the loss ``process_group="world"``.

    Args:
        criterion: name of the module's loss.
        forward: logits and target of the module and a batch, drawing random numbers as ``training_step`` does; for
            batches ``(inputs, target)`` the default, ``(module(inputs), target)``, will do.
    """

    def __init__(
        self,
        criterion: str = "criterion",
        *,
        forward: Callable[[Any, Any], tuple[Tensor, Tensor]] = _inputs_and_target,
    ) -> None:
        self.criterion = criterion
        self.forward = forward
        self._first: FirstPass | None = None
        self._marginal: BatchMarginal | None = None
        self._scale = 1
        self._hooks = ExitStack()
        self._replay = ExitStack()

    def on_fit_start(self, _trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to the module's loss."""
        if not pl_module.automatic_optimization:
            raise ValueError("automatic_optimization: expected True. In a manual loop call gence.two_pass_backward.")
        criterion = pl_module.get_submodule(self.criterion)
        if not isinstance(criterion, GenCELoss) or criterion.reduction != "mean":
            raise TypeError(f'criterion: expected {self.criterion!r} to be a GenCELoss with reduction "mean"')
        self._hooks.callback(criterion.register_forward_pre_hook(self._tell, with_kwargs=True).remove)
        self._hooks.callback(criterion.register_forward_hook(self._scaled).remove)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, _batch: Any, batch_idx: int) -> None:
        """The first pass, before the first micro-batch of a step; then this micro-batch's random numbers."""
        place = batch_idx % trainer.accumulate_grad_batches
        if place == 0:
            self._first = self._first_pass(trainer, pl_module, batch_idx)
        if self._first is not None:
            self._marginal = self._replay.enter_context(self._first.replayed(place))
            self._scale = trainer.accumulate_grad_batches

    def on_train_batch_end(self, *_: Any) -> None:
        """The loss is by itself again, e.g. in validation."""
        self._replay.close()
        self._marginal = None

    def on_fit_end(self, *_: Any) -> None:
        """Leave the module's loss as it was."""
        self._hooks.close()

    def on_exception(self, *_: Any) -> None:
        """The same where training breaks off."""
        self.on_train_batch_end()
        self._hooks.close()

    def _first_pass(self, trainer: Trainer, pl_module: LightningModule, batch_idx: int) -> FirstPass | None:
        size = trainer.accumulate_grad_batches
        if size == 1:
            return None  # nothing to be told of: the micro-batch is the batch
        loader = trainer.train_dataloader
        if not isinstance(loader, LookAheadLoader) or loader.group_size != size:
            seen = f"group_size={loader.group_size}" if isinstance(loader, LookAheadLoader) else type(loader).__name__
            raise TypeError(f"train_dataloader: expected a LookAheadLoader with group_size={size}, got {seen}")
        group = loader.group(batch_idx)
        if trainer.num_training_batches < batch_idx + len(group):  # limit_train_batches cuts the last group
            group = group[: int(trainer.num_training_batches) - batch_idx]

        def forward(network: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
            batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch), dataloader_idx=0)
            with trainer.precision_plugin.forward_context():
                logits, target = self.forward(network, batch)
            return logits, target

        criterion = pl_module.get_submodule(self.criterion)
        assert isinstance(criterion, GenCELoss)  # on_fit_start has seen to it
        return FirstPass(criterion, pl_module, group, forward)

    def _tell(self, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs if self._marginal is None else {**kwargs, "marginal": self._marginal}

    def _scaled(self, _module: nn.Module, _args: Any, loss: Tensor) -> Tensor:
        return loss if self._marginal is None else loss * self._scale


class ValidationLogLoss(Callback):
    """Logs the log loss of all validation rows as ``val_loss``, for ``ModelCheckpoint`` and ``EarlyStopping``.

    GenCE's value depends on the size of the validation batches, and the log loss does not. The callback listens to the
    criterion, which ``validation_step`` calls with logits and labels; the mean of its values is logged as
    ``val_gence``. Log nothing under these names yourself.

    Args:
        criterion: name of the module's loss.
        name: of the log loss.
        gence_name: of the criterion's mean over the validation batches.
    """

    def __init__(self, criterion: str = "criterion", *, name: str = "val_loss", gence_name: str = "val_gence") -> None:
        self.criterion, self.name, self.gence_name = criterion, name, gence_name
        self._sums = EvaluationSums()
        self._hook = ExitStack()

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to the module's loss."""
        del trainer
        self._sums = EvaluationSums()
        criterion = pl_module.get_submodule(self.criterion)
        if not isinstance(criterion, nn.CrossEntropyLoss) or criterion.reduction != "mean":
            raise TypeError(f'criterion: expected {self.criterion!r} to be a loss on logits with reduction "mean"')
        self._hook.callback(criterion.register_forward_hook(self._add).remove)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log."""
        self._hook.close()
        if self._sums.sums is None:
            raise ValueError(f"validation_step did not call {self.criterion!r}; call it with logits and labels")
        self._sums.sums = trainer.strategy.reduce(self._sums.sums, reduce_op="sum")
        for name, value in zip((self.name, self.gence_name), self._sums.means(), strict=True):
            # The same on all ranks; Lightning would warn without.
            pl_module.log(name, value, sync_dist=True, prog_bar=name == self.name)

    def on_exception(self, *_: Any) -> None:
        """Leave the module as it was."""
        self._hook.close()

    def _add(self, module: nn.Module, args: tuple[Tensor, ...], value: Tensor) -> None:
        assert isinstance(module, nn.CrossEntropyLoss)  # on_validation_epoch_start has seen to it
        logits, target = args
        self._sums.add(module, logits, target, value)


class MarginalCallback(Callback):
    """A :class:`gence.MarginalMonitor` for ``Trainer(callbacks=[MarginalCallback()])``.

    It listens to the module's loss, which is called with logits and labels anyway: no second forward pass, no waiting
    for a GPU in a step, and the weights are those of a training without it. At the end of an epoch it checks, over all
    ranks, and logs the divergence, by which ``ModelCheckpoint`` and ``EarlyStopping`` can go. Its state is part of
    Lightning's checkpoints.

    Args:
        monitor: the monitor. None: one that takes ``ignore_index`` and, where it has one, the prior from the loss.
        listen_to: name of the module's loss, an ``nn.CrossEntropyLoss`` such as GenCELoss. Where the loss is a
            function, the name of the network that gives the logits ("" for the LightningModule itself): without labels,
            so that the monitor needs a prior unless the classes are balanced.
        name: under which the divergence is logged.
    """

    def __init__(
        self, monitor: MarginalMonitor | None = None, *, listen_to: str = "criterion", name: str = "marginal_kl"
    ) -> None:
        self.listen_to = listen_to
        self.name = name
        self._watch = MarginalWatch(monitor)

    @property
    def monitor(self) -> MarginalMonitor:
        """The monitor, with its ``history``."""
        return self._watch.monitor

    @property
    def state_key(self) -> str:
        """Its place in a checkpoint; a module with several heads may have a callback for each."""
        return f"{type(self).__qualname__}[{self.listen_to}]"

    def on_fit_start(self, _trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to the module's loss or network."""
        try:
            module = pl_module.get_submodule(self.listen_to)
        except AttributeError:
            known = [name for name, _ in pl_module.named_children()]
            raise ValueError(
                f"listen_to: expected a loss or a network of {type(pl_module).__name__}, which has {known}, got "
                f"{self.listen_to!r}. Name one of them; or call a MarginalMonitor in training_step yourself."
            ) from None
        self._watch.listen_to(module)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Tell a window that a checkpoint left open from a new one."""
        self._watch.begin_batch(trainer.current_epoch)

    def on_train_epoch_end(self, _trainer: Trainer, pl_module: LightningModule) -> None:
        """Check, and log."""
        value = self._watch.end_epoch(f"{self.listen_to!r} of {type(pl_module).__name__}")
        if value is not None:
            pl_module.log(self.name, value, sync_dist=True)  # the same on all ranks; Lightning would warn without

    def on_fit_end(self, *_: Any) -> None:
        """Leave the module as it was."""
        self._watch.stop()

    def on_exception(self, *_: Any) -> None:
        """The same where training breaks off."""
        self._watch.stop()

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints."""
        return self._watch.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoints."""
        self._watch.load_state_dict(state_dict)
