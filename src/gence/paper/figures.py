"""The paper's two figures, drawn from records, each with what is said of it and what it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gence.lab.report import INK, Mark, figure_style, marks_for
from gence.lab.store import Store
from gence.paper.exhibit import Column, Exhibit, Row
from gence.paper.measure import measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST = 50
"""Predictions, over all seeds, below which a bin of a reliability diagram is not drawn: one alone makes a full bar."""

_ACROSS = 3  # panels a row, so that their text can be read on a telephone
_ASIDE = 2**0.07  # between neighbouring losses, so that their error bars do not cover each other

Bins = Mapping[str, list[float | None]]
"""A record's reliability table: count, confidence and accuracy by bin."""


@dataclass(frozen=True)
class Drawing:
    """A figure, and the words that go with it.

    Attributes:
        name: of its file, without an ending.
        title: what it shows.
        reading: how to read it, a sentence or two.
        description: for who does not see it: where its numbers are.
        figure: the figure itself.
        wide: whether it needs the whole width of a page.
    """

    name: str
    title: str
    reading: str
    description: str
    figure: Figure
    wide: bool = False


def reliability_drawings(exhibit: Exhibit, store: Store) -> tuple[list[Drawing], list[str]]:
    """Return a drawing a setting that has records, and sentences that name what has none."""
    drawn, empty, lacking = [], [], []
    present = store.keys()
    for row in exhibit.rows:
        setting = f"N = {row.labels[0]}, {row.labels[1]}"
        bins = {column.name: _bins(row, column, store, present) for column in exhibit.columns}
        figure = reliability_figure(setting, exhibit.columns, bins)
        if figure is None:
            empty.append(setting)
            continue
        absent = [column.title for column in exhibit.columns if not bins[column.name]]
        lacking += [f"{setting} without {', '.join(absent)}"] if absent else []
        drawn.append(
            Drawing(
                name=f"reliability-{row.name}",
                title=f"Reliability, CIFAR-10, {setting}",
                reading="Bars are the accuracies of 15 bins of confidence, n seeds together; below the dotted line a "
                f"bin is over-confident. A bin with fewer than {FEWEST} predictions over all seeds is left out.",
                description="The table of this section has the over-confidence in the five most confident bins; the "
                "single bins are in the records alone.",
                figure=figure,
            )
        )
    sentences = [f"Without a record, and so without a diagram: {'; '.join(empty)}."] if empty else []
    return drawn, [*sentences, *([f"Drawn in part: {'; '.join(lacking)}."] if lacking else [])]


def reliability_figure(setting: str, columns: Sequence[Column], bins: Mapping[str, Sequence[Bins]]) -> Figure | None:
    """Draw accuracy against confidence, a panel a loss that has bins, all seeds together; None if none has.

    Args:
        setting: the title.
        columns: the losses.
        bins: each column's tables, a seed each.
    """
    import matplotlib
    import matplotlib.figure

    drawn = [column for column in columns if bins[column.name]]
    if not drawn:
        return None
    marks = marks_for([str(column.loss) for column in columns])
    across, down = min(_ACROSS, len(drawn)), math.ceil(len(drawn) / _ACROSS)
    with matplotlib.rc_context(figure_style()):
        # Never narrower than two panels: the words below would not fit.
        figure = matplotlib.figure.Figure(figsize=(1.55 * max(across, 2), 1.6 * down + 0.7), layout="constrained")
        panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
        for ax, column in zip(panels, drawn, strict=False):
            tables = bins[column.name]
            accuracy = _pooled_accuracy(tables)
            filled = [(k / len(accuracy), value) for k, value in enumerate(accuracy) if value is not None]
            colour = marks[str(column.loss)].light
            ax.bar(
                [left for left, _ in filled],
                [value for _, value in filled],
                1 / len(accuracy),
                align="edge",
                facecolor=(colour, 0.35),  # pale, or the dotted line would be lost on it
                edgecolor=colour,
            )
            ax.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
            ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            ax.set_title(f"{column.title} (n = {len(tables)})", fontsize=8)
            ax.tick_params(labelsize=8)
        for ax in panels[len(drawn) :]:
            ax.set_visible(False)
        figure.suptitle(f"CIFAR-10, {setting}", fontsize=10)
        figure.supxlabel(f"confidence\n(without bins of fewer than {FEWEST} predictions)", fontsize=9)
        figure.supylabel("accuracy", fontsize=9)
    return figure


def batch_size_drawings(exhibit: Exhibit, store: Store) -> tuple[list[Drawing], list[str]]:
    """Return a drawing a network that has been measured at two batch sizes, and a sentence that names the others."""
    drawn, empty = [], []
    for network in dict.fromkeys(row.labels[0] for row in exhibit.rows):
        figure = batch_size_figure(exhibit, network, store)
        if figure is None:
            empty.append(network)
            continue
        drawn.append(
            Drawing(
                name=f"batch-size-{network.lower()}",
                title=f"Accuracy against batch size, {network}",
                reading="Means and sample standard deviations over seeds; the losses are drawn a little apart.",
                description="The numbers are in the table of this section.",
                figure=figure,
            )
        )
    sentence = f"Not drawn, because no loss is measured at two batch sizes yet: {', '.join(empty)}."
    return drawn, [sentence] if empty else []


def batch_size_figure(exhibit: Exhibit, network: str, store: Store) -> Figure | None:
    """Draw accuracy against batch size for one network, with standard deviations.

    None until some loss has two batch sizes: one alone would be bars above each other, and no profile.
    """
    import matplotlib
    import matplotlib.figure

    measured = [one for one in measure(exhibit, store) if one.row.labels[0] == network]
    columns = [column for column in exhibit.columns if not column.prefix]
    points = {
        column.name: [
            (float(one.row.labels[1]), found.summary.mean, found.summary.std if found.summary.n > 1 else 0.0)
            for one in measured
            if (found := one.cells[column.name]).summary is not None
        ]
        for column in columns
    }
    if max(map(len, points.values())) < 2:
        return None
    marks = marks_for(list(dict.fromkeys(str(column.loss) for column in columns)))
    with matplotlib.rc_context(figure_style()):
        figure = matplotlib.figure.Figure(figsize=(4.9, 4.0), layout="constrained")
        ax = figure.subplots()
        for i, column in enumerate(columns):
            if points[column.name]:
                mark: Mark = marks[str(column.loss)]
                sizes, means, spreads = zip(*points[column.name], strict=True)
                places = [size * _ASIDE ** (i - (len(columns) - 1) / 2) for size in sizes]
                ax.errorbar(
                    places, means, spreads, label=column.title, color=mark.light, marker=mark.marker, ls=mark.line,
                    capsize=2, ms=4,
                )  # fmt: skip
        ticks = [float(one.row.labels[1]) for one in measured]
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set(xlabel="batch size", ylabel="accuracy, %", title=f"CIFAR-10, N = 2000, {network}")
        ax.grid(axis="y")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _bins(row: Row, column: Column, store: Store, present: set[str]) -> list[Bins]:
    records = [store.read(spec.key) for spec in row.specs(column) if spec.key in present]
    return [record.result.tables["reliability"] for record in records if "reliability" in record.result.tables]


def _pooled_accuracy(tables: Sequence[Bins]) -> list[float | None]:
    """Return each bin's accuracy over all seeds together; None for a bin with fewer than `FEWEST` predictions."""
    pooled: list[float | None] = []
    for k in range(len(tables[0]["count"])):
        filled = [(t["count"][k] or 0.0, t["accuracy"][k] or 0.0) for t in tables if t["count"][k]]
        total = sum(count for count, _ in filled)
        pooled.append(sum(count * accuracy for count, accuracy in filled) / total if total >= FEWEST else None)
    return pooled


_PANELS_ACROSS = 2

Panel = TypeVar("Panel")


def panels_figure(panels: Sequence[Panel], draw: Callable[[Axes, Panel], None], legend: Sequence[str]) -> Figure | None:
    """Draw the panels, two a line; None if there are none.

    Args:
        panels: what each panel shows.
        draw: draws one of them.
        legend: labels in the legend's order; those that no panel has are left out.
    """
    import matplotlib
    import matplotlib.figure

    if not panels:
        return None
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
