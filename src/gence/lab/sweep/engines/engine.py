"""What an engine is, and what it hears and says while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gence.lab.sweep.queue import Plan
from gence.lab.sweep.worker import Task, WorkOptions


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
