"""Accuracy against batch size, with an anchor and without, drawn from the records, and the block that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gence.experiment.recipe import Recipe
from gence.experiment.store import Store
from gence.paper.exhibit import ANCHORED
from gence.paper.figures import Drawing
from gence.paper.larger_batches import SIZES, column_name, larger_batches
from gence.paper.measure import MeasuredRow, measure
from gence.paper.panels import panels_figure
from gence.paper.remedies import PLAIN
from gence.report.names import marks_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
