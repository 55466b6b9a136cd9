"""What the comparison of remedies rests on: runs paired by setting and seed, a test over them, collapses and ranks."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gence.experiment.recipe import Recipe
from gence.experiment.store import Store
from gence.metrics import holm, smallest_p, summarize, wilcoxon_signed_rank
from gence.paper.exhibit import OFFSET, Exhibit
from gence.paper.measure import Measured, MeasuredRow, Reader, measure
from gence.paper.remedies import PLAIN, remedies

ALPHA = 0.05
"""Below this, a p-value (corrected for the number of lines) makes a difference one."""

HOW_JUDGED = (
    "A pair is two runs that share a setting and a seed. A difference is called one where the signed-rank test over "
    f"all pairs has p < {ALPHA:g} after Holm's correction over all comparisons; where none is shown, there may be one "
    "all the same."
)

_ROUNDING = 1e-9
"""Accuracies are shares of the test images; a subtraction leaves no more than this where two are equal."""


@dataclass(frozen=True)
class Study:
    """The comparison as far as it is recorded, rows in the same order in each.

    Attributes:
        exhibit: its rows and columns.
        accuracy: the cells in per cent.
        ece: calibration errors in per cent.
        drift: KL(prior || predicted marginal) in nats; without the offset's column.
        offset: the accuracy of every column's networks after the offset.
        without_offset: plain GenCE's networks to which no offset could be fitted.
    """

    exhibit: Exhibit
    accuracy: list[MeasuredRow]
    ece: list[MeasuredRow]
    drift: list[MeasuredRow]
    offset: list[MeasuredRow]
    without_offset: int

    @property
    def titles(self) -> dict[str, str]:
        """The columns' titles by name."""
        return {column.name: column.title for column in self.exhibit.columns}

    def complete_rows(self) -> list[MeasuredRow]:
        """Return the rows, in accuracy, of which every run is recorded."""
        return [one for one in self.accuracy if all(found.recorded == found.wanted for found in one.cells.values())]


def read_study(
    store: Store, *, rows: Sequence[str] = (), seeds: int | None = None, recipe: Recipe | None = None
) -> Study:
    """Read all that is recorded of the comparison; arguments as for `measure`."""
    exhibit = remedies(recipe)
    seeds = exhibit.seeds if seeds is None else seeds
    reader = Reader(store)
    found = {
        metric: measure(remedies(recipe, metric), reader, rows=rows, seeds=seeds)
        for metric in ("accuracy", "ece", "marginal_kl")
    }
    return Study(
        exhibit=exhibit,
        accuracy=with_all_offsets(found["accuracy"]),
        ece=with_all_offsets(found["ece"]),
        drift=found["marginal_kl"],
        offset=measure(after_offset(exhibit), reader, rows=rows, seeds=seeds),
        without_offset=sum(_without_offset(one) for one in found["accuracy"]),
    )


def after_offset(exhibit: Exhibit) -> Exhibit:
    """Return the exhibit with the same networks after the offset in every column."""
    columns = tuple(dataclasses.replace(column, prefix=OFFSET.prefix) for column in exhibit.columns)
    return dataclasses.replace(exhibit, columns=columns)


def _without_offset(one: MeasuredRow) -> int:
    return one.cells[PLAIN].recorded - len(one.cells[OFFSET.name].by_seed)


def with_all_offsets(measured: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows with plain GenCE's own number where no offset could be fitted: that is what its user has.

    Predictions too sharp for any offset are those that drifted furthest; leaving them out would flatter the offset.
    """
    return [
        dataclasses.replace(one, cells={**one.cells, OFFSET.name: _or_else(one.cells[OFFSET.name], one.cells[PLAIN])})
        for one in measured
    ]


def _or_else(found: Measured, other: Measured) -> Measured:
    numbers = {**other.by_seed, **found.by_seed}
    return dataclasses.replace(found, summary=summarize(numbers) if numbers else None, by_seed=numbers)


@dataclass(frozen=True)
class Evidence:
    """A line less another, over the runs that share a setting and a seed.

    Attributes:
        differences: one a pair, in the exhibit's unit.
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

    @property
    def told(self) -> str:
        """The verdict in words."""
        return {1: "more accurate", -1: "less accurate", 0: "not told apart"}[self.verdict]

    def __str__(self) -> str:
        return f"{self.mean:+.2f} points, up in {self.up} of {len(self.differences)} pairs"


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


def fewest_pairs(lines: int) -> int:
    """Return how many pairs it takes until a difference could be shown at all beside so many others.

    >>> fewest_pairs(1), fewest_pairs(16)
    (6, 10)
    """
    n = 1
    while smallest_p(n) * lines >= ALPHA:
        n += 1
    return n


def collapses(accuracy: Sequence[MeasuredRow], offset: Sequence[MeasuredRow], names: Iterable[str]) -> tuple[int, int]:
    """Return how many networks of some columns collapsed, and of how many, from accuracies before and after the offset.

    A network has collapsed whose accuracy is below half of what the offset makes of it, or to which no offset could be
    fitted: its predictions are too sharp, or not finite.
    """
    names, collapsed, networks = tuple(names), 0, 0
    for before, after in zip(accuracy, offset, strict=True):
        for name in names:
            shifted = after.cells[name].by_seed
            for seed, number in before.cells[name].by_seed.items():
                networks += 1
                collapsed += seed not in shifted or number < shifted[seed] / 2
    return collapsed, networks


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
