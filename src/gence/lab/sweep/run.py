"""Running a grid: do what is missing, skip what is done, stop cleanly, say what is left."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from gence.lab.spec import RunSpec
from gence.lab.store import Store, check_recorded_data
from gence.lab.sweep.claims import STALE_AFTER_S, Claims, Failures
from gence.lab.sweep.engines import Capacity, Control, Engine, create_engine
from gence.lab.sweep.queue import CohortQueue
from gence.lab.sweep.worker import DEFAULT_TRAINER, Task, Trainer, WorkOptions

if TYPE_CHECKING:
    from rich.console import Console


def console_or_stderr(console: Console | None) -> Console:
    """Return the console, or one that writes to standard error."""
    if console is not None:
        return console
    from rich.console import Console

    return Console(stderr=True)


@dataclass(frozen=True, kw_only=True)
class GridProgress:
    """How far `run_grid` is.

    Attributes:
        runs: how many were missing when it began.
        completed: how many need no more work, those in work counted by the part of them that is done.
        recorded: keys of those that have got a record since it was last told.
    """

    runs: int
    completed: float
    recorded: tuple[str, ...]


class _News:
    """Turns what engines say of their tasks into `GridProgress`."""

    def __init__(self, queue: CohortQueue, tell: Callable[[GridProgress], None]) -> None:
        self._queue, self._tell = queue, tell
        self._in_work: dict[int, float] = {}
        self._told = [0, 0]

    def __call__(self, task: Task, fraction: float) -> None:
        """Take note of the part of a task that is done, and tell it."""
        if fraction < 1:
            self._in_work[id(task)] = fraction * len(task.specs)
        else:
            self._in_work.pop(id(task), None)
        self.tell()

    def tell(self) -> None:
        """Tell how far the grid is."""
        lists = (self._queue.done, self._queue.already)
        recorded = tuple(key for keys, told in zip(lists, self._told, strict=True) for key in keys[told:])
        self._told = [len(keys) for keys in lists]
        completed = self._queue.settled + sum(self._in_work.values())
        self._tell(GridProgress(runs=len(self._queue.specs), completed=completed, recorded=recorded))


@contextlib.contextmanager
def _grid_bar(console: Console, runs: int) -> Iterator[Callable[[GridProgress], None]]:
    """Draw one bar for the whole grid; yield the function that moves it."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Cohorts take minutes; a speed over the last half minute would forget them.
    with Progress(*columns, console=console, speed_estimate_period=3600) as shown:
        bar = shown.add_task("runs", total=runs)
        yield lambda progress: shown.update(bar, completed=progress.completed)


_COHORT_ON_GPU = 8
_COHORT_ON_CPU = 1  # side by side gains nothing there, and a small cohort loses little when it is cut off
_POLL_HELD_S = 0.5


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """What `run_grid` did.

    Attributes:
        done: keys recorded by this call.
        skipped: keys that were recorded before, or by another driver meanwhile.
        failed: keys that failed too often, with the last error.
        unreadable: keys whose records are there and cannot be read, and what is wrong with each. They are not done
            again: what is left of a record is never replaced.
        left: runs still to do.
        stopped: why it ended early ("time limit", "interrupted"), or None.
        wall_s: seconds it took.
    """

    done: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    left: tuple[RunSpec, ...] = ()
    stopped: str | None = None
    wall_s: float = 0.0

    @property
    def complete(self) -> bool:
        """Whether every run of the grid has a record that can be read."""
        return not self.left and not self.failed and not self.unreadable

    def summary(self) -> str:
        """Return what was done and what is left, in a sentence."""
        parts = [f"{len(self.done)} done in {self.wall_s:.0f} s", f"{len(self.skipped)} already there"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed (see failures/ in the store)")
        if self.unreadable:
            parts.append(f"{len(self.unreadable)} cannot be read (gence store check)")
        parts.append(f"{len(self.left)} left" if self.left else "none left")
        if self.stopped:
            by = "Ctrl-C" if self.stopped == "interrupted" else self.stopped
            parts[-1] += f": stopped by {by}; run it again to resume"
        return ", ".join(parts)


def joined_reports(reports: Sequence[RunReport]) -> RunReport:
    """Return what several grids did one after the other."""
    return RunReport(
        done=tuple(key for report in reports for key in report.done),
        skipped=tuple(key for report in reports for key in report.skipped),
        failed={key: error for report in reports for key, error in report.failed.items()},
        unreadable={key: error for report in reports for key, error in report.unreadable.items()},
        left=tuple(spec for report in reports for spec in report.left),
        stopped=next((report.stopped for report in reports if report.stopped), None),
        wall_s=sum(report.wall_s for report in reports),
    )


def check_time_limit(seconds: float | None) -> None:
    """Raise `ValueError` for a limit in which nothing can be done."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"time_limit is {seconds}; expected a positive number of seconds")


class Countdown:
    """What is left of a time limit that begins now; a limit in which nothing can be done is a `ValueError`."""

    def __init__(self, seconds: float | None) -> None:
        check_time_limit(seconds)
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self._end is not None and time.monotonic() >= self._end

    def left(self) -> float | None:
        """Return the seconds that are left, a little above 0 at the least; None without a limit."""
        return None if self._end is None else max(self._end - time.monotonic(), 1e-3)


def run_grid(
    specs: Iterable[RunSpec],
    store: Store | str | os.PathLike[str],
    *,
    engine: str | Engine = "local",
    time_limit: float | None = None,
    max_attempts: int = 2,
    cohort_size: int | str = "auto",
    console: Console | None = None,
    on_progress: Callable[[GridProgress], None] | None = None,
    trainer: Trainer | str = DEFAULT_TRAINER,
    device: str = "auto",
    keep_predictions: bool = True,
    cache_dir: Path | None = None,
    retry_failed: bool = False,
    check_data: bool = True,
    stale_after_s: float = STALE_AFTER_S,
) -> RunReport:
    """Do the runs of a grid that the store does not have.

    Runs another driver is doing are waited for, and claimed again if that driver dies. Call it in the main thread
    to have Ctrl-C and SIGTERM stop it cleanly (a second Ctrl-C stops it at once).

    Args:
        specs: the runs.
        store: where the records are, or the folder's path.
        engine: "local", "processes" ("gpus" is another name of it), "ray", or an engine made by `create_engine`.
        time_limit: seconds after which it stops, once its epoch is done; a run that would not finish, by the records
            of its like, is not begun, unless no limit of this length would do: then it is begun, and resumes from its
            checkpoint.
        max_attempts: how often a run may fail, over all calls, before it is left alone.
        cohort_size: the most runs to train side by side; "auto" is up to 8 on a GPU and 1 on a CPU.
        console: where the progress bar is drawn; None is standard error.
        on_progress: called in this thread as the runs proceed, in place of the bar and of all else that is printed.
        trainer: the function that trains a cohort, or its import path.
        device: "auto", "cpu", "cuda" or "cuda:1".
        keep_predictions: whether compact predictions are stored.
        cache_dir: where data sets are cached.
        retry_failed: forget earlier failures and try again.
        check_data: whether runs that are recorded are compared with the current images first; a caller that has done
            so need not have it done again.
        stale_after_s: age at which another machine's claim may be taken over.

    Raises:
        DataError: if a run of the grid was recorded from other images than the current ones.
        StoreError: if the store cannot be written.
        ValueError: if an option makes no sense, or names a device that is not here.
    """
    started = time.monotonic()
    store = Store.at(store)
    engine = create_engine(engine) if isinstance(engine, str) else engine
    check_time_limit(time_limit)
    if max_attempts < 1:
        raise ValueError(f"max_attempts is {max_attempts}; expected at least 1")
    capacity = engine.capacity(device)  # before anything is counted as failed: a device that is not here is an error
    store.ensure_writable()
    wanted = list({spec.key: spec for spec in specs}.values())
    missing = store.missing(wanted)
    unreadable = store.unreadable(spec.key for spec in wanted)
    console = console_or_stderr(console)
    if on_progress is None:
        for problem in unreadable.values():
            console.print(f"Warning: {problem}", highlight=False, markup=False, soft_wrap=True)
    if check_data:
        check_recorded_data((spec for spec in wanted if spec.key not in unreadable), store, cache_dir)
    failures = Failures(store.root)
    gone = {} if retry_failed else _given_up(missing, failures, max_attempts)
    if retry_failed:
        for spec in missing:
            failures.forget(spec.key)
    queue = CohortQueue(
        (spec for spec in missing if spec.key not in gone),
        cohort_size=_cohort_size(cohort_size, capacity, len(missing)),
        max_attempts=max_attempts,
        failures=failures,
        peers=_peers(wanted) if missing else {},
    )
    options = WorkOptions(
        store=store.root,
        trainer=trainer,
        device=device,
        deadline=None if time_limit is None else time.time() + time_limit,
        time_limit=time_limit,
        keep_predictions=keep_predictions,
        cache_dir=cache_dir,
        stop_file=store.root / "claims" / f"stop-{uuid.uuid4().hex}",
        stale_after_s=stale_after_s,
    )
    shown = _grid_bar(console, len(queue.specs)) if on_progress is None else contextlib.nullcontext(on_progress)
    with _StopSignals() as signals, shown as tell, _without_leftover(options.stop_file):
        news = _News(queue, tell)
        control = Control(should_stop=lambda: bool(signals.asked) or options.late, progress=news)
        engine.execute(queue, options, control)
        while queue.held and not control.should_stop():
            _wait_for_others(queue, store, options, control)
            engine.execute(queue, options, control)
        news.tell()  # of what others recorded last
    left = tuple(queue.left())
    not_there = {*unreadable, *(spec.key for spec in missing)}
    report = RunReport(
        done=tuple(queue.done),
        skipped=(*(spec.key for spec in wanted if spec.key not in not_there), *queue.already),
        failed={**gone, **queue.failed},
        unreadable=unreadable,
        left=left,
        stopped=_reason(signals, queue, options) if left else None,
        wall_s=time.monotonic() - started,
    )
    if on_progress is None:
        console.print(report.summary(), highlight=False, markup=False)
    return report


def _cohort_size(cohort_size: int | str, capacity: Capacity, runs: int) -> int:
    if cohort_size == "auto":
        # Every GPU should have something to do before one has more than a little.
        share = -(-runs // capacity.cohorts)
        return max(min(_COHORT_ON_GPU, share), 1) if capacity.on_gpu else _COHORT_ON_CPU
    if not isinstance(cohort_size, int) or cohort_size < 1:
        raise ValueError(f'cohort_size is {cohort_size!r}; expected "auto" or a whole number from 1')
    return cohort_size


def _given_up(missing: Sequence[RunSpec], failures: Failures, max_attempts: int) -> dict[str, str]:
    """Return the runs that failed too often before, with their last error."""
    counts = failures.counts()
    keys = [spec.key for spec in missing if counts.get(spec.key, 0) >= max_attempts]
    return {key: str(failures.attempts(key)[-1]["error"]) for key in keys}


def _peers(specs: Sequence[RunSpec]) -> dict[str, tuple[str, ...]]:
    peers: defaultdict[str, list[str]] = defaultdict(list)
    for spec in specs:
        peers[spec.cohort_key].append(spec.key)
    return {cohort_key: tuple(keys) for cohort_key, keys in peers.items()}


def _reason(signals: _StopSignals, queue: CohortQueue, options: WorkOptions) -> str | None:
    if signals.asked:
        return "interrupted" if signals.asked == signal.SIGINT else "SIGTERM"
    return "time limit" if queue.no_time or options.late else None


def _wait_for_others(queue: CohortQueue, store: Store, options: WorkOptions, control: Control) -> None:
    """Wait until a run that others hold is recorded, or is theirs no more."""
    claims = Claims(store.root, stale_after_s=options.stale_after_s)
    while not control.should_stop():
        # Claims are asked before records: a holder writes its record before it lets go.
        free = [key for key in queue.held if not claims.held_elsewhere(key)]
        recorded = [key for key in queue.held if store.has(key)]
        queue.found(recorded)
        queue.resume(key for key in free if key not in recorded)
        if free or not queue.held:
            return
        time.sleep(_POLL_HELD_S)


class _StopSignals:
    """Turns the first Ctrl-C or SIGTERM into a wish; the second Ctrl-C is what it always was."""

    def __init__(self) -> None:
        self.asked: int = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number


@contextlib.contextmanager
def _without_leftover(stop_file: Path | None) -> Iterator[None]:
    try:
        yield
    finally:
        if stop_file is not None:
            stop_file.unlink(missing_ok=True)
