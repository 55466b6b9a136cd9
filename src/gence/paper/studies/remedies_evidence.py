"""What the comparison of remedies rests on: runs paired by setting and seed, a test over them, collapses and ranks."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gence.lab.report import enumerated
from gence.lab.spec import Recipe
from gence.lab.store import Store
from gence.metrics import holm, smallest_p, summarize, wilcoxon_signed_rank
from gence.paper.exhibit import OFFSET, Exhibit
from gence.paper.measure import Measured, MeasuredRow, Reader, measure
from gence.paper.studies.remedies import BATCH_SIZES, CE, PLAIN, PRIORS, STRENGTHS, N, anchor_column, remedies

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


START = anchor_column(0.1, "batch")
"""What the documentation tells a reader to begin with."""

SCALE_END = anchor_column(1.0, "batch")
"""It has cross-entropy's gradient: the other end of the scale and no remedy."""

_ANCHORS = tuple(anchor_column(strength, prior) for prior in PRIORS for strength in STRENGTHS)
_KINDS = {
    "with plain GenCE": (PLAIN,),
    "with an anchor": (*(name for name in _ANCHORS if name != SCALE_END), "annealed"),
    "without a bias": ("no-bias",),
    "in larger batches": tuple(f"batch-{size}" for size in BATCH_SIZES),
    "with CE": (CE,),
}


@dataclass(frozen=True)
class Choice:
    """What a complete comparison says.

    Attributes:
        best: the remedy with the best mean rank.
        level: the remedies that the pairs do not tell from it.
        recommended: the documented start if it helped and is the best or level with it; else the best, if that helped.
    """

    best: str
    level: tuple[str, ...]
    recommended: str | None


def findings(study: Study) -> list[str]:
    """Return paragraphs: how much is recorded, what helped and what did not, what is recommended, how it was judged."""
    own = [column.name for column in study.exhibit.columns if not column.prefix]
    counted = [one.cells[name] for one in study.accuracy for name in own]
    recorded, wanted = sum(found.recorded for found in counted), sum(found.wanted for found in counted)
    if not recorded:
        return [f"Nothing of this comparison is measured yet: 0 of {wanted} runs are recorded."]
    compared = against(study.accuracy, PLAIN, study.titles)
    found = [_collapse_sentence(study), *_difference_sentences(study, compared)]
    return [
        f"{recorded} of {wanted} runs are recorded.",
        f"What was found: {' '.join(found)}",
        _recommendation(study, compared),
        HOW_JUDGED,
    ]


def headline(study: Study) -> str:
    """Return what the documented start and plain GenCE make against cross-entropy, as Markdown."""
    compared = against(study.accuracy, CE, [START, PLAIN])
    if not compared:
        return "Nothing of the comparison of remedies is measured yet."
    lines = []
    for name, title in ((START, "GenCE with an anchor of 0.1"), (PLAIN, "plain GenCE")):
        if name in compared:
            means = [f"{mean:+.1f} under `{recipe}`" for recipe, mean in _by_recipe(study, name).items()]
            lines.append(f"- **{title}**: {compared[name]} ({compared[name].told}); {enumerated(means)}.")
    return (
        "Accuracy less cross-entropy's, over pairs of runs that share one of "
        f"{len(study.accuracy)} settings (data, network, recipe) with {N} labels and one of {study.exhibit.seeds} "
        "seeds; the recipe is the same for every loss, and none is tuned:\n\n" + "\n".join(lines)
    )


def _by_recipe(study: Study, name: str) -> dict[str, float]:
    """Mean difference to cross-entropy under each recipe that has pairs."""
    found = {
        recipe: against([one for one in study.accuracy if one.row.labels[-1] == recipe], CE, [name])
        for recipe in dict.fromkeys(one.row.labels[-1] for one in study.accuracy)
    }
    return {recipe: evidence[name].mean for recipe, evidence in found.items() if name in evidence}


def choose(study: Study) -> Choice | None:
    """Return what the comparison says once every run of it is recorded, and None before."""
    if len(study.complete_rows()) < len(study.accuracy):
        return None
    ranks = mean_ranks(study.accuracy)
    remedies = [name for name in study.titles if name not in (CE, PLAIN, SCALE_END)]
    best = min(remedies, key=lambda name: ranks[name])
    level = tuple(name for name, one in against(study.accuracy, best, remedies).items() if one.verdict == 0)
    helped = {name for name, one in against(study.accuracy, PLAIN, study.titles).items() if one.verdict > 0}
    choices = [name for name in (START, best) if name in helped and name in (best, *level)]
    return Choice(best, level, choices[0] if choices else None)


def _collapse_sentence(study: Study) -> str:
    counts = {kind: collapses(study.accuracy, study.offset, names) for kind, names in _KINDS.items()}
    parts = [f"{collapsed} of {networks} {kind}" for kind, (collapsed, networks) in counts.items() if networks]
    sentence = (
        f"of the networks {enumerated(parts)} collapsed (below half of what the offset makes of the same network)."
    )
    if study.without_offset:
        sentence += (
            f" No offset could be fitted to {study.without_offset} of plain GenCE's: there it counts as no gain."
        )
    return sentence


def _difference_sentences(study: Study, compared: Mapping[str, Evidence]) -> list[str]:
    remedies = {name: one for name, one in compared.items() if name != CE}
    fewest = fewest_pairs(len(compared))
    few = [name for name, one in remedies.items() if one.verdict == 0 and len(one.differences) < fewest]
    helped = [name for name, one in remedies.items() if one.verdict > 0]
    harmed = [name for name, one in remedies.items() if one.verdict < 0]
    neither = [name for name, one in remedies.items() if one.verdict == 0 and name not in few]
    sentences = []
    if helped:
        sentences.append(f"More accurate than plain GenCE{_range(remedies, helped)}: {_titled(study, helped)}.")
    if neither:
        sentences.append(f"Did not help, as far as can be shown: {_titled(study, neither)}.")
    if harmed:
        sentences.append(f"Less accurate than plain GenCE{_range(remedies, harmed)}: {_titled(study, harmed)}.")
    if few:
        sentences.append(f"Too few pairs to tell, below {fewest}: {_titled(study, few)}.")
    if CE in compared:
        sentences.append(f"CE against plain GenCE: {compared[CE]} ({compared[CE].told}).")
    return sentences


def _recommendation(study: Study, compared: Mapping[str, Evidence]) -> str:
    choice = choose(study)
    if choice is None:
        done = len(study.complete_rows())
        return f"No line is named the best before every setting has all its runs; {done} of {len(study.accuracy)} have."
    ranks = mean_ranks(study.accuracy)
    level = f"; not told from it: {_titled(study, choice.level)}" if choice.level else ""
    sentence = (
        f"By mean rank of accuracy over {len(study.accuracy)} settings the best remedy is {study.titles[choice.best]} "
        f"({ranks[choice.best]:.1f} of {len(ranks)}; plain GenCE {ranks[PLAIN]:.1f}, CE {ranks[CE]:.1f}){level}."
    )
    name = choice.recommended
    if name is None:
        return f"{sentence} It was not shown to be better than plain GenCE: no remedy is recommended."
    why = "the best" if name == choice.best else "the documented start, which is not told from the best"
    to_ce = against(study.accuracy, CE, [name])[name]
    return (
        f"{sentence} Recommended: {study.titles[name]}, {why}. Against plain GenCE it makes {compared[name]}; against "
        f"CE {to_ce} ({to_ce.told}). {_side_effects(study, name)} The argument's own default stays 0, the "
        "paper's loss."
    )


def _side_effects(study: Study, name: str) -> str:
    """A sentence on calibration and drift of the recommended remedy, beside plain GenCE and CE."""
    ece = {line: _mean(study.ece, line) for line in (name, PLAIN, CE)}
    # The offset is fitted until nothing of the drift is left.
    drift = {line: 0.0 if line == OFFSET.name else _mean(study.drift, line) for line in (name, PLAIN, CE)}
    return (
        f"Its calibration error is {ece[name]:.1f} % on average, plain GenCE's {ece[PLAIN]:.1f}, CE's {ece[CE]:.1f}; "
        f"its drift is {drift[name]:.3f} nats, plain GenCE's {drift[PLAIN]:.3f}, CE's {drift[CE]:.3f}."
    )


def _mean(measured: Sequence[MeasuredRow], name: str) -> float:
    numbers = [number for one in measured for number in one.cells[name].by_seed.values()]
    return statistics.fmean(numbers) if numbers else math.nan


def _range(compared: Mapping[str, Evidence], names: Sequence[str]) -> str:
    means = sorted(abs(compared[name].mean) for name in names)
    return f", by {means[0]:.1f} points" if len(means) == 1 else f", by {means[0]:.1f} to {means[-1]:.1f} points"


def _titled(study: Study, names: Iterable[str]) -> str:
    """The titles in the study's order, the anchors of one prior together."""
    chosen = set(names)
    parts = []
    for prior, title in PRIORS.items():
        strengths = [f"{s:g}" for s in STRENGTHS if anchor_column(s, prior) in chosen]
        if strengths:
            parts.append(f"anchor {enumerated(strengths)} ({title})")
    return "; ".join(
        [*parts, *(title for name, title in study.titles.items() if name in chosen and name not in _ANCHORS)]
    )
