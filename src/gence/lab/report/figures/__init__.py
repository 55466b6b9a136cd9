"""The figures of a report, drawn once with matplotlib; files and page show the same drawing."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.report.figures.draw import panels
    from gence.lab.report.figures.svg import INK, PAPER, Panel, as_png, as_svg, figure_style, inlined, printable

__getattr__, __dir__, __all__ = front_door(__name__)
