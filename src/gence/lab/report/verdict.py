"""Who wins, by how much, and whether that is significant: in words a reader needs no statistics for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gence.lab.report.frame import best_losses, by_seed, diverged_runs, is_uneven, losses_in, never_trained
from gence.lab.report.style import MAIN, Quantity, loss_title
from gence.metrics import (
    PairedDifference,
    Summary,
    holm,
    paired_difference,
    seeds_needed,
    smallest_p,
    student_critical,
    summarize,
)

if TYPE_CHECKING:
    import pandas as pd


def enumerated(words: Sequence[str]) -> str:
    """Return words as an enumeration.

    >>> enumerated(["accuracy"]), enumerated(["accuracy", "ECE", "AUROC"])
    ('accuracy', 'accuracy, ECE and AUROC')
    """
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


ALPHA = 0.05
"""Family-wise level: of the losses compared with the reference on one metric."""

ALL_DIVERGED = "cannot be judged (all runs diverged)"
"""The outcome where one of two losses has no run that was trained to its end."""

_OUTCOMES = ("better", "worse", "no difference seen", "cannot be judged", ALL_DIVERGED)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One loss against the reference on one metric, seed by seed.

    Attributes:
        loss: the loss.
        difference: loss - reference over the seeds both have, in the metric's own unit; None without a pair.
        p: what the outcome rests on, corrected by Holm over the losses: the paired t-test's p-value, or the signed-rank
            test's where all differences are the same; NaN where nothing can be judged.
        t_p: `p` where it is the t-test's, else NaN.
        wilcoxon_p: signed-rank test, corrected likewise.
        low, high: the t interval of the difference at the level at which Holm's procedure judges this loss, so that it
            excludes 0 where `p` is below `ALPHA`, and only there; NaN where the t-test judges nothing.
        outcome: "better", "worse", "no difference seen", or "cannot be judged" (fewer than 2 pairs, or a loss of which
            every run diverged).
    """

    loss: str
    difference: PairedDifference | None
    p: float
    t_p: float
    wilcoxon_p: float
    outcome: str
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, kw_only=True)
class MetricVerdict:
    """What one metric says.

    Attributes:
        quantity: the metric.
        reference: the loss the others are compared with.
        summaries: mean and spread of each loss that has numbers.
        best: the losses with the best mean, as far as it is printed, of those that have every seed; a loss of which
            every run diverged is not a candidate, and there is no best loss where no two losses have the same seeds.
        comparisons: each other loss against the reference.
        uneven: whether a loss lacks a seed that another has.
    """

    quantity: Quantity
    reference: str
    summaries: dict[str, Summary]
    best: tuple[str, ...]
    comparisons: dict[str, Comparison]
    uneven: bool = False

    def sentence(self) -> str:
        """Return who has the best mean, and what it and GenCE are worth against the reference."""
        if not self.best and not self.uneven:
            return f"{self.quantity.title}: {'all runs diverged' if self.summaries else 'no run has a number'}."
        return " ".join([self._lead(), *self._against_reference()] if self.comparisons else [self._lead()])

    def _lead(self) -> str:
        """Return who has the best mean, or why nobody has it."""
        q = self.quantity
        if not self.best:
            seeds = ", ".join(f"{loss_title(loss)} {summary.n}" for loss, summary in self.summaries.items())
            return f"{q.title}: the losses do not have the same seeds ({seeds}), so none is called the best."
        titles = [loss_title(loss) for loss in self.best]
        summary = self.summaries[self.best[0]]
        unit = " %" if q.percent else ""
        spread = f" ± {q.text(summary.std)}" if summary.n > 1 else ""
        measured = f"{q.text(summary.mean)}{spread}{unit} (n = {summary.n})"
        if not self.comparisons:
            return f"{q.title}: {titles[0]} has the mean {measured}; no other loss was run."
        of = " of the losses that have every seed" if self.uneven else ""
        if len(titles) == 1:
            return f"{q.title}: {titles[0]} has the best mean{of}, {measured}."
        return f"{q.title}: {enumerated(titles)} share the best mean{of}, {q.text(summary.mean)}{unit}."

    def _against_reference(self) -> list[str]:
        """Return what the best losses and GenCE are worth against the reference."""
        q, reference = self.quantity, loss_title(self.reference)
        told = [loss for loss in self.comparisons if loss in self.best or loss.startswith("gence")]
        parts = [f"{loss_title(loss)} against {reference}: {describe(self.comparisons[loss], q)}." for loss in told]
        return parts or [self._others()]

    def _others(self) -> str:
        """Return how many losses are not significantly different from the reference, of those that can be judged."""
        outcomes = [c.outcome for c in self.comparisons.values() if not math.isnan(c.p)]
        if not outcomes:
            one = all(c.difference is not None and c.difference.n == 1 for c in self.comparisons.values())
            return f"{'With one seed none' if one else 'None'} of the other losses can be judged."
        others = f"{len(outcomes)} other {'loss' if len(outcomes) == 1 else 'losses'} that can be judged"
        it = "it" if self.best else loss_title(self.reference)
        return f"Not significantly different from {it}: {outcomes.count('no difference seen')} of {others}."


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """All metrics, and the notes a reader needs beside them."""

    reference: str
    metrics: tuple[MetricVerdict, ...]
    headline: str
    notes: tuple[str, ...]

    def of(self, metric: str) -> MetricVerdict:
        """Return the verdict on one metric."""
        return next(found for found in self.metrics if found.quantity.metric == metric)


def judge(frame: pd.DataFrame, *, quantities: Sequence[Quantity] = MAIN, reference: str | None = None) -> Verdict:
    """Compare the losses of one setting.

    Args:
        frame: rows of one setting.
        quantities: the metrics.
        reference: the loss to compare with; by default "ce", or the first loss where it is absent.
    """
    losses = losses_in(frame)
    if reference is None:
        reference = "ce" if "ce" in losses else losses[0]
    elif reference not in losses:
        raise ValueError(f"reference is {reference!r}; the losses are {', '.join(losses)}")
    metrics = tuple(_judge_metric(frame, losses, reference, quantity) for quantity in quantities)
    return Verdict(
        reference=reference,
        metrics=metrics,
        headline=_headline(metrics, losses, reference) + _diverged(frame),
        notes=_notes(metrics),
    )


def describe(found: Comparison, quantity: Quantity) -> str:
    """Return a comparison in words: the difference, its interval, the corrected p-value and the outcome."""
    d = found.difference
    if found.outcome == ALL_DIVERGED:
        return found.outcome
    if d is None:
        return "no seed in common, cannot be judged"
    size = f"{quantity.text(d.mean, sign=True)}{' ' + quantity.unit if quantity.unit else ''}"
    if d.n < 2:
        return f"{size} (one seed: cannot be judged)"
    if math.isnan(found.t_p):
        return (
            f"{size} (the same with all {d.n} seeds, which a t-test cannot judge; corrected signed-rank "
            f"p = {found.p:.2g}): {found.outcome}"
        )
    interval = f"95 % interval {quantity.text(found.low, sign=True)} to {quantity.text(found.high, sign=True)}"
    return f"{size} ({interval}, {d.n} seeds, p = {found.p:.2g}, both corrected): {found.outcome}"


def _judge_metric(frame: pd.DataFrame, losses: Sequence[str], reference: str, quantity: Quantity) -> MetricVerdict:
    values = {loss: by_seed(frame, loss, quantity.metric) for loss in losses}
    summaries = {loss: summarize(list(v.values())) for loss, v in values.items() if v}
    failed = never_trained(frame)
    differences: dict[str, PairedDifference | None] = {}
    for loss in losses:
        if loss != reference:
            shared = sorted(values[loss].keys() & values[reference].keys())
            differences[loss] = (
                paired_difference({s: values[loss][s] for s in shared}, {s: values[reference][s] for s in shared})
                if shared
                else None
            )
    return MetricVerdict(
        quantity=quantity,
        reference=reference,
        summaries=summaries,
        best=best_losses(frame, quantity),
        comparisons=_corrected(differences, quantity, failed=set(differences) if reference in failed else failed),
        uneven=is_uneven(frame, quantity.metric),
    )


def _corrected(
    differences: dict[str, PairedDifference | None], quantity: Quantity, *, failed: set[str]
) -> dict[str, Comparison]:
    judged = {loss: d for loss, d in differences.items() if d is not None and d.n >= 2 and loss not in failed}
    p = holm({loss: _p(d) for loss, d in judged.items()})
    wilcoxon_p = holm({loss: d.wilcoxon_p for loss, d in judged.items()})
    levels = _levels({loss: _p(d) for loss, d in judged.items()})
    found = {}
    for loss, difference in differences.items():
        low = high = math.nan
        outcome = ALL_DIVERGED if loss in failed else "cannot be judged"
        tested = False
        if loss in judged:
            d = judged[loss]
            better = (d.mean > 0) == quantity.higher_is_better
            outcome = ("better" if better else "worse") if p[loss] < ALPHA else "no difference seen"
            tested = not math.isnan(d.t_low)
            if tested:
                half = student_critical(levels[loss], d.n - 1) * d.std / math.sqrt(d.n)
                low, high = d.mean - half, d.mean + half
        found[loss] = Comparison(
            loss=loss,
            difference=difference,
            p=p.get(loss, math.nan),
            t_p=p[loss] if tested else math.nan,
            wilcoxon_p=wilcoxon_p.get(loss, math.nan),
            outcome=outcome,
            low=low,
            high=high,
        )
    return found


def _levels(p: Mapping[str, float]) -> dict[str, float]:
    """The level at which Holm's procedure judges each: from `ALPHA` / m up to that of the first not significant.

    >>> {loss: round(level, 4) for loss, level in _levels({"a": 0.001, "b": 0.03, "c": 0.04}).items()}
    {'a': 0.0167, 'b': 0.025, 'c': 0.025}
    """
    found, level, stopped = {}, ALPHA, False
    for place, loss in enumerate(sorted(p, key=lambda loss: p[loss])):
        if not stopped:
            level = ALPHA / (len(p) - place)
            stopped = not p[loss] < level
        found[loss] = level
    return found


def _p(difference: PairedDifference) -> float:
    """Return the p-value to judge by: where all differences are the same, the t-test has none."""
    return difference.wilcoxon_p if math.isnan(difference.t_p) else difference.t_p


def _headline(metrics: Sequence[MetricVerdict], losses: Sequence[str], reference: str) -> str:
    """Return the answer to "does GenCE help here?", or to "does any loss?" where GenCE took no part."""
    ours = [loss for loss in losses if loss.startswith("gence") and loss != reference]
    subjects = ours or [loss for loss in losses if loss != reference]
    if not subjects:
        return f"{loss_title(reference)} alone was run: there is nothing to compare it with."
    return " ".join(_answer(metrics, loss, reference) for loss in subjects)


def _diverged(frame: pd.DataFrame) -> str:
    """Return how many runs of which loss diverged, as an addition to the headline."""
    counts = diverged_runs(frame).items()
    found = [f"{diverged} of {runs} of {loss_title(loss)}" for loss, (diverged, runs) in counts]
    return f" Runs that diverged: {', '.join(found)}." if found else ""


def _answer(metrics: Sequence[MetricVerdict], loss: str, reference: str) -> str:
    outcomes: dict[str, list[str]] = {}
    for found in metrics:
        outcomes.setdefault(found.comparisons[loss].outcome, []).append(found.quantity.title)
    ours, theirs = loss_title(loss), loss_title(reference)
    if set(outcomes) == {"no difference seen"}:
        return f"{ours} against {theirs}: no difference seen in {_listed(outcomes['no difference seen'])}."
    parts = [f"{outcome} in {_listed(outcomes[outcome])}" for outcome in _OUTCOMES if outcome in outcomes]
    return f"{ours} against {theirs}: {'; '.join(parts)}."


def _notes(metrics: Sequence[MetricVerdict]) -> tuple[str, ...]:
    pairs = [c for found in metrics for c in found.comparisons.values() if c.difference is not None]
    if not pairs:
        return ()
    n = min(c.difference.n for c in pairs if c.difference is not None)
    losses = max(len(found.comparisons) for found in metrics)
    notes = [
        f"“Better” and “worse” mean a paired t-test over seeds with p < {ALPHA} after Holm's correction for "
        f"{losses} {'loss' if losses == 1 else 'losses'} compared; the t-test assumes roughly normal differences. "
        "“No difference seen” is not proof of equality."
    ]
    if n < 2:
        notes.append("With one seed no difference can be significant: run at least 5 seeds.")
    elif losses * smallest_p(n) >= ALPHA:
        notes.append(
            f"With {n} seeds the signed-rank test (which assumes less) cannot go below p = {smallest_p(n):.3g} for "
            f"one loss, or {min(1.0, losses * smallest_p(n)):.3g} after correction, so it can never reach {ALPHA}: "
            "the t-test decides instead, until there are more seeds."
        )
    return (*notes, *_more_seeds(metrics))


def _more_seeds(metrics: Sequence[MetricVerdict]) -> list[str]:
    """Say how many seeds would be needed for what GenCE seems to do to accuracy, if that is less than a thousand."""
    found = metrics[0]
    notes = []
    for loss, c in found.comparisons.items():
        if not loss.startswith("gence") or c.difference is None or c.outcome != "no difference seen":
            continue
        d = c.difference
        # Two values with this mean and spread stand for the sample: only its mean and std matter.
        half = d.std / math.sqrt(2)
        needed = seeds_needed([d.mean - half, d.mean + half], alpha=ALPHA / len(found.comparisons))
        if needed is not None and d.n < needed < 1000:
            notes.append(
                f"If the true {found.quantity.title.lower()} difference of {loss_title(loss)} were the one measured, "
                f"about {needed} seeds would show it."
            )
    return notes


def _listed(words: Sequence[str]) -> str:
    """Return words as an enumeration; abbreviations keep their capitals."""
    lowered = [word if word.isupper() else word[0].lower() + word[1:] for word in words]
    return enumerated(lowered)
