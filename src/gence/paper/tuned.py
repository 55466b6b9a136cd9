"""The tuned comparison: every loss with the same number of trials, then the best of each on all the data.

What tuning found is kept in the store as one small file a cell, beside the journal of trials, so that the table can be
made without the tuner.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gence.experiment import atomic
from gence.experiment.recipe import Recipe
from gence.experiment.spec import LossSpec, RunSpec
from gence.experiment.store import Store, StoreError
from gence.experiment.study import TunedLoss
from gence.experiment.tune import TuneReport, tuned_grid
from gence.paper.exhibit import DATA_TITLES, MODEL_TITLES, SEEDS, SIX_LOSSES, Column, Exhibit, Row
from gence.paper.table1 import table1

LOSSES = (*(str(column.loss) for column in SIX_LOSSES), "gence(anchor=tune)")
"""What is tuned: the paper's six losses, and GenCE with its anchor tuned too."""


def save_tuned(store: Store, report: TuneReport) -> Path:
    """Write what tuning found for a cell into the store; return the file."""
    path = _folder(store) / f"{_cell_key(report.base)}.json"
    content = {
        "base": report.base.to_dict(),
        "tuning_seeds": list(report.seeds),
        "trials": report.trials,
        "complete": report.complete,
        "best": [
            {**dataclasses.asdict(tuned), "asked": str(tuned.asked), "changes": _plain(tuned.changes)}
            for tuned in report.best
        ],
    }
    atomic.replace(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())
    return path


def load_tuned(store: Store, base: RunSpec) -> TuneReport | None:
    """Return what tuning found for the cell of a run, or None if it was not tuned."""
    path = _folder(store) / f"{_cell_key(base)}.json"
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        best = [TunedLoss(**{**one, "asked": LossSpec.parse(one["asked"])}) for one in content["best"]]
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
    """Return the exhibit of what was tuned: the rows of Table 1 that the store has tuned settings for.

    Args:
        store: where the settings are.
        recipe: the recipe that was the base of tuning; the paper's by default.
        metric: "accuracy" or "ece". Both come from the same runs.
    """
    rows = []
    for row in table1(recipe).rows:
        report = load_tuned(store, row.base)
        if report is None:
            continue
        labels = (DATA_TITLES[row.base.data], str(row.base.subset.n), MODEL_TITLES[row.base.model])
        changes = {str(one.asked): one.changes for one in report.best}
        rows.append(TunedRow(name=row.name, labels=labels, base=row.base, metric=metric, changes=changes))
    return Exhibit(
        name="tuned",
        title="Every loss tuned, with equal budgets",
        where="not in the paper",
        unit="accuracy, %" if metric == "accuracy" else "ECE, % (15 bins)",
        label_names=("Data", "N", "Network"),
        columns=tuple(
            Column(name=loss, title=_title(loss), loss=LossSpec.parse(loss.replace("=tune", "=0.1")), ours=True)
            for loss in LOSSES
        ),
        rows=tuple(rows),
        higher_is_better=metric == "accuracy",
        assumptions=(
            "Learning rate, weight decay, warm-up and each loss's own parameters are tuned with the same number of "
            "trials, on a held-out fifth of the small training set; the final runs have fresh seeds and are trained "
            "on all of it.",
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


def tuned_specs(store: Store, *, rows: Sequence[str] = (), seeds: int = SEEDS) -> list[RunSpec]:
    """Return the final runs of every cell of Table 1 that was tuned in the store."""
    found = []
    for row in table1().selected(rows):
        report = load_tuned(store, row.base)
        if report is not None:
            found += tuned_grid(report, range(seeds))
    if not found:
        raise ValueError(
            f"nothing was tuned in {store.root} for these rows; do that first: gence tune table1 --rows ..."
        )
    return sorted(found, key=lambda spec: spec.seed)


def _folder(store: Store) -> Path:
    return store.root / "tuned"


def _cell_key(base: RunSpec) -> str:
    return base.replace(loss="ce", seed=0).key


def _plain(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, LossSpec) else value for name, value in changes.items()}


def _title(loss: str) -> str:
    titles = {str(column.loss): column.title for column in SIX_LOSSES}
    return titles.get(loss, "GenCE, anchor tuned")
