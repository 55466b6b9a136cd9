"""Tuning every loss alike: the same number of trials, on a held-out part of the small training set, never on test.

A trial is a handful of ordinary runs whose records land in the store, so tuning resumes like any grid. Optuna keeps the
trials in a journal beside the records and proposes them. A trial is run for a part of the epochs first, and in full
only if it is among the best of its loss so far (successive halving).

What tuning found is kept in the store too, one small file per cell. With these files the final runs can be listed, and
their table made, without the tuner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gence.lab.spec import LossSpec, Recipe, RunSpec, SpecError, check_losses
from gence.lab.store import Store, StoreError, check_recorded_data, replace_file
from gence.lab.sweep.run import Countdown, run_grid
from gence.lab.sweep.search import cell_name
from gence.lab.sweep.trials import LossTrials, TunedLoss, TuneSettings, repair_journal


@dataclass(frozen=True, kw_only=True)
class TuneReport:
    """What `tune` found.

    Attributes:
        base: the run that was tuned.
        seeds: the seeds that were used for tuning, and so are not fresh.
        best: one entry per loss, in the order given; losses without a finished trial are absent.
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
    skip_failed: bool = False,
    **run_options: Any,
) -> TuneReport:
    """Give every loss the same number of trials; return the best of each.

    Args:
        base: the run to tune; its loss, rate, weight decay, warm-up and seed are replaced.
        losses: names, with parameters to fix or to tune (`gence(anchor=tune)`).
        store: where records and the journal of trials are kept; the same call resumes.
        settings: budget, seeds and how a trial is judged.
        time_limit: seconds after which nothing may run.
        check_data: whether trials that are recorded are compared with the current images first.
        skip_failed: whether a trial whose run fails counts as the worst, instead of ending the call.
        **run_options: options of `run_grid`: engine, device, cohort_size, trainer, console.

    A run that fails ends the call: a full disk or data that are not mounted say nothing about a trial, and would use up
    the budget. The same call tries it again. A run that diverges has not failed, and its trial counts.

    A trial that fails whenever it is tried, as one that takes more memory than there is, would end every call:
    ``skip_failed`` counts it as the worst, where other trials of its loss have been trained.
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
        repair_journal(store)
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
                failed |= report.failed
                if report.stopped or (report.failed and not (skip_failed and _trained(studies, store))):
                    stopped = report.stopped or "failed trials"
                    break
                for batch in batches:
                    batch.judge(rung, report.failed.keys())
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


def _trained(studies: Iterable[LossTrials], store: Store) -> bool:
    """Whether every loss has a run that is recorded."""
    return all(len(store.missing(specs)) < len(specs) for specs in (own.specs() for own in studies))


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


def save_tuned(store: Store, report: TuneReport) -> Path:
    """Write what tuning found for a cell into the store; return the file.

    What was found for other losses of the cell before stays; a loss that was tuned again has what was found last.
    """
    path = _folder(store) / f"{_cell_key(report.base)}.json"
    before = _read(path) if path.exists() else None
    kept = {} if before is None else {str(tuned.asked): tuned for tuned in before.best}
    best = {**kept, **{str(tuned.asked): tuned for tuned in report.best}}
    content = {
        "base": report.base.to_dict(),
        # No seed that any of the losses was tuned on is fresh.
        "tuning_seeds": sorted({*report.seeds, *(before.seeds if before else ())}),
        "trials": report.trials,
        "complete": report.complete and all(tuned.complete for tuned in best.values()),
        "best": [
            {**dataclasses.asdict(tuned), "asked": str(tuned.asked), "changes": _plain(tuned.changes)}
            for tuned in best.values()
        ],
    }
    replace_file(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
    return path


def load_tuned(store: Store, base: RunSpec) -> TuneReport | None:
    """Return what tuning found for the cell of a run, or None if it was not tuned."""
    path = _folder(store) / f"{_cell_key(base)}.json"
    return _read(path) if path.exists() else None


def all_tuned(store: Store, recipe: Recipe | None = None) -> list[TuneReport]:
    """Return what tuning found for every cell that was tuned in the store, whatever grid it came from.

    Args:
        store: where the settings are.
        recipe: only cells whose tuning began with this recipe (at any batch size); all by default.
    """
    reports = (_read(path) for path in sorted(_folder(store).glob("*.json")) if not path.name.startswith("."))
    return [
        report
        for report in reports
        if recipe is None or report.base.recipe.replace(batch_size=recipe.batch_size) == recipe
    ]


def merge_tuned(store: Store, other: Store) -> int:
    """Take over what tuning for the same metric found in another store with more trials; return for how many losses.

    The journal of trials is not needed: with the records there, tuning proposes the same trials and trains none again.
    """
    taken = 0
    for report in all_tuned(other):
        before = load_tuned(store, report.base)
        known = {} if before is None else {one.asked: one for one in before.best}
        better = tuple(one for one in report.best if _adds(one, known.get(one.asked)))
        if better:
            complete = all(one.complete for one in better)
            save_tuned(store, dataclasses.replace(report, best=better, complete=complete))
        taken += len(better)
    return taken


def tuned_specs(
    store: Store,
    *,
    rows: Sequence[str] = (),
    losses: Sequence[str] = (),
    seeds: int,
    recipe: Recipe | None = None,
) -> list[RunSpec]:
    """Return the final runs of every cell that was tuned in the store.

    Args:
        store: where the tuned settings are.
        rows: patterns of the cells' names.
        losses: losses as they were tuned, such as "gence(anchor=tune)"; all by default.
        seeds: how many seeds, from 0.
        recipe: only what was tuned from this recipe; everything by default.
    """
    reports = all_tuned(store, recipe)
    if not reports:
        under = "" if recipe is None else " from this recipe"
        raise ValueError(
            f"nothing was tuned in {store.root}{under}; do that first: gence tune table1 --rows ..., or a GRID.toml"
        )
    names = list(dict.fromkeys(cell_name(report.base) for report in reports))
    wanted = [name for name in names if not rows or any(fnmatch.fnmatchcase(name, pattern) for pattern in rows)]
    for pattern in rows:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"nothing was tuned in {store.root} for the row {pattern}; what was: {', '.join(names)}")
    best = [
        dataclasses.replace(report, best=tuple(one for one in report.best if not losses or str(one.asked) in losses))
        for report in reports
        if cell_name(report.base) in wanted
    ]
    known = dict.fromkeys(str(one.asked) for report in reports for one in report.best)
    for loss in losses:
        if loss not in known:
            raise ValueError(f"losses: {loss!r} was not tuned in {store.root}; what was: {', '.join(known)}")
    return sorted((run for report in best for run in tuned_grid(report, range(seeds))), key=lambda run: run.seed)


def _adds(found: TunedLoss, known: TunedLoss | None) -> bool:
    return known is None or (found.metric == known.metric and found.trials > known.trials)


def _read(path: Path) -> TuneReport:
    try:
        content = json.loads(path.read_text())
        # Older versions wrote the budget, and whether it was spent, once for all losses.
        shared = {"budget": content["trials"], "complete": content["complete"]}
        best = [TunedLoss(**{**shared, **one, "asked": LossSpec.parse(one["asked"])}) for one in content["best"]]
        return TuneReport(
            base=RunSpec.from_dict(content["base"]),
            seeds=tuple(content["tuning_seeds"]),
            best=tuple(best),
            trials=content["trials"],
            complete=content["complete"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error}); remove it and run gence tune again") from error


def _folder(store: Store) -> Path:
    return store.root / "tuned"


def _cell_key(base: RunSpec) -> str:
    return base.replace(loss="ce", seed=0).key


def _plain(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, LossSpec) else value for name, value in changes.items()}
