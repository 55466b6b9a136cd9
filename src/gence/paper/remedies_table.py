"""The comparison of remedies as tables: a line a remedy, a column a setting, a table a metric."""

from __future__ import annotations

from collections.abc import Sequence

from gence.experiment.recipe import Recipe
from gence.experiment.store import Store
from gence.paper.exhibit import Exhibit
from gence.paper.measure import MeasuredRow, measure
from gence.paper.remedies import remedies
from gence.paper.remedies_findings import differences_from_plain, findings, mean_ranks
from gence.paper.tables import best_column, measured_cell
from gence.report.tables import Cell, Row, Table

METRICS = {"remedies": "accuracy", "remedies_ece": "ece", "remedies_drift": "marginal_kl"}
"""What is shown by which name."""

_DIGITS = {"accuracy": 2, "ece": 2, "marginal_kl": 3}


def remedies_shown(
    name: str, store: Store, *, rows: Sequence[str] = (), seeds: int | None = None, recipe: Recipe | None = None
) -> tuple[Table, list[str]]:
    """Return a table of the comparison and the sentences below it, which accuracy's table has alone.

    Args:
        name: a name of `METRICS`.
        store: where the records are.
        rows: patterns of row names; all by default.
        seeds: how many seeds a cell should have; the exhibit's own number by default.
        recipe: one recipe instead of the two.
    """
    exhibit = remedies(recipe, METRICS[name])
    seeds = exhibit.seeds if seeds is None else seeds
    measured = measure(exhibit, store, rows=rows, seeds=seeds)
    table = _table(name, exhibit, measured, seeds)
    if name != "remedies":
        return table, []
    return _with_evidence(table, exhibit, measured) if table.rows else table, [
        *findings(exhibit, measured),
        *(f"Assumed: {one}" for one in exhibit.assumptions),
    ]


def _table(name: str, exhibit: Exhibit, measured: Sequence[MeasuredRow], seeds: int) -> Table:
    found = [cell for one in measured for cell in one.cells.values()]
    # Settings as columns: seventeen columns of losses would fit no page. One without any record is named, not shown.
    begun = [one for one in measured if any(cell.recorded for cell in one.cells.values())]
    absent = "; ".join(", ".join(one.row.labels) for one in measured if one not in begun)
    best = [best_column(exhibit, one) for one in begun]
    lines = []
    for column in exhibit.columns:
        cells = (
            measured_cell(one.cells[column.name], column.name == winner, _DIGITS[METRICS[name]])
            for one, winner in zip(begun, best, strict=True)
        )
        lines.append(Row(cells=(Cell(text=column.title, value=column.title), *cells)))
    marked = "" if exhibit.higher_is_better is None else " The best of a setting is marked once all of it is complete."
    return Table(
        name=name.replace("_", "-"),
        caption=f"{exhibit.title} ({exhibit.where}): {exhibit.unit}, mean ± sample standard deviation over {seeds} "
        f"seeds. {sum(cell.complete for cell in found)} of {len(found)} cells are complete.{marked}"
        + (f" No record yet: {absent}." if absent else ""),
        columns=("Remedy", *(", ".join(one.row.labels) for one in begun)),
        rows=tuple(lines) if begun else (),
    )


def _with_evidence(table: Table, exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> Table:
    """Return the table with what the sentences rest on: differences to plain GenCE, and mean ranks."""
    differences, (ranks, complete) = differences_from_plain(exhibit, measured), mean_ranks(exhibit, measured)
    lines = []
    for column, row in zip(exhibit.columns, table.rows, strict=True):
        minus, rank = Cell(text="–", value=""), Cell(text="–", value="")
        if (found := differences.get(column.name)) is not None:
            settings = f"{found.rows(1)} up, {found.rows(-1)} down of {len(found.by_row)}"
            minus = Cell(text=f"{found.mean:+.2f} ± {found.error:.2f} ({settings})", value=found.mean)
        if column.name in ranks:
            rank = Cell(text=f"{ranks[column.name]:.1f}", value=ranks[column.name])
        lines.append(Row(cells=(*row.cells, minus, rank)))
    return Table(
        name=table.name,
        caption=f"{table.caption} Minus GenCE: mean of the paired differences ± standard error over the settings in "
        "which both cells are complete; in brackets the settings in which it exceeds two of its own standard errors. "
        f"Mean rank: over the {len(complete)} settings that have all their runs, 1 is the most accurate.",
        columns=(*table.columns, "minus GenCE", "mean rank"),
        rows=tuple(lines),
    )
