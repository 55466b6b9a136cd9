"""The trainer of long grids, which loads what cohorts share once a process; and what would fail it from the start."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.data import ImageSet, RowSet, container_paths, is_table, known_sources, load, load_rows
from gence.lab.features import EncoderModel, is_encoder_model
from gence.lab.models import check_model
from gence.lab.spec import RunSpec, check_held_out
from gence.lab.store import RunResult
from gence.lab.sweep.worker import DEFAULT_TRAINER, Trainer, load_trainer
from gence.lab.train import CohortProgress, drawn_counts, most_balanced

if TYPE_CHECKING:
    from gence.lab.train import ProblemLoader


class CohortTrainer:
    """Trains cohorts as `train_cohort` does, with data sets kept on the device from one cohort to the next.

    It travels to other processes, and loads there what is needed there.

    Args:
        compile: whether networks are compiled (GPU only).
    """

    def __init__(self, compile: bool = False) -> None:
        self.compile = compile
        self._loaders: dict[tuple[str, Path | None], ProblemLoader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"compile": self.compile, "_loaders": {}}

    def __call__(
        self, specs: Sequence[RunSpec], *, device: str = "auto", cache_dir: Path | None = None, **options: Any
    ) -> list[RunResult | None]:
        """Train a cohort; see `gence.lab.train.cohort.train_cohort`."""
        from gence.lab.train import ProblemLoader, resolve_device, train_cohort

        place = (str(resolve_device(device)), cache_dir)
        if place not in self._loaders:
            self._loaders[place] = ProblemLoader(resolve_device(device), cache_dir)
        return train_cohort(specs, device=device, compile=self.compile, loader=self._loaders[place], **options)


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


class TensorBoardLog:
    """Writes a cohort's training curves, one folder per run; pass it as ``on_epoch``.

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


def check_ready(specs: Iterable[RunSpec], *, data: bool = True) -> None:
    """Raise an error if a network of these runs is unknown, or if a folder or archive of their data is not there.

    Args:
        specs: the runs.
        data: whether data are looked for; they need not be here for runs that train on another machine.

    Raises:
        ValueError: there is no such network.
        DataError: there is no such data set.
    """
    specs = list(specs)
    for model in dict.fromkeys(spec.model for spec in specs):
        check_model(model)
        if is_encoder_model(model):
            encoder = EncoderModel.parse(model).encoder
            if encoder.startswith("timm:") and ":" not in encoder.removeprefix("timm:"):
                check_model(encoder)  # by the name of the network
    if data:
        for source in dict.fromkeys(source for spec in specs for source in (spec.data, *spec.ood)):
            container_paths(source)


def check_tunable(specs: Iterable[RunSpec]) -> None:
    """Raise an error if the training images of these runs cannot be drawn, or not be divided to hold a part out.

    Only data that are here are looked at: what was tuned on another machine can be asked for without a download.

    Raises:
        DataError: a class is too small.
    """
    bundled = {info.name for info in known_sources() if info.bundled}
    for spec in {(spec.data, spec.image_size, spec.subset): spec for spec in specs}.values():
        if spec.data not in bundled and not container_paths(spec.data):
            continue
        if is_table(spec.data):
            train: ImageSet | RowSet = load_rows(spec.data).train
        else:
            train = load(spec.data, image_size=spec.image_size, progress=True).train
        check_held_out(
            drawn_counts(spec, train), train.classes, spec.subset, most=most_balanced(train),
            tuning=f"tuning on {spec.data}", larger="subset =",
        )  # fmt: skip
