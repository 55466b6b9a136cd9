"""Figures from matplotlib, made fit to stand inside a page: themed by CSS, named for screen readers, switchable."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from gence.lab.report.style import Mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1b1f24", "#565d66", "#d5d9df", "#fdfefe"
"""Colours of text, lesser text, grid lines and background in a file; on the page each becomes a CSS variable."""

LOSS_GID = "loss:"
"""An artist with the gid "loss:3" belongs to the fourth loss, and can be switched off with it."""

_THEMED = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
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


def as_svg(figure: Figure, salt: str) -> str:
    """Return a figure as SVG text that depends on the figure alone."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # it is laid out now; a second file need not do it again
    return buffer.getvalue()


def as_png(figure: Figure, dpi: int = 150) -> bytes:
    """Return a figure as PNG."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
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
    body = svg[svg.index("<svg") :]
    # matplotlib's own style sheet would apply to the whole page.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(rf'id="{LOSS_GID}(\d+)"', lambda found: f'data-loss="{losses[int(found[1])]}"', body)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", body)
    body = body.replace("xlink:href", "href")
    for colour, variable in _THEMED.items():
        body = body.replace(colour, variable)
    for mark in dict.fromkeys(marks):
        body = body.replace(mark.light, f"var(--c{mark.light[1:]})")
    box = re.search(r'viewBox="([^"]+)"', body)
    width = float(box[1].split()[2]) if box else 300.0
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1] if box else ""}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc" style="max-width:{width * 1.45:.0f}px">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    body = re.sub(r"<svg[^>]*>", lambda _: head, body, count=1, flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "\n", body)
