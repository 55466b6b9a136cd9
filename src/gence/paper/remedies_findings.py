"""What the comparison of remedies found, in sentences made from the records by rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gence.metrics.stats import Summary, summarize
from gence.paper.exhibit import Exhibit
from gence.paper.measure import MeasuredRow
from gence.paper.remedies import CE, PLAIN

CLEAR = 2.0
"""Standard errors beyond which a difference is called one."""


@dataclass(frozen=True)
class Difference:
    """A column less plain GenCE, paired by seed.

    Attributes:
        name: the column.
        mean: mean over rows of the rows' mean difference, in the exhibit's unit.
        error: its standard error, from the spread of the paired differences within each row.
        by_row: the difference in each row in which both have all their seeds.
    """

    name: str
    mean: float
    error: float
    by_row: tuple[Summary, ...]

    @property
    def verdict(self) -> int:
        """1 for clearly better than plain GenCE, -1 for clearly worse, 0 for neither."""
        return _verdict(self.mean, self.error)

    def rows(self, verdict: int) -> int:
        """Return in how many rows the same rule gives a verdict."""
        return sum(_verdict(row.mean, row.sem) == verdict for row in self.by_row)


def findings(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> list[str]:
    """Return sentences: how much is recorded, the best remedy by mean rank, what helped and what did not.

    Ranks are taken in rows of which every run is recorded. Differences to plain GenCE are taken wherever both cells
    are complete, so that they can be read before a whole row is.
    """
    counted = [one.cells[column.name] for one in measured for column in exhibit.columns if not column.prefix]
    recorded, wanted = sum(found.recorded for found in counted), sum(found.wanted for found in counted)
    if not recorded:
        return [f"Nothing of this comparison is measured yet: 0 of {wanted} runs are recorded."]
    differences = differences_from_plain(exhibit, measured)
    sentences = [
        f"{recorded} of {wanted} runs are recorded.",
        _ranking_sentence(exhibit, measured, differences),
        *_difference_sentences(exhibit, differences),
    ]
    return [*sentences, *_caution(differences)]


def mean_ranks(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> tuple[dict[str, float], list[MeasuredRow]]:
    """Return each column's mean rank, 1 being the most accurate, and the complete rows it is the mean of.

    Equal means share their ranks' mean. A cell whose runs are recorded but lack the number (a diverged network has no
    offset) is last: leaving it out would reward the failure.
    """
    rows = [one for one in measured if all(found.recorded == found.wanted for found in one.cells.values())]
    if not rows:
        return {}, []
    totals = dict.fromkeys((column.name for column in exhibit.columns), 0.0)
    for one in rows:
        means = {
            name: found.summary.mean if found.complete and found.summary is not None else -math.inf
            for name, found in one.cells.items()
        }
        for name, mean in means.items():
            above = sum(other > mean for other in means.values())
            level = sum(other == mean for other in means.values())
            totals[name] += above + (level + 1) / 2
    return {name: total / len(rows) for name, total in totals.items()}, rows


def differences_from_plain(exhibit: Exhibit, measured: Sequence[MeasuredRow]) -> dict[str, Difference]:
    """Return every column's difference to plain GenCE by name, where both have at least two seeds, all of them."""
    found = {}
    for column in exhibit.columns:
        rows = [
            summarize({seed: number - plain.by_seed[seed] for seed, number in ours.by_seed.items()})
            for ours, plain in ((one.cells[column.name], one.cells[PLAIN]) for one in measured)
            if ours.complete and plain.complete and plain.wanted > 1
        ]
        if column.name != PLAIN and rows:
            found[column.name] = Difference(
                name=column.name,
                mean=sum(row.mean for row in rows) / len(rows),
                error=math.hypot(*(row.sem for row in rows)) / len(rows),
                by_row=tuple(rows),
            )
    return found


def _ranking_sentence(exhibit: Exhibit, measured: Sequence[MeasuredRow], differences: dict[str, Difference]) -> str:
    ranks, rows = mean_ranks(exhibit, measured)
    if not rows:
        return "No setting has all its runs yet, so no remedy is called the best."
    titles = {column.name: column.title for column in exhibit.columns}
    order = sorted((name for name in ranks if name not in (CE, PLAIN)), key=lambda name: ranks[name])
    best, next_best = order[0], order[1]
    sentence = (
        f"By mean rank of accuracy among {len(ranks)} lines, over the {len(rows)} of {len(measured)} settings that "
        f"have all their runs, the best remedy is {titles[best]} ({ranks[best]:.1f}), then {titles[next_best]} "
        f"({ranks[next_best]:.1f}); plain GenCE has {ranks[PLAIN]:.1f}, CE {ranks[CE]:.1f}."
    )
    if best not in differences or differences[best].verdict <= 0:
        return f"{sentence} It is not clearly better than plain GenCE, so these records recommend no remedy."
    return (
        f"{sentence} Against plain GenCE it makes {_points(differences[best])}: these records recommend it"
        f"{'' if len(rows) == len(measured) else ' so far'}. The default stays anchor 0, the paper's loss."
    )


def _difference_sentences(exhibit: Exhibit, differences: dict[str, Difference]) -> list[str]:
    titles = {column.name: column.title for column in exhibit.columns}
    kinds = (
        (1, f"Better than plain GenCE by more than {CLEAR:g} standard errors"),
        (-1, f"Did not help: worse than plain GenCE by more than {CLEAR:g} standard errors"),
        (0, "No clear difference to plain GenCE"),
    )
    sentences = []
    for verdict, head in kinds:
        names = sorted(
            (name for name, one in differences.items() if name != CE and one.verdict == verdict),
            key=lambda name: -differences[name].mean,
        )
        if names:
            sentences.append(f"{head}: {'; '.join(titles[name] for name in names)}.")
    if CE in differences:
        sentences.append(f"CE itself against plain GenCE: {_points(differences[CE])}.")
    return sentences


def _points(one: Difference) -> str:
    points = f"{one.mean:+.2f} ± {one.error:.2f} points"
    if len(one.by_row) == 1:
        return f"{points} in 1 setting"
    return f"{points} over {len(one.by_row)} settings, clearly up in {one.rows(1)} and down in {one.rows(-1)}"


def _verdict(mean: float, error: float) -> int:
    return 0 if abs(mean) <= CLEAR * error else (1 if mean > 0 else -1)


def _caution(differences: dict[str, Difference]) -> list[str]:
    if not differences:
        return []
    return [
        "Differences are paired by seed, ± is their standard error. Over so few seeds two standard errors are a weak "
        "bar, and the best of many is flattered by having been picked."
    ]
