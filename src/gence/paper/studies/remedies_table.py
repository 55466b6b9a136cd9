"""The comparison of remedies as tables: a line a remedy, a column a setting, a table a metric."""

from __future__ import annotations

from collections.abc import Sequence

from gence.lab.report import Cell, Row as TableRow, Table
from gence.lab.spec import Recipe
from gence.lab.store import Store
from gence.paper.exhibit import Exhibit
from gence.paper.measure import MeasuredRow
from gence.paper.studies.remedies import PLAIN, remedies
from gence.paper.studies.remedies_evidence import Study, against, findings, mean_ranks, read_study
from gence.paper.tables import best_column, measured_cell

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
    study = read_study(store, rows=rows, seeds=seeds, recipe=recipe)
    seeds = study.exhibit.seeds if seeds is None else seeds
    measured = {"remedies": study.accuracy, "remedies_ece": study.ece, "remedies_drift": study.drift}[name]
    table = _table(name, remedies(recipe, METRICS[name]), measured, seeds)
    if name != "remedies":
        return table, []
    return _with_evidence(table, study) if table.rows else table, [
        *findings(study),
        *(f"Assumed: {one}" for one in study.exhibit.assumptions),
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
        lines.append(TableRow(cells=(Cell(text=column.title, value=column.title), *cells)))
    marked = " The best of a setting is marked once all of it is complete." if exhibit.higher_is_better else ""
    return Table(
        name=name.replace("_", "-"),
        caption=f"{exhibit.title} ({exhibit.where}): {exhibit.unit}, mean ± sample standard deviation over {seeds} "
        f"seeds. {sum(cell.recorded == cell.wanted for cell in found)} of {len(found)} cells are recorded in full."
        + marked
        + (f" No record yet: {absent}." if absent else ""),
        columns=("Remedy", *(", ".join(one.row.labels) for one in begun)),
        rows=tuple(lines) if begun else (),
    )


def _with_evidence(table: Table, study: Study) -> Table:
    """Return the table with what the sentences rest on before the settings: differences to plain GenCE, mean ranks."""
    compared, complete = against(study.accuracy, PLAIN, study.titles), study.complete_rows()
    ranks = mean_ranks(complete)
    absent = Cell(text="–", value="")
    lines = []
    for column, row in zip(study.exhibit.columns, table.rows, strict=True):
        minus, p, rank = absent, absent, absent
        if (found := compared.get(column.name)) is not None:
            pairs = f"{found.up} of {len(found.differences)} up"
            minus = Cell(text=f"{found.mean:+.2f} ({pairs}, {_settings(found.settings)})", value=found.mean)
            p = Cell(text=f"{found.p:.3f}" if found.p >= 0.001 else "< 0.001", value=found.p)
        if column.name in ranks:
            rank = Cell(text=f"{ranks[column.name]:.1f}", value=ranks[column.name])
        lines.append(TableRow(cells=(row.cells[0], minus, p, rank, *row.cells[1:])))
    return Table(
        name=table.name,
        caption=f"{table.caption} Minus GenCE: mean difference over the pairs of runs that share a setting and a seed, "
        "and in how many of them the line is ahead; lines with other settings are not to be compared by it. p: "
        "signed-rank test over these pairs, after Holm's correction over all lines. Mean rank: over the "
        f"{len(complete)} settings that have all their runs, 1 is the most accurate.",
        columns=(table.columns[0], "minus GenCE", "p", "mean rank", *table.columns[1:]),
        rows=tuple(lines),
    )


def _settings(number: int) -> str:
    return f"{number} setting" if number == 1 else f"{number} settings"
