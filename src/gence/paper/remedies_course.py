"""When the class marginal leaves its place during training, and whether it comes back: from the curves of the runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gence.experiment.recipe import Recipe
from gence.experiment.store import Store
from gence.paper.exhibit import Exhibit
from gence.paper.exhibit import Row as Setting
from gence.paper.measure import Reader
from gence.paper.remedies import CE, PLAIN, remedies
from gence.paper.remedies_findings import START
from gence.report.tables import Cell, Row, Table

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
