"""Drawings: what each has beside its figure from matplotlib, and how it is made fit to stand inside a page.

There it is themed by CSS, named for screen readers, and can be switched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from gence.lab.report.frame import Setting, SettingRecords
from gence.lab.report.style import Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, MUTED, GRID, PAPER = "#1b1f24", "#565d66", "#d5d9df", "#fdfefe"
"""Colours of text, lesser text, grid lines and background in a file; on the page each becomes a CSS variable."""

LOSS_GID = "loss:"
"""An artist with the gid "loss:3" belongs to the fourth loss, and can be switched off with it."""

_THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
_SVG = "{http://www.w3.org/2000/svg}"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's font
    "text.parse_math": False,  # a class may be called "$x$"
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": PAPER,
}


def figure_style() -> dict[str, object]:
    """Return matplotlib's settings for all figures."""
    return dict(_STYLE)


def printable(text: str) -> str:
    """Return a text with a mark for each character that no XML may have, and no font draws; file names may have them.

    >>> printable("caf\\N{LATIN SMALL LETTER E WITH ACUTE}\\x01")
    'café�'
    """
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def as_svg(figure: Figure, salt: str) -> str:
    """Return a figure as SVG text that depends on the figure alone."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # it is laid out now; a second file need not do it again
    return printable(buffer.getvalue())


def as_png(figure: Figure) -> bytes:
    """Return a figure as PNG."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()


def inlined(svg: str, *, name: str, title: str, description: str, marks: list[Mark], losses: Sequence[int]) -> str:
    """Return a file's SVG as an element of the page.

    Identifiers get a prefix of their own (many figures share the page), colours become CSS variables, so that dark
    and light need one drawing, and a title and a description stand for the picture where it is not seen.

    Args:
        svg: what `as_svg` returned.
        name: a prefix no other figure of the page has.
        title: its name for screen readers.
        description: what is to be seen.
        marks: the colours to replace.
        losses: the number each loss of the figure has on the page.
    """
    root = ElementTree.fromstring(svg)  # which leaves comments out, where matplotlib repeats every text
    themed = {**_THEMED, **{mark.light: f"var(--c{mark.light[1:]})" for mark in marks}}
    for parent in list(root.iter()):
        parent.tag = parent.tag.rpartition("}")[2]
        for child in list(parent):
            # matplotlib's own style sheet would apply to the whole page.
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)
            elif parent.tag != "text":  # where spaces are seen
                parent.text = child.tail = "\n"
        parent.attrib = dict(_attribute(*item, name, themed, losses) for item in parent.attrib.items())
    box = root.attrib["viewBox"]
    root.attrib = {
        "xmlns": _SVG[1:-1],
        "viewBox": box,
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
        "style": f"max-width:{float(box.split()[2]) * 1.45:.0f}px",
    }
    for place, (kind, text) in enumerate({"title": title, "desc": description}.items()):
        said = ElementTree.Element(kind, {"id": f"{name}-{kind}"})
        said.text = printable(text)
        root.insert(place, said)
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str, themed: dict[str, str], losses: Sequence[int]) -> tuple[str, str]:
    """Return an attribute as it is within a page: its ids, those it refers to, and its colours."""
    key = key.rpartition("}")[2]
    if key == "id":
        if value.startswith(LOSS_GID):
            return "data-loss", str(losses[int(value.removeprefix(LOSS_GID))])
        return key, f"{name}-{value}"
    if key == "href" and value.startswith("#"):  # and no picture
        return key, f"#{name}-{value[1:]}"
    value = value.replace("url(#", f"url(#{name}-")
    for colour, variable in themed.items():
        value = value.replace(colour, variable)
    return key, value


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
        """Return a class's name, or its number where names are not available."""
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
