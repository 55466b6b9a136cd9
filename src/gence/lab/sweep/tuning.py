"""Tuning every loss alike: the same number of trials, on a held-out part of the small training set, never on test.

A trial is a handful of ordinary runs whose records land in the store, so tuning resumes like any grid. Optuna keeps the
trials in a journal beside the records and proposes them. A trial is run for a part of the epochs first, and in full
only if it is among the best of its loss so far (successive halving).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gence.lab.spec import LossSpec, RunSpec, SpecError, check_losses
from gence.lab.store import Store, StoreError, check_recorded_data
from gence.lab.sweep.run import Countdown, run_grid
from gence.lab.sweep.trials import LossTrials, TunedLoss, TuneSettings, mend_journal


@dataclass(frozen=True, kw_only=True)
class TuneReport:
    """What `tune` found.

    Attributes:
        base: the run that was tuned.
        seeds: the seeds that were used for tuning, and so are not fresh.
        best: one entry a loss, in the order given; losses without a finished trial are absent.
        trials: the budget of each loss.
        complete: whether every loss had its whole budget.
        stopped: why it ended early ("failed trials", "time limit", "interrupted"), or None.
        failed: keys of the runs that failed, with the error; their trials wait, and the same call tries them again.
    """

    base: RunSpec
    seeds: tuple[int, ...]
    best: tuple[TunedLoss, ...]
    trials: int
    complete: bool
    stopped: str | None = None
    failed: dict[str, str] = field(default_factory=dict)


def tune(
    base: RunSpec,
    losses: Sequence[LossSpec | str],
    store: Store | str | os.PathLike[str],
    *,
    settings: TuneSettings | None = None,
    time_limit: float | None = None,
    check_data: bool = True,
    **run_options: Any,
) -> TuneReport:
    """Give every loss the same number of trials; return the best of each.

    Args:
        base: the run to tune; its loss, rate, weight decay, warm-up and seed are replaced.
        losses: names, with parameters to fix or to tune (`gence(anchor=tune)`).
        store: where records and the journal of trials are kept; the same call resumes.
        settings: budget, seeds and how a trial is judged.
        time_limit: seconds after which nothing may run.
        check_data: whether trials that are recorded are compared with the images at hand first.
        **run_options: options of `run_grid`: engine, device, cohort_size, trainer, console.

    A run that fails ends the call: a full disk or data that are not mounted say nothing about a trial, and would use up
    the budget. The same call tries it again. A run that diverges has not failed, and its trial counts.
    """
    settings = settings or TuneSettings()
    limit = Countdown(time_limit)
    store = Store.at(store)
    asked = [LossSpec.from_value(loss) for loss in losses]
    if len(set(asked)) != len(asked) or not asked:
        raise SpecError(f"losses must be different from each other, got {', '.join(map(str, asked)) or 'none'}")
    check_losses(base.replace(loss=loss) for loss in asked)
    store.ensure_writable()
    stopped: str | None = None
    failed: dict[str, str] = {}
    with _alone(store.root / "tune"):
        mend_journal(store)
        studies = [LossTrials(store, base, loss, settings) for loss in asked]
        if check_data:
            check_recorded_data((run for own in studies for run in own.specs()), store, run_options.get("cache_dir"))
        while stopped is None and (batches := [b for own in studies if (b := own.next_batch())]):
            for rung in settings.rungs:
                specs = [spec for batch in batches for spec in batch.specs(rung)]
                if limit.over:
                    stopped = "time limit"
                    break
                options = {"retry_failed": True, **run_options, "check_data": False}
                report = run_grid(specs, store, time_limit=limit.left(), **options)
                if report.stopped or report.failed:
                    failed = report.failed
                    stopped = report.stopped or "failed trials"
                    break
                for batch in batches:
                    batch.judge(rung)
        best = tuple(tuned for own in studies if (tuned := own.best()) is not None)
        complete = stopped is None and len(best) == len(asked) and all(tuned.complete for tuned in best)
    return TuneReport(
        base=base,
        seeds=settings.seeds,
        best=best,
        trials=settings.trials,
        complete=complete,
        stopped=stopped,
        failed=failed,
    )


def tuned_grid(report: TuneReport, seeds: Iterable[int]) -> list[RunSpec]:
    """Return the final runs: each loss as tuned, on all of the training subset, over fresh seeds, judged on test."""
    seeds = list(seeds)
    used = sorted(set(seeds) & set(report.seeds))
    if used:
        raise SpecError(f"seeds {used} were used for tuning; the final runs need fresh ones")
    return [
        report.base.replace(**tuned.changes, seed=seed, evaluate_on="test", **{"subset.val_fraction": 0.0})
        for tuned in report.best
        for seed in seeds
    ]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second `tune` out of the same store: two would overspend the budget. Engines are how to spread it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "tune.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise StoreError(f"another process is tuning in {folder.parent}; wait for it or use another store") from error
    try:
        yield
    finally:
        lock.release()
