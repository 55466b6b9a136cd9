"""Curves in TensorBoard while a cohort trains (the extra ``tensorboard``)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from gence.lab.spec import RunSpec
from gence.lab.store import RunResult
from gence.lab.train.cohort import CohortProgress


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
        self._specs = list(specs)
        self._writers = []
        for spec in specs:
            writer = SummaryWriter(str(folder / run_name(spec)))
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

    def add_results(self, results: Sequence[RunResult | None]) -> None:
        """Add the final metrics of the runs that finished."""
        for writer, spec, result in zip(self._writers, self._specs, results, strict=True):
            for name, value in (result.metrics if result else {}).items():
                writer.add_scalar(f"test/{name}", value, spec.recipe.epochs)

    def close(self) -> None:
        """Finish the files."""
        for writer in self._writers:
            writer.close()


def run_name(spec: RunSpec) -> str:
    """Return a folder's name for a run: loss, seed and key, in characters every file system takes.

    >>> spec = RunSpec.from_dict({"data": "digits", "model": "mlp", "loss": "gence(anchor=0.1)", "seed": 3,
    ...                           "recipe": "tiny"})
    >>> run_name(spec).removesuffix(spec.key)
    'gence-anchor-0.1-seed3-'
    """
    loss = re.sub(r"[^A-Za-z0-9._]+", "-", str(spec.loss)).strip("-.")
    return f"{loss}-seed{spec.seed}-{spec.key}"
