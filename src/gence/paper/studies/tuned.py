"""The tuned comparison: every loss with the same number of trials, then the best of each on all the data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from gence.lab.spec import LossSpec, Recipe, RunSpec, ood_name
from gence.lab.store import Store
from gence.lab.sweep import TuneReport, all_tuned, cell_name, load_tuned, tuned_specs
from gence.paper.exhibit import DATA_TITLES, MODEL_TITLES, OOD_TITLES, SEEDS, SIX_LOSSES, Column, Exhibit, RunRow
from gence.paper.exhibit_registry import Asked, Entry, View, exhibit_view, load_exhibit
from gence.paper.records import MeasuredRow, measure

TUNED_LOSSES = (*(str(column.loss) for column in SIX_LOSSES), "gence(anchor=tune)")
"""What is tuned: the paper's six losses, and GenCE with its anchor tuned too."""

_UNITS = {"accuracy": "accuracy, %", "ece": "ECE, % (15 bins)", "auroc": "AUROC, %"}


def tuned(store: Store, recipe: Recipe | None = None, metric: str = "accuracy") -> Exhibit:
    """Return the exhibit of what was tuned: rows of Table 1, in its order, and then cells of other grids.

    Args:
        store: where the settings are.
        recipe: the recipe that was the base of tuning; the paper's by default.
        metric: "accuracy", "ece" or "auroc"; the last for cells that are judged on OOD sets, one row per set and score.
    """
    in_table = [row.base for row in load_exhibit("table1", recipe).rows]
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
class TunedRow(RunRow):
    """A row whose runs are those that tuning found best.

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


def measured_tuned(store: Store) -> tuple[Exhibit, list[MeasuredRow]]:
    """Return the exhibit and its rows as far as they are recorded."""
    exhibit = tuned(store)
    return exhibit, measure(exhibit, store)


def tuned_view(asked: Asked, metric: str) -> View:
    """Return the table of what was tuned, or what to do where nothing was."""
    exhibit = tuned(asked.store, asked.recipe, metric)
    if exhibit.rows:
        return exhibit_view(exhibit, asked)
    table, _ = exhibit_view(exhibit, dataclasses.replace(asked, rows=()))
    if metric == "auroc" and tuned(asked.store, asked.recipe).rows:
        return table, ["Nothing that was tuned is judged on OOD sets."]
    return table, ["Nothing is tuned yet: gence tune table1 --rows ..."]


def _asked_specs(asked: Asked, losses: Sequence[str]) -> list[RunSpec]:
    return tuned_specs(asked.store, rows=asked.rows, losses=losses, seeds=asked.seeds or SEEDS, recipe=asked.recipe)


def _labels(base: RunSpec) -> tuple[str, str, str]:
    size = str(base.subset.n or "all") if base.subset.rho is None else f"rho {base.subset.rho:g}"
    return DATA_TITLES.get(base.data, base.data), size, MODEL_TITLES.get(base.model, base.model)


def _numbers(base: RunSpec, metric: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the numbers of a cell's records that a metric stands for, each with the labels that tell them apart."""
    if metric != "auroc":
        return [(metric, ())]
    return [
        (f"ood/{name}/auroc_{score}", (OOD_TITLES.get(name, name), score))
        for name in map(ood_name, base.ood)
        for score in ("entropy", "confidence")
    ]


def _title(loss: str) -> str:
    titles = {str(column.loss): column.title for column in SIX_LOSSES} | {TUNED_LOSSES[-1]: "GenCE, anchor tuned"}
    return titles.get(loss, loss)


def _losses(found: Sequence[TuneReport]) -> list[str]:
    """Return the usual losses and then others that were tuned anywhere."""
    return list(dict.fromkeys([*TUNED_LOSSES, *(str(one.asked) for report in found for one in report.best)]))


def _unequal(found: Sequence[TuneReport]) -> list[str]:
    """Return a sentence for each cell whose losses were not tuned alike."""
    sentences = []
    for report in found:
        ways = {f"{one.asked} {one.trials} trials for {one.metric}": (one.trials, one.metric) for one in report.best}
        if len(set(ways.values())) > 1:
            sentences.append(f"NOT so for {cell_name(report.base)}: {'; '.join(ways)}.")
    return sentences


ENTRIES = (
    Entry(
        name="tuned",
        place=10,
        heading="Every loss tuned: accuracy",
        view=functools.partial(tuned_view, metric="accuracy"),
        specs=_asked_specs,
        findings=(
            "On CIFAR-10 GenCE with a tuned anchor has the best mean, half a point ahead of cross-entropy; on "
            "CIFAR-100 generalised cross-entropy has it, two points ahead of plain GenCE.",
        ),
    ),
    Entry(
        name="tuned_ece",
        place=11,
        heading="Every loss tuned: calibration",
        of="tuned",
        view=functools.partial(tuned_view, metric="ece"),
        findings=(
            "On CIFAR-10 focal is the best calibrated and cross-entropy follows; on CIFAR-100 Brier is, far ahead of "
            "generalised cross-entropy.",
        ),
    ),
    Entry(
        name="tuned_ood",
        place=12,
        heading="Every loss tuned: out-of-distribution detection",
        of="tuned",
        view=functools.partial(tuned_view, metric="auroc"),
        findings=(
            "GenCE with a tuned anchor has the best mean against both sets and by both scores, and cross-entropy "
            "follows within 1.3 points.",
        ),
    ),
)
