"""Curves for TensorBoard while runs are trained."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gence.experiment.result import RunResult
from gence.experiment.spec import RunSpec
from gence.experiment.work import DEFAULT_TRAINER, Trainer, load_trainer


@dataclass(frozen=True)
class LoggedTrainer:
    """A trainer that also writes each run's curves; it travels to worker processes as it is.

    Attributes:
        folder: where TensorBoard looks; each run gets a folder of its own.
        trainer: the trainer that does the work, or its import path.
    """

    folder: Path
    trainer: Trainer | str = DEFAULT_TRAINER

    def __call__(
        self, specs: Sequence[RunSpec], *, on_epoch: Callable[[Any], None] | None = None, **options: Any
    ) -> list[RunResult | None]:
        """Train a cohort, writing loss and accuracy after each epoch and the final metrics at the end."""
        from torch.utils.tensorboard import SummaryWriter

        writers = [SummaryWriter(str(self.folder / run_name(spec))) for spec in specs]

        def log(progress: Any) -> None:
            for i, writer in enumerate(writers):
                writer.add_scalar("train/loss", progress.loss[i], progress.epoch)
                writer.add_scalar("train/accuracy", progress.accuracy[i], progress.epoch)
                writer.flush()
            if on_epoch:
                on_epoch(progress)

        try:
            results = load_trainer(self.trainer)(specs, on_epoch=log, **options)
            for writer, spec, result in zip(writers, specs, results, strict=True):
                for name, value in (result.metrics if result else {}).items():
                    writer.add_scalar(f"test/{name}", value, spec.recipe.epochs)
        finally:
            for writer in writers:
                writer.close()
        return results


def run_name(spec: RunSpec) -> str:
    """Return a folder's name for a run: loss, seed and key, in characters every file system takes.

    >>> from gence.experiment.recipe import RECIPES
    >>> spec = RunSpec.from_dict({"data": "digits", "model": "mlp", "loss": "gence(anchor=0.1)", "seed": 3,
    ...                           "recipe": "tiny"})
    >>> run_name(spec).removesuffix(spec.key)
    'gence-anchor-0.1-seed3-'
    """
    loss = re.sub(r"[^A-Za-z0-9._]+", "-", str(spec.loss)).strip("-.")
    return f"{loss}-seed{spec.seed}-{spec.key}"
