"""What an exhibit becomes: a table in every form a table has, and figures with the words that go with them.

The table has ours, the paper's and the difference below each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gence.lab.report import Cell, Row, Table, figure_style
from gence.paper.exhibit import Exhibit
from gence.paper.records import Measured, MeasuredRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ABSENT = "–"


def text_cell(text: str, *, best: bool = False) -> Cell:
    """Return a cell of words, which are sorted by themselves."""
    return Cell(text=text, value=text, best=best)


def exhibit_table(exhibit: Exhibit, measured: Sequence[MeasuredRow], seeds: int | None = None) -> Table:
    """Return some rows of an exhibit beside the paper, up to three lines each: ours, the paper's, the difference.

    An exhibit without printed values has one line per row, and no column that says whose it is.

    Args:
        exhibit: what to show.
        measured: its rows, as far as there are records.
        seeds: how many seeds a cell should have; the exhibit's own number by default.
    """
    seeds = exhibit.seeds if seeds is None else seeds
    whose = ("",) if _has_print(exhibit) else ()
    return Table(
        name=exhibit.name.replace("_", "-"),
        caption=_caption(exhibit, measured, seeds),
        columns=(", ".join(exhibit.label_names), *whose, *(column.title for column in exhibit.columns)),
        rows=tuple(line for one in measured for line in _lines(exhibit, one)),
    )


def _has_print(exhibit: Exhibit) -> bool:
    return any(row.printed for row in exhibit.rows)


def _lines(exhibit: Exhibit, one: MeasuredRow) -> list[Row]:
    label = ", ".join(one.row.labels)
    measured = [one.cells[column.name] for column in exhibit.columns]
    best = best_column(exhibit, one)
    ours = Row(
        cells=(
            text_cell(label),
            *((text_cell("ours"),) if _has_print(exhibit) else ()),
            *(
                measured_cell(found, column.name == best)
                for found, column in zip(measured, exhibit.columns, strict=True)
            ),
        )
    )
    if not one.row.printed:
        return [ours]
    below = Cell(text="", value=label)
    paper = Row(
        cells=(
            below,
            text_cell("paper"),
            *(
                text_cell(ABSENT)
                if found.printed is None
                else Cell(
                    text=f"{found.printed.mean:.2f} ± {found.printed.std:.2f}",
                    value=found.printed.mean,
                    best=column.name == one.row.bold,
                )
                for found, column in zip(measured, exhibit.columns, strict=True)
            ),
        )
    )
    if all(found.difference is None for found in measured):
        return [ours, paper]
    return [ours, paper, Row(cells=(below, text_cell("difference"), *map(_difference_cell, measured)))]


def best_column(exhibit: Exhibit, one: MeasuredRow) -> str | None:
    """Return the best column of ours, once every column of the row is complete: a part would not be a fair contest.

    There is none where less is better: the smallest calibration error may be that of a network that learnt nothing.
    """
    means = {name: found.summary.mean for name, found in one.cells.items() if found.complete and found.summary}
    if not exhibit.higher_is_better or len(means) < len(one.cells):
        return None
    return max(means, key=lambda name: means[name])


def measured_cell(found: Measured, best: bool, digits: int = 2) -> Cell:
    """Return what was measured as a cell: mean, standard deviation, and how many runs of how many if some lack it."""
    if found.summary is None:
        note = "no number" if found.recorded else "missing"
        return Cell(text=f"{note} ({found.recorded} of {found.wanted})", value="")
    text = f"{found.summary.mean:.{digits}f}"
    if found.summary.n > 1:
        text += f" ± {found.summary.std:.{digits}f}"
    if not found.complete:
        # Nothing more will come where all runs are there: the others diverged, or are not confident, or the like.
        others = ", the others have none" if found.recorded == found.wanted else ""
        text += f" ({found.summary.n} of {found.wanted}{others})"
    return Cell(text=text, value=found.summary.mean, best=best)


def _difference_cell(found: Measured) -> Cell:
    if found.difference is None:
        return text_cell(ABSENT)
    errors = found.standard_errors
    return Cell(
        text=f"{found.difference:+.2f}" + ("" if errors is None else f" ({errors:+.1f} SE)"), value=found.difference
    )


def _caption(exhibit: Exhibit, measured: Sequence[MeasuredRow], seeds: int) -> str:
    found = [one for row in measured for one in row.cells.values()]
    complete = sum(one.complete for one in found)
    started = sum(one.recorded > 0 and not one.complete for one in found)
    begun = f", {started} more have some" if started else ""
    words = [
        f"{exhibit.title} ({exhibit.where}): {exhibit.unit}, mean ± sample standard deviation over {seeds} seeds.",
        f"{complete} of {len(found)} cells are complete{begun}.",
    ]
    if any(one.row.printed for one in measured):
        words.append("Difference: ours less the paper's, in brackets in standard errors from both standard deviations.")
    return " ".join(words)


_PANELS_ACROSS = 2

Panel = TypeVar("Panel")


@dataclass(frozen=True)
class Drawing:
    """A figure, and the words that go with it.

    Attributes:
        name: of its file, without an ending.
        title: what it shows.
        reading: how to read it, a sentence or two.
        description: for who does not see it: where its numbers are.
        figure: draws the figure.
        wide: whether it needs the whole width of a page.
    """

    name: str
    title: str
    reading: str
    description: str
    figure: Callable[[], Figure]
    wide: bool = False

    def markdown(self) -> str:
        """Return the figure as a page of the documentation shows it, with how to read it."""
        return f"![{self.title}](figures/{self.name}.svg)\n\n{self.reading}"


def panels_drawing(
    panels: Sequence[Panel],
    draw: Callable[[Axes, Panel], None],
    legend: Sequence[str],
    *,
    name: str,
    title: str,
    reading: str,
    description: str,
) -> list[Drawing]:
    """Return a wide drawing with one panel per setting that has records; none without such a setting.

    Args:
        panels: what each panel shows.
        draw: draws one of them.
        legend: labels in the legend's order; those that no panel has are omitted.
        name: of its file, without an ending.
        title: what it shows.
        reading: how to read it.
        description: where its numbers are.
    """
    figure = functools.partial(_panels_figure, panels, draw, legend)
    return [Drawing(name, title, reading, description, figure, wide=True)] if panels else []


def _panels_figure(panels: Sequence[Panel], draw: Callable[[Axes, Panel], None], legend: Sequence[str]) -> Figure:
    import matplotlib
    import matplotlib.figure

    across, down = min(_PANELS_ACROSS, len(panels)), math.ceil(len(panels) / _PANELS_ACROSS)
    with matplotlib.rc_context(figure_style()):
        figure = matplotlib.figure.Figure(figsize=(3.6 * across, 2.5 * down + 0.7), layout="constrained")
        places = figure.subplots(down, across, squeeze=False).ravel()
        for axes, one in zip(places, panels, strict=False):
            draw(axes, one)
        for axes in places[len(panels) :]:
            axes.set_visible(False)
        entries: dict[str, Any] = {}
        for axes in figure.axes:
            handles, labels = axes.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
        shown = [label for label in legend if label in entries]
        figure.legend([entries[label] for label in shown], shown, loc="outside lower center", ncols=2, fontsize=8)
    return figure
