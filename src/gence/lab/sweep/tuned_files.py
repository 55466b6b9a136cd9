"""What tuning found, kept in the store: one small file per cell, beside the journal of trials.

With these files the final runs can be listed, and their table made, without the tuner.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gence.lab.spec import LossSpec, Recipe, RunSpec
from gence.lab.store import Store, StoreError, replace_file
from gence.lab.sweep.search import cell_name
from gence.lab.sweep.trials import TunedLoss
from gence.lab.sweep.tuning import TuneReport, tuned_grid


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
