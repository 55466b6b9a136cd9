"""The drift over the epochs, drawn from the curves of the remedies' runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gence.experiment.recipe import Recipe
from gence.experiment.store import Store
from gence.paper.figures import Drawing
from gence.paper.panels import panels_figure
from gence.paper.remedies import CE, PLAIN, remedies
from gence.paper.remedies_course import OUT, SettingCourses, read_courses
from gence.paper.remedies_findings import START
from gence.report.names import marks_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME = "remedies-course"

HOW_TO_READ = (
    "A line a run, over the predictions of each epoch. Above the dotted line the marginal counts as out of its place."
)

_LABELS = {
    PLAIN: "plain GenCE",
    "batch-400": "plain GenCE, batch 400",
    "annealed": "anchor rising to 0.1 by the middle",
    START: "anchor 0.1 (batch labels)",
    CE: "CE",
}
_ANCHORED = "gence(anchor=0.1)"
_LOWEST, _HIGHEST = 1e-3, 1e3
_TICKS = (0.001, 0.01, 0.1, 1, 10, 100, 1000)


def course_figure(store: Store, recipe: Recipe | None = None) -> Figure | None:
    """Draw a panel a setting that has records: drift against epoch, a line a run; None if no setting has any."""
    return panels_figure(_settings(store, recipe), _draw, tuple(_LABELS.values()))


def course_drawing(store: Store, recipe: Recipe | None = None) -> Drawing | None:
    """Return the figure with its words; None if no setting has a record."""
    figure = course_figure(store, recipe)
    if figure is None:
        return None
    return Drawing(
        name=_NAME,
        title="The drift over the epochs",
        reading=HOW_TO_READ,
        description="When each line's runs leave their place is in the table of this section.",
        figure=figure,
        wide=True,
    )


def course_block(store: Store) -> str:
    """Return the generated block: the figure and how to read it, if anything can be drawn."""
    if not _settings(store, None):
        return "\nNothing has been measured yet, so there is no figure.\n\n"
    return f"\n![Drift against epochs, a panel a setting](figures/{_NAME}.svg)\n\n{HOW_TO_READ}\n\n"


def _settings(store: Store, recipe: Recipe | None) -> list[SettingCourses]:
    return [one for one in read_courses(remedies(recipe), store) if any(one.by_column[name] for name in _LABELS)]


def _draw(axes: Axes, one: SettingCourses) -> None:
    marks = marks_for((PLAIN, CE, _ANCHORED))
    styles = {
        PLAIN: (marks[PLAIN].light, "-"),
        "batch-400": ("#8c1c3a", ":"),
        "annealed": ("#a03d86", "--"),
        START: (marks[_ANCHORED].light, "-"),
        CE: (marks[CE].light, "-."),
    }
    for name, label in _LABELS.items():
        colour, dash = styles[name]
        for number, course in enumerate(one.by_column[name]):
            # A logarithmic axis has no place for 0; what is held well ends near it.
            drift = [max(value, _LOWEST) for value in course.drift]
            epochs = range(1, len(drift) + 1)
            axes.plot(epochs, drift, color=colour, ls=dash, lw=0.9, alpha=0.8, label=label if number == 0 else None)
    axes.axhline(OUT, color="#5f6670", ls=":", lw=1.4)
    axes.set_yscale("log")
    axes.set_ylim(_LOWEST, _HIGHEST)
    # Powers would be set as formulas, which plain text in a drawing cannot show.
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.minorticks_off()
    axes.grid(axis="y")
    axes.set(xlabel="epoch", ylabel="drift, nats", title=one.title)
