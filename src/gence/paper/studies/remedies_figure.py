"""Accuracy against the anchor's strength, drawn from the records of the remedies, and the block that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gence.lab.report import PAPER, marks_for
from gence.lab.spec import Recipe
from gence.lab.store import Store
from gence.paper.figures import Drawing, panels_figure
from gence.paper.measure import Measured, MeasuredRow, measure
from gence.paper.studies.remedies import CE, PLAIN, PRIORS, STRENGTHS, anchor_column, remedies
from gence.paper.studies.remedies_evidence import with_all_offsets

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME = "remedies-anchor"

_CURVES = {prior: f"anchor ({title})" for prior, title in PRIORS.items()}
_LEVELS = {PLAIN: "plain GenCE", "offset": "plain GenCE, offset after training", CE: "CE"}
_DRAWN = (*(anchor_column(strength, prior) for prior in _CURVES for strength in STRENGTHS), *_LEVELS)
_ANCHORED = "gence(anchor=0.1)"
_LEVEL_PLACES = (STRENGTHS[0] / 2.6, STRENGTHS[0] / 2.1, STRENGTHS[0] / 1.7)  # left of the weakest anchor
HOW_TO_READ = (
    "Lines and large marks are means, small dots are seeds (at the left those of the three levels), and a hollow mark "
    "is a mean that lacks seeds."
)
_TRAINING_PRIOR = ("#a03d86", "^", "--")  # colour, marker and line; the other curve has the anchored loss's own


def anchor_figure(store: Store, recipe: Recipe | None = None) -> Figure | None:
    """Draw a panel a setting that has records: accuracy against anchor; plain GenCE, its offset and CE as levels.

    Lines and large marks are means, small dots the seeds (those of the levels at the left), and a hollow mark is a cell
    that lacks seeds. None if no setting has a record.
    """
    measured = [one for one in _measured(store, recipe) if _has_records(one)]
    return panels_figure(measured, _draw, (*_CURVES.values(), *_LEVELS.values()))


def anchor_drawing(store: Store, recipe: Recipe | None = None) -> Drawing | None:
    """Return the figure with its words; None if no setting has a record."""
    figure = anchor_figure(store, recipe)
    if figure is None:
        return None
    return Drawing(
        name=_NAME,
        title="Accuracy against the strength of the anchor",
        reading=HOW_TO_READ,
        description="The means are in the table of this section; the seeds, a dot each, are in the records.",
        figure=figure,
        wide=True,
    )


def figure_block(store: Store) -> str:
    """Return the generated block: the figure, if anything can be drawn, and what it lacks."""
    measured = _measured(store, None)
    lacking = {", ".join(one.row.labels): _lacking(one) for one in measured}
    empty = [", ".join(one.row.labels) for one in measured if not _has_records(one)]
    if len(empty) == len(measured):
        return "\nNothing has been measured yet, so there is no figure.\n\n"
    parts = [f"![Accuracy against the strength of the anchor, a panel a setting](figures/{_NAME}.svg)", HOW_TO_READ]
    missing = [f"{label}: {'; '.join(names)}" for label, names in lacking.items() if names and label not in empty]
    missing += [f"everything of {'; '.join(empty)}"] if empty else []
    if missing:
        parts.append("\n".join(["Missing in the figure:", "", *(f"- {line}" for line in missing)]))
    return "\n" + "\n\n".join(parts) + "\n\n"


def _measured(store: Store, recipe: Recipe | None) -> list[MeasuredRow]:
    exhibit = remedies(recipe)
    return with_all_offsets(measure(exhibit, store, seeds=exhibit.seeds))


def _has_records(one: MeasuredRow) -> bool:
    return any(one.cells[name].summary is not None for name in _DRAWN)


def _lacking(one: MeasuredRow) -> list[str]:
    """Return what the figure would draw and has no number for, the strengths of a prior together."""
    lacking = []
    for prior, title in PRIORS.items():
        strengths = [f"{s:g}" for s in STRENGTHS if one.cells[anchor_column(s, prior)].summary is None]
        if strengths:
            lacking.append(f"anchor {', '.join(strengths)} ({title})")
    return [*lacking, *(label for name, label in _LEVELS.items() if one.cells[name].summary is None)]


def _draw(axes: Axes, one: MeasuredRow) -> None:
    marks = marks_for((PLAIN, CE, _ANCHORED))
    styles = {"batch": (marks[_ANCHORED].light, marks[_ANCHORED].marker, "-"), "train": _TRAINING_PRIOR}
    for prior, label in _CURVES.items():
        cells = [(strength, one.cells[anchor_column(strength, prior)]) for strength in STRENGTHS]
        points = [(strength, found, found.summary.mean) for strength, found in cells if found.summary is not None]
        if points:
            colour, marker, dash = styles[prior]
            # A little apart, so that the marks of the two priors do not cover each other.
            places = [strength * (1.06 if prior == "train" else 1 / 1.06) for strength, _, _ in points]
            axes.plot(
                places, [mean for *_, mean in points], label=label, color=colour, ls=dash, lw=1.2, marker=marker, ms=4
            )
            for place, (_, found, mean) in zip(places, points, strict=True):
                _dots(axes, place, found, colour)
                if found.recorded < found.wanted:
                    axes.plot([place], [mean], color=colour, marker=marker, ms=4, mfc=PAPER)
    levels = zip(_LEVELS.items(), (PLAIN, PLAIN, CE), ("-", ":", "-."), _LEVEL_PLACES, strict=True)
    for (name, label), loss, dash, place in levels:
        found = one.cells[name]
        if found.summary is not None:
            axes.axhline(found.summary.mean, color=marks[loss].light, ls=dash, lw=1.2, label=label)
            _dots(axes, place, found, marks[loss].light)
    axes.set_xscale("log")
    axes.set_xlim(_LEVEL_PLACES[0] / 1.4, STRENGTHS[-1] * 1.5)
    axes.set_xticks(STRENGTHS, [f"{strength:g}" for strength in STRENGTHS])
    axes.minorticks_off()
    axes.set(xlabel="anchor", ylabel="accuracy, %", title=", ".join(one.row.labels))
    axes.grid(axis="y")


def _dots(axes: Axes, place: float, found: Measured, colour: str) -> None:
    seeds = list(found.by_seed.values())
    axes.scatter([place] * len(seeds), seeds, color=colour, s=9, alpha=0.6, linewidths=0, zorder=3)
