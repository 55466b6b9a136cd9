"""One cohort of runs, from claim to record; every engine does its work here, in whatever process it runs.

A cohort is claimed, trained side by side and recorded. Out of GPU memory, it is halved. Another error halves it too, to
find the run that causes it: only a run that fails alone has failed, and only that run is counted as failed.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gence.lab.data import DataError
from gence.lab.spec import RunSpec
from gence.lab.store import RunResult, Store, StoreError, device_name, environment_record, verified_run
from gence.lab.sweep.claims import STALE_AFTER_S, Claims, Failures

Trainer = Callable[..., list[RunResult | None]]
"""Trains a cohort: `trainer(specs, *, device, on_epoch, should_stop, workdir, cache_dir)`, one result a spec."""

DEFAULT_TRAINER = "gence.lab.train.cohort.train_cohort"

_MARGIN = 1.1


@dataclass(frozen=True, kw_only=True)
class Task:
    """A cohort to do.

    Attributes:
        specs: runs that share a `cohort_key`.
        peers: keys of the grid's other runs with that `cohort_key`; those that are recorded say how long one takes.
        finished: keys of those that the same call has just done; they say it better, for records may be older than
            the code.
    """

    specs: tuple[RunSpec, ...]
    peers: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """What a worker needs to know, in a form that travels to another process or machine.

    Attributes:
        store: the store's folder (on a cluster, on a file system the machines share).
        trainer: the function that trains a cohort, or its import path.
        device: "auto", "cpu", "cuda" or "cuda:1".
        deadline: wall-clock time (seconds since 1970) after which nothing may run; None means no limit.
        time_limit: seconds from the beginning to the deadline.
        keep_predictions: whether compact predictions are stored.
        cache_dir: where data sets are cached.
        stop_file: a file whose presence asks every worker to stop.
        stale_after_s: age at which another machine's claim may be taken over.
    """

    store: Path
    trainer: Trainer | str = DEFAULT_TRAINER
    device: str = "auto"
    deadline: float | None = None
    time_limit: float | None = None
    keep_predictions: bool = True
    cache_dir: Path | None = None
    stop_file: Path | None = None
    stale_after_s: float = STALE_AFTER_S

    @property
    def late(self) -> bool:
        """Whether the deadline has come."""
        return self.deadline is not None and time.time() >= self.deadline


@dataclass(kw_only=True)
class Outcome:
    """What became of a task's runs, by key.

    Attributes:
        done: recorded now.
        already: found recorded by somebody else.
        held: another process is doing them.
        failed: the error of each run that failed in this attempt.
        unfinished: stopped before the end, or not begun for lack of time.
        no_time: whether the deadline was too near for at least one of them.
        largest: the largest cohort that fitted into memory, where one did not.
        no_data: why the runs' data cannot be had, where that is why they failed: others need not be tried for them.
    """

    done: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    no_time: bool = False
    largest: int | None = None
    no_data: str | None = None


def perform(
    task: Task,
    options: WorkOptions,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    on_epoch: Callable[[Any], None] | None = None,
) -> Outcome:
    """Do a task: claim its runs, train those that nobody else does, record them; return what became of each.

    Raises:
        StoreError: if a record cannot be written: there is no point in training on.
    """
    store = Store(options.store)
    outcome = Outcome()
    with Claims(store.root, stale_after_s=options.stale_after_s) as claims:
        mine = []
        for spec in task.specs:
            if not claims.take(spec.key):
                outcome.held.append(spec.key)
            elif store.has(spec.key):  # finished by another after the grid was planned and before the claim
                claims.release(spec.key)
                outcome.already.append(spec.key)
            else:
                mine.append(spec)
        _CohortWork(task, options, store, claims, outcome, should_stop, on_epoch).train(mine)
    return outcome


def load_trainer(trainer: Trainer | str) -> Trainer:
    """Return the trainer itself where its import path is given."""
    if not isinstance(trainer, str):
        return trainer
    module, _, name = trainer.replace(":", ".").rpartition(".")
    if not module:
        raise ValueError(f"trainer is {trainer!r}; expected a function or its import path, package.module.function")
    loaded: Trainer = getattr(importlib.import_module(module), name)
    return loaded


def seconds_per_run(store: Store, peers: Sequence[str], device: str) -> float | None:
    """Return how long one run of a kind takes on a device, the median of its records; None if there are none."""
    name = device_name(device)
    seen: list[float] = []
    for key in peers:
        if store.has(key):
            try:
                _, run = verified_run(store.line(key), key)
            except StoreError:  # named when the grid began; it says nothing here
                continue
            # A diverged run may have ended early, and another device says little about this one.
            if run["environment"].get("device") == name and run["status"] == "done":
                seen.append(run["wall_s"])
    return statistics.median(seen) if seen else None


@dataclass(frozen=True)
class _CohortWork:
    """The training and recording of claimed runs."""

    task: Task
    options: WorkOptions
    store: Store
    claims: Claims
    outcome: Outcome
    should_stop: Callable[[], bool]
    on_epoch: Callable[[Any], None] | None

    def train(self, specs: list[RunSpec]) -> None:
        """Train and record runs side by side, halving where memory or an error asks for it."""
        specs = self._that_fit(specs)
        if not specs or self._stop():
            self.outcome.unfinished += [spec.key for spec in specs]
            return
        results: list[RunResult | None] = []
        failure: Exception | None = None
        try:
            results = load_trainer(self.options.trainer)(
                specs,
                device=self.options.device,
                on_epoch=self.on_epoch,
                should_stop=self._stop,
                workdir=self.store.root / "work",
                cache_dir=self.options.cache_dir,
            )
            if len(results) != len(specs):
                raise RuntimeError(f"the trainer returned {len(results)} results for {len(specs)} runs")
        except StoreError:
            raise
        except Exception as error:
            failure = error
        if failure is None:
            for spec, result in zip(specs, results, strict=True):
                self._record(spec, result)
                self.claims.release(spec.key)
        elif len(specs) == 1 or isinstance(failure, DataError):  # data that cannot be had fail for all alike
            if isinstance(failure, DataError):
                self.outcome.no_data = f"{type(failure).__name__}: {failure}"
            for spec in specs:
                Failures(self.store.root).add(spec, failure)
                self.outcome.failed[spec.key] = f"{type(failure).__name__}: {failure}"
        else:
            half = (len(specs) + 1) // 2
            if _is_out_of_memory(failure):
                self.outcome.largest = min(half, self.outcome.largest or half)
                # The traceback holds the frames, and the frames the tensors that did not fit.
                failure = failure.with_traceback(None)
                failure.__context__ = failure.__cause__ = None
                _free_memory()
            for part in (specs[:half], specs[half:]):
                self.train(part)

    def _stop(self) -> bool:
        stop_file = self.options.stop_file
        return self.options.late or (stop_file is not None and stop_file.exists()) or self.should_stop()

    def _that_fit(self, specs: list[RunSpec]) -> list[RunSpec]:
        """Return as many of the runs as can be done before the deadline, as far as finished runs tell."""
        if self.options.deadline is None or not specs:
            return specs
        now = (*self.task.finished, *self.outcome.done)
        device = self.options.device
        each = seconds_per_run(self.store, now, device) or seconds_per_run(self.store, self.task.peers, device)
        if not each or each * _MARGIN > (self.options.time_limit or 0):
            # Unknown, or longer than a whole lease: then only beginning it, and going on next time, gets it done.
            return specs
        fit = int(max(self.options.deadline - time.time(), 0) / (each * _MARGIN))
        if fit < len(specs):
            self.outcome.no_time = True
            self.outcome.unfinished += [spec.key for spec in specs[fit:]]
        return specs[:fit]

    def _record(self, spec: RunSpec, result: RunResult | None) -> None:
        if result is None:
            self.outcome.unfinished.append(spec.key)
            return
        if not self.options.keep_predictions:
            result = dataclasses.replace(result, predictions=None)
        written = self.store.write(spec, result, environment_record(self.options.device))
        (self.outcome.done if written else self.outcome.already).append(spec.key)
        Failures(self.store.root).forget(spec.key)


def _is_out_of_memory(error: Exception) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)


def _free_memory() -> None:
    """Give the failed cohort's memory back before a smaller one is tried."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
