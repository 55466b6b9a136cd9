"""The page of the paper: every exhibit beside its printed values, in one file that needs nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from gence._version import __version__
from gence.experiment.atomic import replace
from gence.experiment.recipe import named_recipe
from gence.experiment.store import Store
from gence.paper import load_exhibit
from gence.paper.figures import batch_size_figure, reliability_figure
from gence.paper.remedies_figure import anchor_figure
from gence.paper.shown import SHOWN, shown
from gence.report.svg import as_svg, inlined
from gence.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS = {
    "epoch_time": "Seconds per epoch",
    "tuned": "Every loss tuned: accuracy",
    "tuned_ece": "Every loss tuned: calibration",
    "remedies": "Remedies for a drifting marginal: accuracy",
    "remedies_ece": "Remedies: calibration",
    "remedies_drift": "Remedies: the drift itself",
    "open_choices": "The recipe's open choices",
    "costs": "What it cost",
}


@dataclass(frozen=True)
class _Section:
    """One exhibit on the page."""

    name: str
    heading: str
    table: Table
    notes: list[str]
    figures: list[tuple[str, str]]  # title and SVG


def render_page(store: Store, *, recipe: str | None = None) -> str:
    """Return the page's HTML.

    Args:
        store: where the records are.
        recipe: the name of another recipe than the paper's.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("gence.paper"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    sections = []
    for name in SHOWN:
        table, notes = shown(name, store, recipe=recipe)
        # Our own drawings, escaped where they were made: like the style sheet, not data.
        drawn = [(title, Markup(svg)) for title, svg in _figures(name, store, recipe)]
        sections.append(_Section(name, _heading(name), table, notes, list(drawn)))
    css = (files("gence.report") / "templates" / "report.css").read_text(encoding="utf-8")
    return environment.get_template("paper.html").render(
        sections=sections, version=__version__, css=Markup(css), recipe=recipe or "paper"
    )


def write_page(store: Store, out: str | os.PathLike[str], *, recipe: str | None = None) -> Path:
    """Write the page to a file; return where it is."""
    path = Path(out)
    replace(path, render_page(store, recipe=recipe).encode())
    return path


def _heading(name: str) -> str:
    if name in _HEADINGS:
        return _HEADINGS[name]
    exhibit = load_exhibit(name)
    return f"{exhibit.where}: {exhibit.title[0].lower()}{exhibit.title[1:]}"


def _figures(name: str, store: Store, recipe: str | None) -> list[tuple[str, str]]:
    if name not in ("reliability", "batch_size", "remedies"):
        return []
    under = named_recipe(recipe) if recipe else None
    exhibit = load_exhibit(name, under)
    drawn: list[tuple[str, Figure | None]]
    if name == "reliability":
        drawn = [
            (f"Reliability, CIFAR-10, {', '.join(row.labels)}", reliability_figure(row, exhibit.columns, store))
            for row in exhibit.rows
        ]
    elif name == "remedies":
        drawn = [("Accuracy against the strength of the anchor", anchor_figure(store, under))]
    else:
        networks = dict.fromkeys(row.labels[0] for row in exhibit.rows)
        drawn = [
            (f"Accuracy against batch size, {network}", batch_size_figure(exhibit, network, store))
            for network in networks
        ]
    losses = list(dict.fromkeys(str(column.loss) for column in exhibit.columns))
    return [
        (
            title,
            inlined(
                as_svg(figure, f"{name}-{i}"),
                name=f"{name}-{i}",
                title=title,
                description="The numbers are in the table of this section.",
                marks=[],  # printed colours stay: this page has no switches that would need them as variables
                losses=range(len(losses)),
            ),
        )
        for i, (title, figure) in enumerate(drawn)
        if figure is not None
    ]
