"""When the class marginal leaves its place during training, and whether it comes back: from the curves of the runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gence.lab.report import Cell, Row, Table, marks_for
from gence.lab.spec import Recipe
from gence.lab.store import Store
from gence.paper.exhibit import Exhibit, Row as Setting
from gence.paper.figures import Drawing, panels_figure
from gence.paper.measure import Reader
from gence.paper.studies.remedies import CE, PLAIN, remedies
from gence.paper.studies.remedies_evidence import START

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUT = 1.0
"""Nats of KL(prior || predicted marginal) beyond which a marginal is out of its place.

Ten balanced classes are that far out when about three quarters of the predictions are of one of them.
"""

_TOLD = (PLAIN, START, "annealed", CE)


@dataclass(frozen=True)
class Course:
    """The drift of one run: KL(prior || predicted marginal) over each epoch's predictions, in nats."""

    drift: tuple[float, ...]

    @property
    def epochs_out(self) -> tuple[int, ...]:
        """The epochs, from 1, in which the marginal was out of its place; a drift that is no number counts.

        >>> Course((0.1, 7.0, 0.4)).epochs_out
        (2,)
        """
        return tuple(epoch for epoch, drift in enumerate(self.drift, 1) if not drift <= OUT)

    @property
    def out_at_end(self) -> bool:
        """Whether it was out in the last epoch."""
        return self.epochs_out[-1:] == (len(self.drift),)


@dataclass(frozen=True)
class SettingCourses:
    """The recorded runs of a setting, by the name of the column they belong to."""

    setting: Setting
    by_column: dict[str, list[Course]]

    @property
    def title(self) -> str:
        """What the setting is called."""
        return ", ".join(self.setting.labels)


def read_courses(
    exhibit: Exhibit, store: Store | Reader, *, rows: Sequence[str] = (), seeds: int | None = None
) -> list[SettingCourses]:
    """Read the drift of all recorded runs of a comparison; a setting without any is left out."""
    reader = store if isinstance(store, Reader) else Reader(store)
    seeds = exhibit.seeds if seeds is None else seeds
    found = []
    for row in exhibit.selected(rows):
        courses = {
            column.name: [
                Course(tuple(drift))
                for spec in row.specs(column, seeds)
                if (record := reader.record(spec)) is not None and (drift := record.result.curves.get("marginal_kl"))
            ]
            for column in exhibit.columns
            if not column.prefix  # the offset has no training of its own
        }
        if any(courses.values()):
            found.append(SettingCourses(row, courses))
    return found


def course_shown(
    store: Store, *, rows: Sequence[str] = (), seeds: int | None = None, recipe: Recipe | None = None
) -> tuple[Table, list[str]]:
    """Return the table, a line a remedy over all settings, and a paragraph that says it in words."""
    exhibit = remedies(recipe)
    settings = read_courses(exhibit, store, rows=rows, seeds=seeds)
    titles = {column.name: column.title for column in exhibit.columns if not column.prefix}
    courses = {name: [one for setting in settings for one in setting.by_column[name]] for name in titles}
    lines = [
        Row(cells=(Cell(text=titles[name], value=titles[name]), *_cells(found)))
        for name, found in courses.items()
        if found
    ]
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
    told = [f"with {titles[name]} {_in_words(courses[name])}" for name in _TOLD if courses[name]]
    return table, [f"The marginal left its place {'; '.join(told)}."] if told else []


def _cells(courses: Sequence[Course]) -> list[Cell]:
    out = [one for one in courses if one.epochs_out]
    numbers: list[float | None] = [
        len(courses),
        len(out),
        _median(one.epochs_out[0] for one in out),
        _median(len(one.epochs_out) for one in out),
        sum(one.out_at_end for one in courses),
    ]
    return [Cell(text="–", value="") if n is None else Cell(text=f"{n:g}", value=n) for n in numbers]


def _in_words(courses: Sequence[Course]) -> str:
    out = [one for one in courses if one.epochs_out]
    if not out:
        return f"in none of {len(courses)} runs"
    return (
        f"in {len(out)} of {len(courses)} runs, in each of them by epoch {max(one.epochs_out[0] for one in out)}, for "
        f"{_median(len(one.epochs_out) for one in out):g} of {len(out[0].drift)} epochs (median), and was out at the "
        f"end in {sum(one.out_at_end for one in courses)}"
    )


def _median(numbers: Iterable[float]) -> float | None:
    found = list(numbers)
    return statistics.median(found) if found else None


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
