"""A figure of panels, one a setting, under which one legend serves all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from gence.report.svg import figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 2

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
    across, down = min(_ACROSS, len(panels)), math.ceil(len(panels) / _ACROSS)
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
