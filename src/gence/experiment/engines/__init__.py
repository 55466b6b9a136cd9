"""Engines: where the cohorts of a grid are done. They only hand out tasks; no scheduler is hidden here.

"local" does them in this process, "gpus" in one process for each GPU of this machine, "ray" on a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gence.experiment.fields import check_choice
from gence.experiment.plan import Plan
from gence.experiment.work import Task, WorkOptions

ENGINES = ("local", "gpus", "ray")
"""The names `create_engine` knows."""


@dataclass(frozen=True)
class Control:
    """How an engine hears that it must stop, and says how far it is.

    Attributes:
        should_stop: whether to hand out nothing more and ask running cohorts to end.
        progress: called with a task and the fraction of it that is done; 1 when it is settled.
    """

    should_stop: Callable[[], bool]
    progress: Callable[[Task, float], None]


class EpochProgress(Protocol):
    """What an engine reads of a trainer's progress."""

    @property
    def epoch(self) -> int:
        """Epochs done."""

    @property
    def epochs(self) -> int:
        """Epochs in all."""


def fraction(progress: EpochProgress) -> float:
    """Return how much of a cohort is done."""
    return min(progress.epoch / max(progress.epochs, 1), 1.0)


@dataclass(frozen=True)
class Capacity:
    """What an engine can do at once: how many cohorts, and whether they train on GPUs."""

    cohorts: int
    on_gpu: bool


class Engine(Protocol):
    """Something that does the tasks of a plan."""

    def capacity(self, device: str) -> Capacity:
        """Return what can be done at once, from which the size of cohorts follows where it is not given.

        An engine that trains on this machine raises `ValueError` for a device that is not here.
        """

    def execute(self, plan: Plan, options: WorkOptions, control: Control) -> None:
        """Take tasks from the plan, do them and settle them, until none is left or `control.should_stop()`."""


def create_engine(
    name: str, *, workers: int | None = None, address: str | None = None, num_gpus: float | None = None
) -> Engine:
    """Return an engine by name.

    Args:
        name: "local", "gpus" or "ray".
        workers: for "gpus", how many processes (default: one for each visible GPU).
        address: for "ray", the cluster's address (default: the running one, or a new one on this machine).
        num_gpus: for "ray", the GPUs a cohort needs; a fraction puts several on one GPU.
    """
    check_choice("engine", name, ENGINES)
    for option, value, owner in (
        ("workers", workers, "gpus"),
        ("address", address, "ray"),
        ("num_gpus", num_gpus, "ray"),
    ):
        if value is not None and name != owner:
            raise ValueError(f"{option} is an option of the engine {owner!r}, not of {name!r}")
    if name == "local":
        from gence.experiment.engines.local import LocalEngine

        return LocalEngine()
    if name == "gpus":
        from gence.experiment.engines.gpus import GpusEngine

        return GpusEngine(workers=workers)
    from gence.experiment.engines.ray_cluster import RayEngine

    return RayEngine(address=address, num_gpus=num_gpus)
