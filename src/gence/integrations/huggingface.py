"""Hugging Face's ``Trainer`` with GenCE, exact under gradient accumulation and on several processes, and watched.

``Trainer(compute_loss_func=...)`` alone is right for one process without accumulation: the function sees one
micro-batch of one rank, and GenCE compares the rows of the whole batch. The subclass here knows them all.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import EvalLoopOutput
from transformers.training_args import ParallelMode

from gence.integrations.evaluation import EvaluationSums
from gence.integrations.marginal_watch import MarginalWatch
from gence.losses import BatchMarginal, FirstPass, GenCELoss, MarginalMonitor, logits_of


def loss_of_outputs(
    criterion: GenCELoss, outputs: Any, labels: Tensor, marginal: BatchMarginal | None = None
) -> Tensor:
    """The loss of a model's outputs: ``Trainer(compute_loss_func=...)`` on one process, without accumulation.

    Logits are (n, K), (n, length, K) for token classification (labels of -100 take no part), or (N, K, height, width).
    """
    return criterion(*_logits_and_labels(outputs, labels), marginal=marginal)  # type: ignore[no-any-return]


def _logits_and_labels(outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits_of(outputs)
    return _rows(logits), labels.flatten() if logits.dim() == 3 else labels


def _rows(logits: Tensor) -> Tensor:
    return logits.flatten(0, 1) if logits.dim() == 3 else logits  # tokens: classes come last


class MarginalCallback(TrainerCallback, ExportableState):
    """A :class:`gence.MarginalMonitor` for ``Trainer(callbacks=[MarginalCallback()])``.

    It listens to calls that the training makes anyway: no second forward pass, no waiting for a GPU in a step, and the
    weights are those of a training without it. At the end of an epoch it checks, over all processes, and logs the
    divergence as ``marginal_kl``. Its state is part of the Trainer's checkpoints and is restored with them; where a
    Trainer has several of these callbacks, their order identifies them.

    In a :class:`GenCETrainer` that is all: it sees the labels, and the value goes to ``trainer.log`` and so to every
    reporter. A plain ``Trainer`` tells its callbacks less. There the labels are seen where the model itself gets them;
    with a ``compute_loss_func`` name the ``criterion`` that it calls, or give the monitor a prior. The value goes into
    ``trainer.state.log_history``, and to the reporters as well if ``log`` is given:
    ``trainer.add_callback(MarginalCallback(criterion=criterion, log=trainer.log))``.

    Args:
        monitor: the monitor, or its arguments. None: one that takes ``ignore_index`` and, where it has one, the prior
            from the criterion.
        criterion: the loss module that ``compute_loss_func`` calls.
        log: where the value goes, ``trainer.log``.
    """

    def __init__(
        self,
        monitor: MarginalMonitor | Mapping[str, Any] | None = None,
        *,
        criterion: nn.Module | None = None,
        log: Callable[[dict[str, float]], None] | None = None,
    ) -> None:
        if isinstance(monitor, Mapping):
            prior = monitor.get("prior")
            given = None if prior is None else torch.as_tensor(prior, dtype=torch.float64)
            monitor = MarginalMonitor(**{**monitor, "prior": given})
        self._watch = MarginalWatch(monitor)
        self._criterion = criterion
        self._log = log
        self._bound = criterion is not None or log is not None
        self._listens_to: nn.Module | None = None
        self._place: int | None = None  # among the callbacks of this class, once a training has begun

    @property
    def monitor(self) -> MarginalMonitor:
        """The monitor, with its ``history``."""
        return self._watch.monitor

    def bind(self, criterion: nn.Module, log: Callable[[dict[str, float]], None]) -> None:
        """Listen to this loss from now on, and log there."""
        self._criterion, self._log = criterion, log
        if self._listens_to is not criterion:
            self._listens_to = criterion
            self._watch.listen_to(criterion)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **_: Any
    ) -> None:
        """Take up a checkpoint's state, and listen to the loss or to the model."""
        del control
        self._place = _next_place(state)
        # Here, since the Trainer restores callbacks only if told to, and of several of one class the oldest states.
        saved = self._last_saved(state.stateful_callbacks.get(type(self).__name__, []))
        if state.global_step > 0 and saved is not None:
            self.saved = saved
            if args.restore_callback_states_from_checkpoint and saved["bound"] and not self._bound:
                warnings.warn(
                    "MarginalCallback: restore_callback_states_from_checkpoint=True recreated it, without criterion "
                    "and log. Leave that argument False (this callback is restored all the same), or use GenCETrainer.",
                    UserWarning,
                    stacklevel=2,
                )
        self._listens_to = model if self._criterion is None else self._criterion
        self._watch.listen_to(self._listens_to, self._model_hook if self._criterion is None else None)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Tell a window that a checkpoint left open from a new one."""
        del args, control
        self._watch.begin_batch(int(state.epoch or 0))

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Check, and log."""
        del args, control
        value = self._watch.end_epoch("the model" if self._criterion is None else "the criterion")
        if value is None:
            return
        if self._log is not None:
            self._log({"marginal_kl": value})
        else:
            state.log_history.append({"marginal_kl": value, "epoch": state.epoch, "step": state.global_step})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Leave the model and the loss as they were."""
        del args, state, control
        self._watch.stop()
        self._listens_to = None

    def state(self) -> dict[str, Any]:
        """For the Trainer's checkpoints, as JSON."""
        monitor = self.monitor
        prior = None if monitor.prior is None else monitor.prior.tolist()
        arguments = {"prior": prior, "threshold": monitor.threshold, "ignore_index": monitor.ignore_index}
        return {"args": {} if self._watch.own else {"monitor": arguments}, "attributes": {"saved": self.saved}}

    @property
    def saved(self) -> dict[str, Any]:
        """What changes in training, as JSON; an attribute, since that is how a Trainer restores a callback."""
        state = self._watch.state_dict()
        numbers = {key: v.tolist() if isinstance(v, Tensor) else v for key, v in state["monitor"].items()}
        return {"monitor": numbers, "epoch": state["epoch"], "bound": self._bound, "place": self._place}

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        numbers = dict(saved["monitor"])
        for key in ("predicted", "labels", "rows"):
            if numbers[key] is not None:
                numbers[key] = torch.tensor(numbers[key], dtype=torch.float64)
        self._watch.load_state_dict({"monitor": numbers, "epoch": saved["epoch"]})

    def _last_saved(self, stored: Any) -> dict[str, Any] | None:
        """The last state of this callback in a checkpoint, which has a list of them for several of one class."""
        entries = [stored] if isinstance(stored, Mapping) else stored
        own = [entry["attributes"]["saved"] for entry in entries]
        own = [saved for saved in own if saved["place"] == self._place]
        return own[-1] if own else None

    def _model_hook(self, module: nn.Module, _args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
        if not (module.training and torch.is_grad_enabled()):  # see MarginalMonitor.hook
            return
        labels = kwargs.get("labels")
        if labels is None:
            self.monitor.update(_rows(logits_of(outputs)))
        else:
            self.monitor.update(*_logits_and_labels(outputs, labels))


def _next_place(state: TrainerState) -> int:
    """How many callbacks of this file began this training before; a Trainer makes one ``state`` for each training."""
    place: int = getattr(state, "marginal_callbacks", 0)
    state.marginal_callbacks = place + 1  # no field of the state, and so in no checkpoint
    return place


class GenCETrainer(Trainer):
    """A ``Trainer`` whose optimiser steps are those of one process that sees the whole batch at once.

    The whole batch is ``per_device_train_batch_size * gradient_accumulation_steps * processes``. With accumulation each
    step costs one more forward pass: the first, without gradients, collects the class marginal. Several processes
    (DDP) form one batch by themselves; the criterion needs no process group.

    Evaluation reports the log loss of all rows as ``eval_loss``, whatever the size of the evaluation batches, so early
    stopping and ``load_best_model_at_end`` can use it. ``eval_gence`` is the criterion's mean over the evaluation
    batches, which does depend on their size.

    Not for DeepSpeed, FSDP and tensor parallel runs, whose models cannot be run without their wrapper.

    Args:
        criterion: the loss, with reduction "mean".
        *args, **kwargs: those of ``Trainer``, without ``compute_loss_func``.
    """

    def __init__(self, *args: Any, criterion: GenCELoss, **kwargs: Any) -> None:
        if "compute_loss_func" in kwargs:
            raise TypeError("compute_loss_func: GenCETrainer has its own; pass the loss as `criterion`")
        if criterion.reduction != "mean":
            raise ValueError(f'criterion: expected reduction "mean", got {criterion.reduction!r}')
        super().__init__(*args, compute_loss_func=self._loss, **kwargs)
        self._alone = copy.deepcopy(criterion).to(self.args.device)
        self._alone.process_group = None
        self.criterion = copy.deepcopy(self._alone)
        if self.args.parallel_mode is ParallelMode.DISTRIBUTED:
            self.criterion.process_group = "world"
        self._group: list[Any] = []
        self._first: FirstPass | None = None
        self._place = 0
        self._training = False
        self._marginal: BatchMarginal | None = None
        self._evaluated = EvaluationSums()

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], None]:
        """All micro-batches of the next optimiser step."""
        self._group, _ = super().get_batch_samples(*args, **kwargs)
        self._first, self._place = None, 0
        # Done here and not in the constructor: a callback may be added later, and a resumed run may make it again.
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, MarginalCallback):
                callback.bind(self.criterion, self.log)
        # No number of items: it makes the Trainer multiply the loss by the number of processes, and the shares here
        # are normalised by the rows of the whole batch already.
        return self._group, None

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> None:
        """None here too: evaluation batches are means of their own."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """One micro-batch's share; before the first of several, the first pass over all of them."""
        # Done here and not where the batches are fetched: a resumed run restores its random state in between.
        if self._place == 0 and len(self._group) > 1:
            model.train()
            self._first = FirstPass(self.criterion, model, self._group, self._forward)
        with nullcontext() if self._first is None else self._first.replayed(self._place) as self._marginal:
            self._training = True
            try:
                loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
                return loss
            finally:
                self._training, self._marginal = False, None
                self._place += 1

    def _forward(self, network: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        inputs = dict(self._prepare_inputs(batch))
        labels = inputs.pop("labels")
        with self.compute_loss_context_manager():
            return _logits_and_labels(network(**inputs), labels)

    def _loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        del num_items_in_batch
        if self._training:
            return loss_of_outputs(self.criterion, outputs, labels, self._marginal)
        logits, target = _logits_and_labels(outputs, labels)
        return self._evaluated.add(self._alone, logits, target, self._alone(logits, target))

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """Report the log loss of all rows as the loss, and the criterion's under its own name."""
        self._evaluated = EvaluationSums()
        found: EvalLoopOutput = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self._evaluated.sums is not None and found.metrics is not None:
            self._evaluated.sums = self.accelerator.reduce(self._evaluated.sums, "sum")
            found.metrics[f"{metric_key_prefix}_loss"], found.metrics[f"{metric_key_prefix}_gence"] = (
                self._evaluated.means()
            )
        return found
