"""The trainer of long grids: what cohorts share is loaded once a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gence.experiment.problem import ProblemLoader
    from gence.experiment.result import RunResult
    from gence.experiment.spec import RunSpec


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
        """Train a cohort; see `gence.experiment.cohort.train_cohort`."""
        from gence.experiment.cohort import train_cohort
        from gence.experiment.device import resolve_device
        from gence.experiment.problem import ProblemLoader

        place = (str(resolve_device(device)), cache_dir)
        if place not in self._loaders:
            self._loaders[place] = ProblemLoader(resolve_device(device), cache_dir)
        return train_cohort(specs, device=device, compile=self.compile, loader=self._loaders[place], **options)
