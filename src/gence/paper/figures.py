"""The paper's two figures, drawn from records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gence.experiment.store import Store
from gence.paper.exhibit import Column, Exhibit, Row
from gence.paper.measure import measure
from gence.report.names import Mark, marks_for
from gence.report.svg import INK, figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability_figure(row: Row, columns: Sequence[Column], store: Store) -> Figure | None:
    """Draw accuracy against confidence for every loss of a row that has records, all seeds together; None if none has.

    Bars are the bins' accuracies; below the dotted line a bin is over-confident.
    """
    import matplotlib
    import matplotlib.figure

    present = store.keys()
    drawn = []
    for column in columns:
        records = [store.read(spec.key) for spec in row.specs(column) if spec.key in present]
        tables = [record.result.tables["reliability"] for record in records if "reliability" in record.result.tables]
        if tables:
            drawn.append((column, _pooled_accuracy(tables), len(tables)))
    if not drawn:
        return None
    marks = marks_for([str(column.loss) for column in columns])
    with matplotlib.rc_context(figure_style()):
        figure = matplotlib.figure.Figure(figsize=(1.7 * len(drawn), 2.3), layout="constrained")
        axes = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
        for ax, (column, accuracy, n) in zip(axes, drawn, strict=True):
            bins = len(accuracy)
            filled = [(k / bins, value) for k, value in enumerate(accuracy) if value is not None]
            ax.bar(
                [left for left, _ in filled],
                [value for _, value in filled],
                1 / bins,
                align="edge",
                color=marks[str(column.loss)].light,
                alpha=0.8,
            )
            ax.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
            ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", title=f"{column.title} (n = {n})", aspect="equal")
            ax.title.set_fontsize(8)
        axes[0].set_ylabel("accuracy")
    return figure


def batch_size_figure(exhibit: Exhibit, network: str, store: Store) -> Figure | None:
    """Draw accuracy against batch size for one network, with standard deviations; None if nothing is measured."""
    import matplotlib
    import matplotlib.figure

    measured = [one for one in measure(exhibit, store) if one.row.labels[0] == network]
    marks = marks_for(list(dict.fromkeys(str(column.loss) for column in exhibit.columns)))
    with matplotlib.rc_context(figure_style()):
        figure = matplotlib.figure.Figure(figsize=(5.2, 3.4), layout="constrained")
        ax = figure.subplots()
        for column in (column for column in exhibit.columns if not column.prefix):
            points = [
                (float(one.row.labels[1]), found.summary.mean, found.summary.std if found.summary.n > 1 else 0.0)
                for one in measured
                if (found := one.cells[column.name]).summary is not None
            ]
            if points:
                mark: Mark = marks[str(column.loss)]
                sizes, means, spreads = zip(*points, strict=True)
                ax.errorbar(
                    sizes, means, spreads, label=column.title, color=mark.light, marker=mark.marker, ls=mark.line,
                    capsize=2, ms=4,
                )  # fmt: skip
        if not ax.has_data():
            return None
        ticks = [float(one.row.labels[1]) for one in measured]
        ax.set_xscale("log", base=2)
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set(xlabel="batch size", ylabel="accuracy, %", title=f"CIFAR-10, N = 2000, {network}")
        ax.grid(axis="y")
        ax.legend(fontsize=8)
    return figure


def _pooled_accuracy(tables: Sequence[dict[str, list[float | None]]]) -> list[float | None]:
    """Return each bin's accuracy over all seeds together; None for a bin no seed has predictions in."""
    pooled: list[float | None] = []
    for k in range(len(tables[0]["count"])):
        filled = [(t["count"][k] or 0.0, t["accuracy"][k] or 0.0) for t in tables if t["count"][k]]
        total = sum(count for count, _ in filled)
        pooled.append(sum(count * accuracy for count, accuracy in filled) / total if total else None)
    return pooled
