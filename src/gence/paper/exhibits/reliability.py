"""Figure 1: reliability diagrams on CIFAR-10; the figure has no numbers, so what is claimed of it is measured."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gence.lab.report import INK, figure_style, marks_for
from gence.lab.spec import Recipe
from gence.lab.store import Record
from gence.paper.exhibit import COLUMNS, MODEL_TITLES, Column, Exhibit, RunRow, cell
from gence.paper.exhibit_registry import Asked, Entry
from gence.paper.exhibit_table import Drawing
from gence.paper.records import Reader

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 50
"""Predictions, over all seeds, below which a bin of a reliability diagram is not drawn: one alone makes a full bar."""

_CONFIDENT_BINS = 5
_FEWEST_CONFIDENT = 100
_ACROSS = 3  # panels per row, so that their text can be read on a telephone

Bins = Mapping[str, list[float | None]]
"""A record's reliability table: count, confidence and accuracy by bin."""


def reliability(recipe: Recipe | None = None) -> Exhibit:
    """Return the exhibit, under the paper's recipe unless another is given."""
    return Exhibit(
        name="reliability",
        title="Over-confidence in the five most confident of 15 bins",
        where="Figure 1",
        unit="confidence less accuracy, % points (0 is calibrated, above 0 over-confident)",
        label_names=("N", "Network"),
        columns=tuple(column for column in COLUMNS if not column.prefix),
        rows=tuple(
            RunRow(
                name=f"cifar10-{n}-{model}",
                labels=(str(n), MODEL_TITLES[model]),
                base=cell("cifar10", model, n=n, recipe=recipe),
            )
            for model in ("resnet50", "vgg19")
            for n in (5000, 2000)
        ),
        higher_is_better=None,
        number=overconfidence,
        assumptions=(
            "The figure names CIFAR-10 and 15 bins, but neither the size of the training set nor the network; the "
            "CIFAR-10 models of Table 1 are shown. The text claims that the pointwise losses lie below the diagonal "
            "in the high-confidence bins (here: above 0) and GenCE on it (here: 0).",
            "A model with fewer than 100 predictions in these bins has no number: it is not confident.",
        ),
    )


def overconfidence(record: Record) -> float | None:
    """Confidence less accuracy, over the predictions in the most confident bins; None if there are hardly any."""
    bins = record.result.tables.get("reliability")
    if not bins:
        return None
    rows = list(zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True))[-_CONFIDENT_BINS:]
    filled = [(count, confidence - accuracy) for count, confidence, accuracy in rows if count]
    total = sum(count for count, _ in filled)
    return sum(count * gap for count, gap in filled) / total if total >= _FEWEST_CONFIDENT else None


def reliability_drawings(asked: Asked) -> list[Drawing]:
    """Return one drawing per setting that has records."""
    exhibit, reader, drawn = reliability(asked.recipe), Reader(asked.store), []
    for row in exhibit.rows:
        setting = f"N = {row.labels[0]}, {row.labels[1]}"
        bins = {column.name: _bins(row, column, reader) for column in exhibit.columns}
        if any(bins.values()):
            drawn.append(
                Drawing(
                    name=f"reliability-{row.name}",
                    title=f"Reliability, CIFAR-10, {setting}",
                    reading="Bars are the accuracies of 15 bins of confidence, n seeds together; below the dotted line "
                    f"a bin is over-confident. A bin with fewer than {FEWEST} predictions over all seeds is not drawn.",
                    description="The table of this section has the over-confidence in the five most confident bins; "
                    "the single bins are in the records alone.",
                    figure=functools.partial(_figure, setting, exhibit.columns, bins),
                )
            )
    return drawn


def _figure(setting: str, columns: Sequence[Column], bins: Mapping[str, Sequence[Bins]]) -> Figure:
    """Draw accuracy against confidence, one panel per loss that has bins, all seeds together."""
    import matplotlib
    import matplotlib.figure

    drawn = [column for column in columns if bins[column.name]]
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


def _bins(row: RunRow, column: Column, reader: Reader) -> list[Bins]:
    records = [record for spec in row.specs(column) if (record := reader.record(spec)) is not None]
    return [record.result.tables["reliability"] for record in records if "reliability" in record.result.tables]


def _pooled_accuracy(tables: Sequence[Bins]) -> list[float | None]:
    """Return each bin's accuracy over all seeds together; None for a bin with fewer than `FEWEST` predictions."""
    pooled: list[float | None] = []
    for k in range(len(tables[0]["count"])):
        filled = [(t["count"][k] or 0.0, t["accuracy"][k] or 0.0) for t in tables if t["count"][k]]
        total = sum(count for count, _ in filled)
        pooled.append(sum(count * accuracy for count, accuracy in filled) / total if total >= FEWEST else None)
    return pooled


ENTRIES = (
    Entry(
        name="reliability",
        place=6,
        exhibit=reliability,
        in_paper=True,
        drawings=reliability_drawings,
        findings=(
            "The pointwise losses are over-confident in 13 of 15 cells, by 29 points on average. So is GenCE, by 20 "
            "points over 3 cells, where the paper has it on the diagonal.",
        ),
    ),
)
