"""Hugging Face's ``Trainer`` with GenCE, exact under gradient accumulation and on several processes.

``Trainer(compute_loss_func=...)`` alone is right for one process without accumulation: the function sees one
micro-batch of one rank, and GenCE compares the rows of the whole batch. The subclass here knows them all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn
from transformers import Trainer
from transformers.training_args import ParallelMode

from gence.integrations.first_pass import FirstPass
from gence.losses import BatchMarginal, GenCELoss


def loss_of_outputs(
    criterion: GenCELoss, outputs: Any, labels: Tensor, marginal: BatchMarginal | None = None
) -> Tensor:
    """The loss of a model's outputs: ``Trainer(compute_loss_func=...)`` on one process, without accumulation.

    Logits are (n, K), (n, length, K) for token classification (labels of -100 take no part), or (N, K, height, width).
    """
    return criterion(*_logits_and_labels(outputs, labels), marginal=marginal)  # type: ignore[no-any-return]


def _logits_and_labels(outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    if logits.dim() == 3:  # tokens: classes come last
        return logits.flatten(0, 1), labels.flatten()
    return logits, labels


class GenCETrainer(Trainer):
    """A ``Trainer`` whose optimiser steps are those of one process that sees the whole batch at once.

    The whole batch is ``per_device_train_batch_size * gradient_accumulation_steps * processes``. With accumulation each
    step costs one more forward pass: the first, without gradients, collects the class marginal. Several processes
    (DDP) form one batch by themselves; the criterion needs no process group. Evaluation uses the loss of each
    evaluation batch by itself.

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

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], None]:
        """All micro-batches of the next optimiser step."""
        self._group, _ = super().get_batch_samples(*args, **kwargs)
        self._first, self._place = None, 0
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
        criterion = self.criterion if self._training else self._alone
        return loss_of_outputs(criterion, outputs, labels, self._marginal)
