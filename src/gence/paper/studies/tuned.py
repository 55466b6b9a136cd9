"""The tuned comparison: every loss with the same number of trials, then the best of each on all the data.

What tuning found is kept in the store as one small file a cell, beside the journal of trials, so that the table can be
made without the tuner.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gence.lab.spec import LossSpec, Recipe, RunSpec, canonical_json, ood_name
from gence.lab.store import Store, StoreError, replace_file
from gence.lab.sweep import DECIDED, TunedLoss, TuneReport, tuned_grid
from gence.paper.exhibit import DATA_TITLES, MODEL_TITLES, SEEDS, SIX_LOSSES, Column, Exhibit, Row
from gence.paper.exhibits.ood import SETS
from gence.paper.exhibits.table1 import table1
from gence.paper.tables import cell_name

LOSSES = (*(str(column.loss) for column in SIX_LOSSES), "gence(anchor=tune)")
"""What is tuned: the paper's six losses, and GenCE with its anchor tuned too."""


METRICS = {"tuned": "accuracy", "tuned_ece": "ece", "tuned_ood": "auroc"}
"""What is shown by which name, from the same runs."""

_UNITS = {"accuracy": "accuracy, %", "ece": "ECE, % (15 bins)", "auroc": "AUROC, %"}


def cells_to_tune(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return a run of each cell to begin from: runs that differ in what tuning decides are of one cell.

    Elsewhere a cell has its last layers with and without a bias together; they are tuned apart.
    """
    found: dict[str, RunSpec] = {}
    for spec in specs:
        base = spec.replace(loss="ce", seed=0)
        shared = base.to_dict()
        shared["recipe"] = {name: value for name, value in shared["recipe"].items() if name not in DECIDED}
        found.setdefault(canonical_json(shared), base)
    return list(found.values())


def losses_to_tune(names: Sequence[str], specs: Iterable[RunSpec]) -> list[str]:
    """Return what is tuned where nobody says: a file's own losses, and `LOSSES` for exhibits."""
    if all(name.endswith(".toml") for name in names):
        return list(dict.fromkeys(str(spec.loss) for spec in specs))
    return list(LOSSES)


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


def tuned(store: Store, recipe: Recipe | None = None, metric: str = "accuracy") -> Exhibit:
    """Return the exhibit of what was tuned: rows of Table 1, in its order, and then cells of other grids.

    Args:
        store: where the settings are.
        recipe: the recipe that was the base of tuning; the paper's by default.
        metric: "accuracy", "ece" or "auroc"; the last for cells that are judged on OOD sets, a row a set and score.
    """
    in_table = [row.base for row in table1(recipe).rows]
    found = [report for base in in_table if (report := load_tuned(store, base)) is not None]
    names = {cell_name(base) for base in in_table}
    # A cell of Table 1 under another recipe has the same name, and is shown when that recipe is asked for.
    found += [report for report in all_tuned(store, recipe) if cell_name(report.base) not in names]
    rows = [
        TunedRow(
            name=cell_name(report.base),
            labels=(*_labels(report.base), *labels),
            base=report.base,
            metric=name,
            changes={str(one.asked): one.changes for one in report.best},
        )
        for report in found
        for name, labels in _numbers(report.base, metric)
    ]
    return Exhibit(
        name="tuned",
        title=f"Every loss tuned, {'NOT all alike' if _unequal(found) else 'with as many trials as any other'}",
        where="not in the paper",
        unit=_UNITS[metric],
        label_names=("Data", "N", "Network", *(("OOD", "Score") if metric == "auroc" else ())),
        columns=tuple(
            Column(name=loss, title=_title(loss), loss=LossSpec.parse(loss.replace("=tune", "=0.1")), ours=True)
            for loss in _losses(found)
        ),
        rows=tuple(rows),
        higher_is_better=metric != "ece",
        assumptions=(
            "Learning rate, weight decay, warm-up and each loss's own parameters are tuned with the same number of "
            "trials, on a held-out fifth of the small training set; the final runs have fresh seeds and are trained "
            "on all of it.",
            *_unequal(found),
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedRow(Row):
    """A line whose runs are those that tuning found best.

    Attributes:
        changes: what was found, by the loss as it was asked for.
    """

    changes: dict[str, dict[str, Any]]

    def specs(self, column: Column, seeds: int = SEEDS) -> list[RunSpec]:
        """Return the final runs of a loss; none if it has no finished trial."""
        if column.name not in self.changes:
            return []
        found = self.base.replace(**self.changes[column.name])
        return [found.replace(seed=seed) for seed in range(seeds)]


def tuned_specs(
    store: Store,
    *,
    rows: Sequence[str] = (),
    losses: Sequence[str] = (),
    seeds: int = SEEDS,
    recipe: Recipe | None = None,
) -> list[RunSpec]:
    """Return the final runs of every cell that was tuned in the store.

    Args:
        store: where the tuned settings are.
        rows: patterns of the cells' names, which are those of Table 1's rows for its cells.
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


def _folder(store: Store) -> Path:
    return store.root / "tuned"


def _cell_key(base: RunSpec) -> str:
    return base.replace(loss="ce", seed=0).key


def _labels(base: RunSpec) -> tuple[str, str, str]:
    size = str(base.subset.n or "all") if base.subset.rho is None else f"rho {base.subset.rho:g}"
    return DATA_TITLES.get(base.data, base.data), size, MODEL_TITLES.get(base.model, base.model)


def _numbers(base: RunSpec, metric: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the numbers of a cell's records that a metric stands for, each with the labels that tell them apart."""
    if metric != "auroc":
        return [(metric, ())]
    titles = dict(SETS.values())
    return [
        (f"ood/{name}/auroc_{score}", (titles.get(name, name), score))
        for name in map(ood_name, base.ood)
        for score in ("entropy", "confidence")
    ]


def _plain(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, LossSpec) else value for name, value in changes.items()}


def _title(loss: str) -> str:
    titles = {str(column.loss): column.title for column in SIX_LOSSES} | {LOSSES[-1]: "GenCE, anchor tuned"}
    return titles.get(loss, loss)


def _losses(found: Sequence[TuneReport]) -> list[str]:
    """Return the usual losses and then others that were tuned anywhere."""
    return list(dict.fromkeys([*LOSSES, *(str(one.asked) for report in found for one in report.best)]))


def _unequal(found: Sequence[TuneReport]) -> list[str]:
    """Return a sentence for each cell whose losses were not tuned alike."""
    sentences = []
    for report in found:
        ways = {f"{one.asked} {one.trials} trials for {one.metric}": (one.trials, one.metric) for one in report.best}
        if len(set(ways.values())) > 1:
            sentences.append(f"NOT so for {cell_name(report.base)}: {'; '.join(ways)}.")
    return sentences
