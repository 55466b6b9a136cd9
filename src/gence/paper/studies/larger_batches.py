"""Whether an anchor holds the marginal in larger batches too (N = 2000); not in the paper.

The remedies' comparison has larger batches with plain GenCE alone. Here each of them has the anchored loss beside it,
in the same settings and with the same seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gence.lab.report import Table, enumerated, marks_for
from gence.lab.spec import LossSpec, Recipe
from gence.lab.store import Store
from gence.paper.exhibit import ANCHORED, Column, Exhibit
from gence.paper.figures import Drawing, panels_figure
from gence.paper.measure import MeasuredRow, Reader, measure
from gence.paper.studies.drift_course import read_courses
from gence.paper.studies.remedies import BATCH_SIZES, OURS, PLAIN, N, remedies
from gence.paper.studies.remedies_evidence import HOW_JUDGED, Evidence, after_offset, collapses, compare_lines
from gence.paper.tables import exhibit_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SMALLEST = 100
"""The batch of both recipes, whose runs the remedies' comparison has."""

SIZES = (SMALLEST, *BATCH_SIZES)
_KINDS = {"plain": LossSpec(name=PLAIN), "anchored": ANCHORED.loss}


def column_name(kind: str, size: int) -> str:
    """Return the name of a column; `kind` is "plain" or "anchored".

    >>> column_name("anchored", 400)
    'anchored-400'
    """
    return f"{kind}-{size}"


def _column(kind: str, loss: LossSpec, size: int) -> Column:
    batch = {} if size == SMALLEST else {"recipe.batch_size": size}
    # No other exhibit has the anchored loss in larger batches.
    own = OURS if kind == "anchored" and size != SMALLEST else {}
    return Column(
        name=column_name(kind, size), title=f"{kind}, batch {size}", loss=loss, ours=True, changes={**own, **batch}
    )


def larger_batches(recipe: Recipe | None = None) -> Exhibit:
    """Return the exhibit, under both recipes of the remedies' comparison unless one is given.

    >>> exhibit = larger_batches()
    >>> len(exhibit.rows), [column.title for column in exhibit.columns][-1]
    (8, 'anchored, batch 400')
    """
    compared = remedies(recipe)
    return dataclasses.replace(
        compared,
        name="larger_batches",
        title=f"Plain and anchored GenCE in larger batches, N = {N}",
        columns=tuple(_column(kind, loss, size) for kind, loss in _KINDS.items() for size in SIZES),
        assumptions=(
            "Larger batches have the same epochs and the same learning rate, so they make fewer steps.",
            "The anchor is 0.1, to the batch's labels.",
        ),
    )


def larger_batches_shown(
    store: Store, *, rows: Sequence[str] = (), seeds: int | None = None, recipe: Recipe | None = None
) -> tuple[Table, list[str]]:
    """Return the table and the sentences below it; arguments as for `measure`, and one recipe instead of the two."""
    exhibit, reader = larger_batches(recipe), Reader(store)
    seeds = exhibit.seeds if seeds is None else seeds
    accuracy = measure(exhibit, reader, rows=rows, seeds=seeds)
    table = exhibit_table(exhibit, accuracy, seeds)
    if not any(found.recorded for one in accuracy for found in one.cells.values()):
        return table, ["Nothing of this comparison is measured yet."]
    offset = measure(after_offset(exhibit), reader, rows=rows, seeds=seeds)
    courses = read_courses(exhibit, reader, rows=rows, seeds=seeds)
    names = [column.name for column in exhibit.columns]
    trained = {name: [course for setting in courses for course in setting.by_column[name]] for name in names}
    ever = {name: (sum(bool(one.epochs_out) for one in found), len(found)) for name, found in trained.items()}
    at_end = {name: (sum(one.out_at_end for one in found), len(found)) for name, found in trained.items()}
    return table, [
        _counted("The marginal was out of its place at some time", ever),
        _counted("It was out at the end", at_end),
        _counted("Collapsed", {name: collapses(accuracy, offset, [name]) for name in names})
        + " Collapsed is an accuracy below half of what the offset makes of the same network.",
        *_differences(accuracy),
        *(f"Assumed: {one}" for one in exhibit.assumptions),
    ]


def _counted(what: str, counts: Mapping[str, tuple[int, int]]) -> str:
    """A sentence of how many networks of how many, for both losses at every size."""
    parts = []
    for kind, title in (("plain", "with plain GenCE"), ("anchored", "with the anchor")):
        found = [counts[column_name(kind, size)] for size in SIZES]
        parts.append(f"{title} {enumerated([f'{some} of {all_}' for some, all_ in found])}")
    sizes = enumerated([str(size) for size in SIZES])
    return f"{what}, in batches of {sizes}: {'; '.join(parts)}."


def _differences(accuracy: Sequence[MeasuredRow]) -> list[str]:
    to_plain = {size: (column_name("anchored", size), column_name("plain", size)) for size in SIZES}
    to_smallest = {size: (column_name("anchored", size), column_name("anchored", SMALLEST)) for size in BATCH_SIZES}
    found = compare_lines(accuracy, [*to_plain.values(), *to_smallest.values()])
    sentences = []
    if anchored := _told(found, to_plain):
        sentences.append(f"With the anchor against without, in batches {anchored}.")
    if larger := _told(found, to_smallest):
        sentences.append(f"With the anchor, batches {larger}; each against batches of {SMALLEST}.")
    return [*sentences, HOW_JUDGED] if found else []


def _told(found: Mapping[tuple[str, str], Evidence], pairs: Mapping[int, tuple[str, str]]) -> str:
    told = {size: found[pair] for size, pair in pairs.items() if pair in found}
    return "; ".join(f"of {size}: {evidence} ({evidence.told})" for size, evidence in told.items())


_NAME = "larger-batches"

HOW_TO_READ = "Lines and large marks are means, small dots are seeds."

_LINES = {"plain": ("plain GenCE", PLAIN), "anchored": ("anchor 0.1 (batch labels)", str(ANCHORED.loss))}
"""Label, and the loss whose colour and mark a kind of column has."""

_ASIDE = {"plain": 1 / 1.05, "anchored": 1.05}
"""The seeds of the two lines stand beside each other."""


def batches_figure(store: Store, recipe: Recipe | None = None) -> Figure | None:
    """Draw a panel a setting that has records: accuracy against batch size; None if no setting has any."""
    return panels_figure(_begun(store, recipe), _draw, [label for label, _ in _LINES.values()])


def batches_drawing(store: Store, recipe: Recipe | None = None) -> Drawing | None:
    """Return the figure with its words; None if no setting has a record."""
    figure = batches_figure(store, recipe)
    if figure is None:
        return None
    return Drawing(
        name=_NAME,
        title="Accuracy against batch size, with an anchor and without",
        reading=HOW_TO_READ,
        description="The means are in the table of this section; the seeds, a dot each, are in the records.",
        figure=figure,
        wide=True,
    )


def batches_block(store: Store) -> str:
    """Return the generated block: the figure and how to read it, if anything can be drawn."""
    if not _begun(store, None):
        return "\nNothing has been measured yet, so there is no figure.\n\n"
    return f"\n![Accuracy against batch size, a panel a setting](figures/{_NAME}.svg)\n\n{HOW_TO_READ}\n\n"


def _begun(store: Store, recipe: Recipe | None) -> list[MeasuredRow]:
    exhibit = larger_batches(recipe)
    measured = measure(exhibit, store, seeds=exhibit.seeds)
    return [one for one in measured if any(cell.summary is not None for cell in one.cells.values())]


def _draw(axes: Axes, one: MeasuredRow) -> None:
    marks = marks_for([loss for _, loss in _LINES.values()])
    for kind, (label, loss) in _LINES.items():
        cells = {size: one.cells[column_name(kind, size)] for size in SIZES}
        means = {size: cell.summary.mean for size, cell in cells.items() if cell.summary is not None}
        mark = marks[loss]
        axes.plot(
            list(means), list(means.values()), label=label, color=mark.light, ls=mark.line, marker=mark.marker, lw=1.2,
            ms=4,
        )  # fmt: skip
        for size, cell in cells.items():
            seeds = list(cell.by_seed.values())
            places = [size * _ASIDE[kind]] * len(seeds)
            axes.scatter(places, seeds, color=mark.light, s=9, alpha=0.6, linewidths=0, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set(xlabel="batch size", ylabel="accuracy, %", title=", ".join(one.row.labels))
    axes.grid(axis="y")
