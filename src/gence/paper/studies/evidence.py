"""What the studies of drift share: runs paired by setting and seed with a test over them, ranks, and drift by epoch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gence.lab.store import Store
from gence.metrics import holm, wilcoxon_signed_rank
from gence.paper.exhibit import Exhibit, RunRow
from gence.paper.records import MeasuredRow, Reader

ALPHA = 0.05
"""A difference is significant below this p-value, which is corrected for the number of comparisons."""

HOW_JUDGED = (
    "A pair is two runs that share a setting and a seed. A difference is significant where the signed-rank test over "
    f"all pairs has p < {ALPHA:g} after Holm's correction over all comparisons; a difference that is not significant "
    "may exist all the same."
)

OUT = 1.0
"""Nats of KL(prior || predicted marginal) beyond which a marginal has drifted.

Ten balanced classes are that far out when about three quarters of the predictions are of one of them.
"""

_ROUNDING = 1e-9
"""Accuracies are shares of the test images; a subtraction leaves no more than this where two are equal."""


@dataclass(frozen=True)
class Evidence:
    """A line less another, over the runs that share a setting and a seed.

    Attributes:
        differences: one per pair, in the exhibit's unit.
        settings: how many settings they are from.
        p: two-sided p-value of the signed-rank test over all pairs, after Holm's correction over the lines compared.
    """

    differences: tuple[float, ...]
    settings: int
    p: float

    @property
    def mean(self) -> float:
        """The mean difference."""
        return statistics.fmean(self.differences)

    @property
    def up(self) -> int:
        """In how many pairs the line is ahead."""
        return sum(one > _ROUNDING for one in self.differences)

    @property
    def verdict(self) -> int:
        """1 for a line that is ahead, -1 for one that is behind, 0 where the pairs do not tell or disagree."""
        median = statistics.median(self.differences)
        return 0 if self.p >= ALPHA or median * self.mean <= 0 else (1 if median > 0 else -1)


def against(measured: Sequence[MeasuredRow], reference: str, names: Iterable[str]) -> dict[str, Evidence]:
    """Compare lines with a reference, as far as they have pairs; the p-values are corrected for their number."""
    pairs = [(name, reference) for name in names if name != reference]
    return {name: evidence for (name, _), evidence in compare_lines(measured, pairs).items()}


def compare_lines(measured: Sequence[MeasuredRow], pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Evidence]:
    """Compare one line with another, for each pair of their names, as far as runs share a setting and a seed.

    The p-values are corrected for the number of comparisons.
    """
    differences: dict[tuple[str, str], tuple[float, ...]] = {}
    settings: dict[tuple[str, str], int] = {}
    for pair in pairs:
        by_row = [
            [found.by_seed[seed] - other.by_seed[seed] for seed in found.by_seed if seed in other.by_seed]
            for found, other in ((one.cells[pair[0]], one.cells[pair[1]]) for one in measured)
        ]
        if any(by_row):
            differences[pair] = tuple(number for row in by_row for number in row)
            settings[pair] = sum(map(bool, by_row))
    p = holm({pair: wilcoxon_signed_rank(found, tolerance=_ROUNDING) for pair, found in differences.items()})
    return {pair: Evidence(found, settings[pair], p[pair]) for pair, found in differences.items()}


def mean_ranks(measured: Sequence[MeasuredRow]) -> dict[str, float]:
    """Return each line's mean rank over rows, 1 being the most accurate; equal means share their ranks' mean.

    >>> mean_ranks([])
    {}
    """
    totals: dict[str, float] = {}
    for one in measured:
        means = {name: found.summary.mean if found.summary else -math.inf for name, found in one.cells.items()}
        for name, mean in means.items():
            above = sum(other > mean for other in means.values())
            level = sum(other == mean for other in means.values())
            totals[name] = totals.get(name, 0.0) + above + (level + 1) / 2
    return {name: total / len(measured) for name, total in totals.items()}


@dataclass(frozen=True)
class Course:
    """The drift of one run: KL(prior || predicted marginal) over each epoch's predictions, in nats."""

    drift: tuple[float, ...]

    @property
    def epochs_out(self) -> tuple[int, ...]:
        """The epochs, from 1, in which the marginal had drifted; a drift of NaN counts.

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

    setting: RunRow
    by_column: dict[str, list[Course]]

    @property
    def title(self) -> str:
        """What the setting is called."""
        return ", ".join(self.setting.labels)


def read_courses(
    exhibit: Exhibit, store: Store | Reader, *, rows: Sequence[str] = (), seeds: int | None = None
) -> list[SettingCourses]:
    """Read the drift of all recorded runs of a comparison; settings without any are skipped."""
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
