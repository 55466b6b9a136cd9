"""The page of the paper: every exhibit beside its printed values, in one file that needs nothing else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from gence._version import __version__
from gence.lab.report import Cell, Mark, Row, Table, as_svg, colour_variables, inlined, marks_for
from gence.lab.spec import named_recipe
from gence.lab.store import Store, replace_file
from gence.paper.exhibit import COLUMNS, SIX_LOSSES
from gence.paper.exhibit_registry import Asked, entries, shown
from gence.paper.exhibit_table import Drawing
from gence.paper.records import Measured, Reader, measure

AGREES = 2.0
"""Standard errors of the difference within which a cell agrees with its printed value."""

SIX = tuple(column.name for column in SIX_LOSSES)
_NUMBER = re.compile(r"[+-]?\d")
_NO_NUMBER = re.compile(r"missing|out$|–|$")


@dataclass(frozen=True)
class _Line:
    """A row of a table; `span` counts the rows its label stands for, and is 0 where the label stands above."""

    label: Cell
    span: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class _Section:
    """One exhibit on the page."""

    name: str
    heading: str
    table: Table
    lines: list[_Line]
    textual: list[bool]  # one per column: words, which stand at the left
    notes: list[str]
    figures: list[dict[str, Any]]  # svg, caption, wide


def render_page(store: Store, *, recipe: str | None = None) -> str:
    """Return the page's HTML.

    Args:
        store: where the records are.
        recipe: the name of another recipe than the paper's.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("gence.paper"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["pieces"] = _pieces
    marks = list(dict.fromkeys(marks_for([str(column.loss) for column in COLUMNS]).values()))
    first = agreement_table(store, recipe)
    heading = "What agrees, what does not, and what is missing"
    sections = [_Section("agreement", heading, first, _lines(first), _textual(first), [], [])] if first.rows else []
    asked = Asked(store, recipe=named_recipe(recipe) if recipe else None)
    for name, entry in entries().items():
        table, notes = shown(name, store, recipe=recipe)
        if not entry.in_paper:
            table = _with_records(table)
        drawings = entry.drawings(asked) if entry.drawings is not None else []
        # Our own drawings, escaped where they were made: like the style sheet, not data.
        figures = [
            {"svg": Markup(_inlined(d, marks)), "caption": f"{d.title}. {d.reading}", "wide": d.wide} for d in drawings
        ]
        sections.append(_Section(name, entry.title, table, _lines(table), _textual(table), notes, figures))
    css = (files("gence.lab.report") / "templates" / "report.css").read_text(encoding="utf-8")
    return environment.get_template("paper.html").render(
        # What agrees comes before the list of everything.
        sections=sections,
        first=min(1 if first.rows else 0, len(sections) - 1),
        version=__version__,
        css=Markup(css + colour_variables(marks)),
        recipe=recipe or "paper",
    )


def agreement_table(store: Store, recipe: str | None = None) -> Table:
    """Return what agrees with the print, what does not, and what is missing: one row per exhibit with printed values.

    A cell agrees where it lies within two standard errors of its printed value.
    """
    reader, rows = Reader(store), []
    for entry in entries().values():
        if not entry.in_paper or entry.exhibit is None:
            continue
        exhibit = entry.exhibit(named_recipe(recipe) if recipe else None)
        cells = [(one, cell) for one in measure(exhibit, reader) for cell in one.cells.values() if cell.printed]
        errors = [cell.standard_errors for _, cell in cells if cell.complete]
        agree = sum(error is not None and abs(error) <= AGREES for error in errors)
        best = [
            one.row.bold == max(SIX, key=lambda name: _mean(one.cells[name]))
            for one in {id(one): one for one, _ in cells}.values()
            if exhibit.higher_is_better
            and one.row.bold in SIX
            and all(name in one.cells and one.cells[name].complete for name in SIX)
        ]
        counts = (len(cells), agree, len(errors) - agree, len(cells) - len(errors))
        if cells:
            shown_best = Cell(text=f"{sum(best)} of {len(best)}" if best else "–", value=sum(best))
            numbers = (Cell(text=str(number), value=number) for number in counts)
            rows.append(Row(cells=(Cell(text=entry.title, value=entry.title), *numbers, shown_best)))
    return Table(
        name="agreement",
        caption="Cells with a printed value: a cell agrees where it is complete and within two standard errors of the "
        "print. Best loss: in how many complete rows the loss printed as the best of six is the best here. Cells are "
        "missing because they have not been trained yet; what they would cost is in the table of costs.",
        columns=("Exhibit", "Cells", "Agree", "Do not agree", "Missing", "Best loss as printed"),
        rows=tuple(rows),
    )


def _with_records(table: Table) -> Table:
    """Return the table of a study of ours without the rows that have no record at all, and say how many those are.

    Rows that the paper prints stay: what is missing beside the print is worth seeing.
    """
    kept = tuple(row for row in table.rows if not _is_missing(row))
    lacking = len(table.rows) - len(kept)
    if not lacking:
        return table
    if not kept:
        return replace(table, rows=(), caption="Nothing of this is recorded yet.")
    left_out = f"Rows without a record are not shown ({lacking} of {len(table.rows)})."
    return replace(table, rows=kept, caption=f"{left_out} {table.caption}")


def _is_missing(row: Row) -> bool:
    """Whether a row says "missing" where others have numbers, and has none itself."""
    cells = row.cells[1:]
    return any(cell.text.startswith("missing") for cell in cells) and not any(
        isinstance(cell.value, int | float) for cell in cells
    )


def _mean(cell: Measured) -> float:
    return cell.summary.mean if cell.summary else float("-inf")


def write_page(store: Store, out: str | os.PathLike[str], *, recipe: str | None = None) -> Path:
    """Write the page to a file; return where it is."""
    path = Path(out)
    replace_file(path, render_page(store, recipe=recipe).encode())
    return path


def _lines(table: Table) -> list[_Line]:
    """Return the rows, each label once over all rows it stands for: below it the tables leave the cell empty."""
    starts = [i for i, row in enumerate(table.rows) if i == 0 or row.cells[0].text]
    spans = {start: end - start for start, end in pairwise([*starts, len(table.rows)])}
    return [_Line(row.cells[0], spans.get(i, 0), row.cells[1:]) for i, row in enumerate(table.rows)]


def _textual(table: Table) -> list[bool]:
    """Return whether each column holds words: the first does, others where no cell is a number or stands for one."""
    columns = zip(*([cell.text for cell in row.cells] for row in table.rows), strict=True)
    found = [
        not any(map(_NUMBER.match, texts)) and not all(map(_NO_NUMBER.match, texts)) for texts in list(columns)[1:]
    ]
    return [True, *found] if table.rows else [True] * len(table.columns)


def _pieces(text: str) -> list[str]:
    """Return the pieces of a cell that must not be broken: a number with its spread, and the remarks behind it.

    >>> _pieces("6.14 ± 1.63 (3 of 5, the others have none)")
    ['6.14 ± 1.63', '(3 of 5,', 'the others have none)']
    """
    return re.split(r" (?=\()|(?<=,) ", text)


def _inlined(drawing: Drawing, marks: list[Mark]) -> str:
    return inlined(
        as_svg(drawing.figure(), drawing.name),
        name=drawing.name,
        title=drawing.title,
        description=drawing.description,
        marks=marks,
        losses=(),  # nothing on this page switches a loss off
    )
