"""Figure 2: accuracy against batch size on CIFAR-10, N = 2000; the figure has no numbers, only a profile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gence.lab.report import figure_style, marks_for
from gence.lab.spec import RECIPES, Recipe
from gence.paper.exhibit import MODEL_TITLES, Column, Exhibit, RunRow, cell
from gence.paper.exhibit_registry import Asked, Entry
from gence.paper.exhibit_table import Drawing
from gence.paper.records import MeasuredRow, measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH_SIZES = (25, 50, 100, 200)
_ASIDE = 2**0.07  # between neighbouring losses, so that their error bars do not cover each other


def batch_size(recipe: Recipe | None = None) -> Exhibit:
    """Return the exhibit, under the paper's recipe unless another is given; everything but the batch stays as it is."""
    recipe = RECIPES["paper"] if recipe is None else recipe
    return Exhibit(
        name="batch_size",
        title="Accuracy against batch size (CIFAR-10, N = 2000)",
        where="Figure 2",
        label_names=("Network", "B"),
        rows=tuple(
            RunRow(
                name=f"cifar10-2000-{model}-b{size}",
                labels=(MODEL_TITLES[model], str(size)),
                base=cell("cifar10", model, n=2000, recipe=recipe.replace(batch_size=size)),
            )
            for model in ("vgg19", "resnet50")
            for size in BATCH_SIZES
        ),
        assumptions=(
            "The network is not printed; both are measured. B = 100 are the runs of Table 1. The learning rate is "
            'not scaled with the batch ("everything else held fixed").',
        ),
    )


def batch_size_drawings(asked: Asked) -> list[Drawing]:
    """Return one drawing per network for which some loss has two batch sizes: one alone would be no profile."""
    exhibit, drawn = batch_size(asked.recipe), []
    columns = [column for column in exhibit.columns if not column.prefix]
    measured = measure(exhibit, asked.store)
    for network in dict.fromkeys(row.labels[0] for row in exhibit.rows):
        rows = [one for one in measured if one.row.labels[0] == network]
        if any(sum(one.cells[column.name].summary is not None for one in rows) > 1 for column in columns):
            drawn.append(
                Drawing(
                    name=f"batch-size-{network.lower()}",
                    title=f"Accuracy against batch size, {network}",
                    reading="Means and sample standard deviations over seeds; the losses are drawn a little apart.",
                    description="The numbers are in the table of this section.",
                    figure=functools.partial(_figure, network, columns, rows),
                )
            )
    return drawn


def _figure(network: str, columns: Sequence[Column], measured: Sequence[MeasuredRow]) -> Figure:
    """Draw accuracy against batch size for one network, with standard deviations."""
    import matplotlib
    import matplotlib.figure

    marks = marks_for(list(dict.fromkeys(str(column.loss) for column in columns)))
    with matplotlib.rc_context(figure_style()):
        figure = matplotlib.figure.Figure(figsize=(4.9, 4.0), layout="constrained")
        ax = figure.subplots()
        for i, column in enumerate(columns):
            points = [
                (float(one.row.labels[1]), found.mean, found.std if found.n > 1 else 0.0)
                for one in measured
                if (found := one.cells[column.name].summary) is not None
            ]
            if points:
                mark = marks[str(column.loss)]
                sizes, means, spreads = zip(*points, strict=True)
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


ENTRIES = (Entry(name="batch_size", place=7, exhibit=batch_size, in_paper=True, drawings=batch_size_drawings),)
