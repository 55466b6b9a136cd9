"""What the comparison of remedies found, in sentences made from the records by rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gence.paper.exhibit import OFFSET
from gence.paper.measure import MeasuredRow
from gence.paper.remedies import BATCH_SIZES, CE, PLAIN, PRIORS, STRENGTHS, N, anchor_column
from gence.paper.remedies_evidence import HOW_JUDGED, Evidence, Study, against, collapses, fewest_pairs, mean_ranks
from gence.report.words import enumerated

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
