"""When the class marginal drifts during training, and whether it comes back: from the curves of the remedies' runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gence.lab.report import Cell, Row, Table, marks_for
from gence.paper.exhibit import ANCHORED
from gence.paper.exhibit_registry import Asked, Entry, View
from gence.paper.exhibit_table import ABSENT, Drawing, panels_drawing, text_cell
from gence.paper.studies.evidence import OUT, Course, SettingCourses, read_courses
from gence.paper.studies.remedies import CE, PLAIN, START, remedies

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def course_view(asked: Asked) -> View:
    """Return the table: one line per remedy, over all settings."""
    exhibit = remedies(asked.recipe)
    settings = read_courses(exhibit, asked.store, rows=asked.rows, seeds=asked.seeds)
    titles = {column.name: column.title for column in exhibit.columns if not column.prefix}
    courses = {name: [one for setting in settings for one in setting.by_column[name]] for name in titles}
    lines = [Row(cells=(text_cell(titles[name]), *_cells(found))) for name, found in courses.items() if found]
    table = Table(
        name="remedies-course",
        caption=f"The drift while the networks train: KL(prior ‖ predicted marginal) above {OUT:g} nat, over the "
        f"predictions of an epoch. Runs of {len(settings)} settings; medians are over the runs that were out at all.",
        columns=(
            "Remedy",
            "runs",
            "out at some time",
            "first in epoch (median)",
            "epochs out (median)",
            "out at the end",
        ),
        rows=tuple(lines),
    )
    return table, []


def _cells(courses: Sequence[Course]) -> list[Cell]:
    out = [one for one in courses if one.epochs_out]
    numbers: list[float | None] = [
        len(courses),
        len(out),
        _median(one.epochs_out[0] for one in out),
        _median(len(one.epochs_out) for one in out),
        sum(one.out_at_end for one in courses),
    ]
    return [Cell(text=ABSENT, value="") if n is None else Cell(text=f"{n:g}", value=n) for n in numbers]


def _median(numbers: Iterable[float]) -> float | None:
    found = list(numbers)
    return statistics.median(found) if found else None


_LABELS = {
    PLAIN: "plain GenCE",
    "batch-400": "plain GenCE, batch 400",
    "annealed": "anchor rising to 0.1 by the middle",
    START: "anchor 0.1 (batch labels)",
    CE: "CE",
}
_LOWEST, _HIGHEST = 1e-3, 1e3
_TICKS = (0.001, 0.01, 0.1, 1, 10, 100, 1000)


def course_drawings(asked: Asked) -> list[Drawing]:
    """Return the drift against the epochs, one panel per setting and one line per run."""
    courses = read_courses(remedies(asked.recipe), asked.store)
    return panels_drawing(
        [one for one in courses if any(one.by_column[name] for name in _LABELS)],
        _draw,
        tuple(_LABELS.values()),
        name="remedies-course",
        title="The drift over the epochs",
        reading="A line a run, over the predictions of each epoch. Above the dotted line the marginal counts as out of "
        "its place.",
        description="When each line's runs leave their place is in the table of this section.",
    )


def _draw(axes: Axes, one: SettingCourses) -> None:
    anchored = str(ANCHORED.loss)
    marks = marks_for((PLAIN, CE, anchored))
    styles = {
        PLAIN: (marks[PLAIN].light, "-"),
        "batch-400": ("#8c1c3a", ":"),
        "annealed": ("#a03d86", "--"),
        START: (marks[anchored].light, "-"),
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


ENTRIES = (
    Entry(
        name="remedies_course",
        place=16,
        heading="Remedies: when the marginal drifts",
        of="remedies",
        view=course_view,
        drawings=course_drawings,
        findings=(
            "With plain GenCE the marginal drifts in 21 of 24 runs, in each of them by epoch 6, and has not come back "
            "at the end in 11. With an anchor of 0.1 to the batch's labels it drifts in 5 runs, by epoch 2, and is "
            "back after 2 epochs (median); with an anchor rising to 0.1 it drifts in 21, and is back after 16. With "
            "cross-entropy it drifts in none.",
        ),
    ),
)
