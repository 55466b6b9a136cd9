"""A figure that is drawn from records, and the words that go with it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gence.lab.report import figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        legend: labels in the legend's order; those that no panel has are left out.
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
