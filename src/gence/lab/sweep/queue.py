"""The queue of a grid, and what an engine is that empties it.

The queue knows which cohorts are still to be done, and what became of the others. An engine hears that it must stop
and says how far it is; the one here works in this process.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from gence.lab.spec import RunSpec
from gence.lab.sweep.claims import Failures
from gence.lab.sweep.worker import Outcome, Task, WorkOptions, perform

_CRASHES_BEFORE_ALONE = 2
_CRASHES_BEFORE_GIVING_UP = 4
_FINISHED_TOLD = 16  # a cohort or two: enough to say how long a run takes


class CohortQueue:
    """The runs to do, handed out as cohorts; engines `take` tasks and `settle` them.

    Args:
        specs: the runs that are missing.
        cohort_size: the most runs to train side by side.
        max_attempts: how often a run may fail before it is left alone.
        failures: the store's record of failed attempts.
        peers: for each `cohort_key` the keys of all runs of the grid that have it.
    """

    def __init__(
        self,
        specs: Iterable[RunSpec],
        *,
        cohort_size: int,
        max_attempts: int,
        failures: Failures,
        peers: dict[str, tuple[str, ...]],
    ) -> None:
        self._waiting: defaultdict[str, deque[RunSpec]] = defaultdict(deque)
        self._limit: defaultdict[str, int] = defaultdict(lambda: cohort_size)
        self._alone: deque[RunSpec] = deque()
        self._crashes: Counter[str] = Counter()
        self._max_attempts = max_attempts
        self._failures = failures
        self._peers = peers
        self._finished: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_FINISHED_TOLD))
        self.specs = {spec.key: spec for spec in specs}
        self.done: list[str] = []
        self.already: list[str] = []
        self.failed: dict[str, str] = {}
        self.held: list[str] = []
        self.no_time = False
        for spec in self.specs.values():
            self._waiting[spec.cohort_key].append(spec)

    @property
    def settled(self) -> int:
        """How many runs need no more work, whatever became of them."""
        return len(self.done) + len(self.already) + len(self.failed)

    def left(self) -> list[RunSpec]:
        """Return the runs that have no record and have not failed for good."""
        over = {*self.done, *self.already, *self.failed}
        return [spec for key, spec in self.specs.items() if key not in over]

    def take(self) -> Task | None:
        """Return the next cohort to do, or None when all are handed out."""
        for cohort_key, waiting in self._waiting.items():
            if waiting:
                size = min(self._limit[cohort_key], len(waiting))
                return self._task([waiting.popleft() for _ in range(size)])
        # Runs that failed before come last, so that they cannot hold up the others.
        return self._task([self._alone.popleft()]) if self._alone else None

    def settle(self, task: Task, outcome: Outcome) -> None:
        """Take note of what became of a task; runs that may be tried again go back into the queue."""
        self.done += outcome.done
        self.already += outcome.already
        self.held += outcome.held
        cohort_key = task.specs[0].cohort_key
        self._finished[cohort_key] += outcome.done
        if outcome.largest is not None:
            self._limit[cohort_key] = min(self._limit[cohort_key], outcome.largest)
        if outcome.no_time:
            self.no_time = True
            if outcome.done:
                # They say better than older records whether the others fit: ask again.
                self._waiting[cohort_key].extendleft(self.specs[key] for key in reversed(outcome.unfinished))
            else:
                # Runs of this kind take longer than what is left; a shorter kind may still fit.
                self._waiting[cohort_key].clear()
        if outcome.no_data is not None:
            self.failed |= outcome.failed
            self._without_data(task.specs[0], outcome.no_data)
            return
        for key, error in outcome.failed.items():
            if len(self._failures.attempts(key)) < self._max_attempts:
                self._alone.append(self.specs[key])
            else:
                self.failed[key] = error

    def lose(self, task: Task, reason: str) -> None:
        """Take note that the process doing a task died; its runs go back into the queue, for a limited number of times.

        Losing a machine is not the run's fault, so this is not an attempt; but a run whose process dies each time
        must end somewhere.
        """
        for spec in task.specs:
            self._crashes[spec.key] += 1
            if self._crashes[spec.key] >= _CRASHES_BEFORE_GIVING_UP and len(task.specs) == 1:
                self._failures.add(spec, reason)
                self.failed[spec.key] = reason
            elif self._crashes[spec.key] >= _CRASHES_BEFORE_ALONE:
                self._alone.append(spec)
            else:
                self._waiting[spec.cohort_key].append(spec)

    def resume(self, keys: Iterable[str]) -> None:
        """Put runs that were held by others back into the queue."""
        for key in keys:
            self.held.remove(key)
            self._waiting[self.specs[key].cohort_key].append(self.specs[key])

    def found(self, keys: Iterable[str]) -> None:
        """Take note that others have recorded runs they held."""
        for key in keys:
            self.held.remove(key)
            self.already.append(key)

    def _without_data(self, tried: RunSpec, error: str) -> None:
        """Let all runs on the same data fail with a run that was tried: a failed download is not repeated for each."""

        def alike(spec: RunSpec) -> bool:
            return all(getattr(spec, name) == getattr(tried, name) for name in ("data", "ood", "image_size", "subset"))

        for waiting in (*self._waiting.values(), self._alone):
            self.failed |= {spec.key: error for spec in waiting if alike(spec)}
            kept = [spec for spec in waiting if not alike(spec)]
            waiting.clear()
            waiting.extend(kept)

    def _task(self, specs: list[RunSpec]) -> Task:
        cohort_key = specs[0].cohort_key
        return Task(specs=tuple(specs), peers=self._peers[cohort_key], finished=tuple(self._finished[cohort_key]))


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
