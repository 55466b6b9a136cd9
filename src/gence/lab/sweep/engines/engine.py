"""What an engine is, what it hears and says while it works, and the one that works in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from gence.lab.sweep.queue import CohortQueue
from gence.lab.sweep.worker import Task, WorkOptions, perform


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
    """Return how much of a cohort is done: less than 1, for after its last epoch it is still to be recorded."""
    return min(progress.epoch / max(progress.epochs, 1), 0.99)


@dataclass(frozen=True)
class Capacity:
    """What an engine can do at once: how many cohorts, and whether they train on GPUs."""

    cohorts: int
    on_gpu: bool


class Engine(Protocol):
    """Something that does the tasks of a queue."""

    def capacity(self, device: str) -> Capacity:
        """Return what can be done at once, from which the size of cohorts follows where it is not given.

        An engine that trains on this machine raises `ValueError` for a device that is not here.
        """

    def execute(self, queue: CohortQueue, options: WorkOptions, control: Control) -> None:
        """Take tasks from the queue, do them and settle them, until none is left or `control.should_stop()`."""


class LocalEngine:
    """Does everything in this process, one cohort after the other."""

    def capacity(self, device: str) -> Capacity:
        """Return room for one cohort, on a GPU if one is there and wanted."""
        if device == "cpu":
            return Capacity(cohorts=1, on_gpu=False)
        import torch

        from gence.lab.train import check_device

        if device != "auto":
            check_device(device)
        return Capacity(cohorts=1, on_gpu=torch.cuda.is_available())

    def execute(self, queue: CohortQueue, options: WorkOptions, control: Control) -> None:
        """Do the tasks of the queue one after the other."""
        while not control.should_stop() and (task := queue.take()) is not None:
            outcome = perform(task, options, should_stop=control.should_stop, on_epoch=partial(_tell, control, task))
            queue.settle(task, outcome)
            control.progress(task, 1.0)


def _tell(control: Control, task: Task, progress: Any) -> None:
    control.progress(task, fraction(progress))
