"""Curves in TensorBoard while a cohort trains (the extra ``tensorboard``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gence.experiment.cohort import CohortProgress
from gence.experiment.spec import RunSpec


class TensorBoardLog:
    """Writes a cohort's training curves, one folder a run; pass it as ``on_epoch``.

    Args:
        folder: what ``tensorboard --logdir`` is given.
        specs: the cohort's runs.
    """

    def __init__(self, folder: Path, specs: Sequence[RunSpec]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("the log needs TensorBoard; install it with: pip install 'gence[tensorboard]'") from error
        self._writers = []
        for spec in specs:
            writer = SummaryWriter(str(folder / f"{spec.data}-{spec.loss.name}-seed{spec.seed}-{spec.key}"))
            writer.add_text("spec", f"    {spec.to_json()}")
            self._writers.append(writer)

    def __call__(self, progress: CohortProgress) -> None:
        """Add an epoch."""
        curves = {
            "train/loss": progress.loss,
            "train/accuracy": progress.accuracy,
            "train/marginal_kl": progress.marginal_kl,
            "lr": progress.lr,
        }
        for i, writer in enumerate(self._writers):
            for name, values in curves.items():
                if math.isfinite(values[i]):
                    writer.add_scalar(name, values[i], progress.epoch)
            writer.flush()  # so that the curves can be watched

    def close(self) -> None:
        """Finish the files."""
        for writer in self._writers:
            writer.close()
