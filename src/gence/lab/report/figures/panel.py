"""One drawing of a report, and what all drawings share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gence.lab.report.frame import Setting, SettingRecords
from gence.lab.report.style import Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 4.4
SMALL = 2.7
"""Inches: the width of a figure with all losses, and of one of a row of small ones. Both are readable on a phone."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing.

    Attributes:
        name: a name for files: small letters, digits and hyphens.
        section: the part of the report it stands in.
        title: what it shows.
        description: what is to be seen, with numbers, for whoever does not see it.
        figure: the drawing.
        loss: the loss it belongs to; None if all are in it.
    """

    name: str
    section: str
    title: str
    description: str
    figure: Figure
    loss: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """What is drawn: a setting, its records, the marks of its losses and the names of its classes, if known."""

    setting: Setting
    gathered: SettingRecords
    marks: dict[str, Mark]
    classes: Sequence[str] = ()

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses in the order in which they are shown."""
        return self.gathered.losses

    def class_name(self, k: int) -> str:
        """Return a class's name, or its number where names are not at hand."""
        return self.classes[k] if k < len(self.classes) else str(k)


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with one set of axes: not pyplot's, which it keeps in memory and may show on a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign, and a minus that is one.

    >>> signed(-0.25, 2)
    '−0.25'
    """
    return f"{value:+.{digits}f}".replace("-", "−")
