"""Curves for TensorBoard while runs are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gence.experiment.result import RunResult
from gence.experiment.spec import RunSpec
from gence.experiment.tensorboard import TensorBoardLog
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
        board = TensorBoardLog(self.folder, specs)

        def log(progress: Any) -> None:
            board(progress)
            if on_epoch:
                on_epoch(progress)

        try:
            results = load_trainer(self.trainer)(specs, on_epoch=log, **options)
            board.add_results(results)
        finally:
            board.close()
        return results
