"""What to choose: which loss, raw or calibrated, is best for accuracy, for probabilities and for small sets.

A best mean alone says little: each choice names the losses that are not significantly worse, by paired t-tests over
seeds with Holm's correction, and cross-entropy is recommended where nothing is significantly better than it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gence.lab.report.frame import by_seed, is_frozen, losses_in, never_trained
from gence.lab.report.style import ACCURACY, NLL, Quantity, loss_title
from gence.lab.report.verdict import ALPHA, enumerated
from gence.metrics import PairedDifference, holm, paired_difference, seeds_needed

if TYPE_CHECKING:
    import pandas as pd

CALIBRATED = "calibrated/"
"""What the names of metrics after calibration begin with."""

SET_SIZE = Quantity(metric="set_size/lac90", title="Mean set size", percent=False, higher_is_better=False, digits=2)
AIMS: Mapping[str, Quantity] = {"accuracy": ACCURACY, "probabilities": NLL, "sets": SET_SIZE}
"""What a loss is chosen for. Prediction sets of every loss hold the right class as often as promised (90 %), so the
smallest are the best."""

_MOST_NAMED = 3
_MOST_SEEDS = 30


class Candidate(NamedTuple):
    """A loss, raw or calibrated."""

    loss: str
    calibrated: bool = False

    @property
    def title(self) -> str:
        """How it is printed."""
        return f"{loss_title(self.loss)}, calibrated" if self.calibrated else loss_title(self.loss)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is best for one aim.

    Attributes:
        aim: "accuracy", "probabilities" or "sets".
        quantity: the metric.
        best: the candidate with the best mean.
        means: mean of every candidate that has a number for every seed.
        p: p-value of each other candidate against the best, corrected by Holm; none with fewer than two seeds.
        differences: the best minus each other candidate, seed by seed.
        seeds: how many seeds.
    """

    aim: str
    quantity: Quantity
    best: Candidate
    means: dict[Candidate, float]
    p: dict[Candidate, float]
    differences: dict[Candidate, PairedDifference]
    seeds: int

    def is_worse(self, candidate: Candidate) -> bool:
        """Whether a candidate is significantly worse than the best."""
        return self.p.get(candidate, math.nan) < ALPHA

    @property
    def level(self) -> tuple[Candidate, ...]:
        """The other candidates that are not significantly worse than the best."""
        return tuple(one for one in self.means if one != self.best and not self.is_worse(one))

    def sentence(self) -> str:
        """Who has the best mean, and who is not significantly worse."""
        q = self.quantity
        found = f"For {self.aim}: {self.best.title} has the best mean, {_with_unit(q, self.means[self.best])}"
        found += f" ({q.title}, {_seeds(self.seeds)})"
        if len(self.means) == 1:
            return f"{found}; nothing else was measured."
        if self.seeds < 2:
            return f"{found}; one seed says nothing about chance."
        if not self.level:
            return f"{found}, significantly better than everything else."
        return f"{found}; not significantly worse: {_named(self.level)}."


def choose(frame: pd.DataFrame) -> tuple[Choice, ...]:
    """Return what is best for each aim of which there are numbers.

    Args:
        frame: rows of one setting, as `gence.lab.report.load_rows` and `settings` give them.
    """
    found = (_choice(frame, aim, quantity) for aim, quantity in AIMS.items())
    return tuple(choice for choice in found if choice is not None)


def recommendation(frame: pd.DataFrame) -> str:
    """Return what to use, in two sentences: which loss, and whether to calibrate its probabilities.

    Args:
        frame: rows of one setting.
    """
    choices = {choice.aim: choice for choice in choose(frame)}
    accuracy = choices.get("accuracy")
    if accuracy is None:
        return "No loss has a number for every seed, so none is recommended."
    if accuracy.seeds < 2:
        measured = _with_unit(accuracy.quantity, accuracy.means[accuracy.best])
        return (
            f"One seed cannot show a significant difference: run at least five. So far {accuracy.best.title} is "
            f"the most accurate ({measured})."
        )
    loss, why = _loss_to_use(accuracy, is_frozen(frame))
    probabilities = choices.get("probabilities")
    return f"{why} {_probabilities(probabilities, loss)}" if probabilities is not None else why


def recommended_loss(frame: pd.DataFrame) -> str | None:
    """Return the loss that `recommendation` names, or None where it names none.

    Args:
        frame: rows of one setting.
    """
    accuracy = next((choice for choice in choose(frame) if choice.aim == "accuracy"), None)
    if accuracy is None:
        return None
    return accuracy.best.loss if accuracy.seeds < 2 else _loss_to_use(accuracy, is_frozen(frame))[0]


def next_step(frame: pd.DataFrame, *, behind: bool = False, tuned: bool = False) -> str:
    """Return what to try next, at most two things, in a sentence.

    Args:
        frame: rows of one setting.
        behind: whether every loss is behind a reference without a network.
        tuned: whether the losses were tuned.
    """
    scratch = not frame["model"].str.contains("@").any()
    photographs = scratch and "recipe.flip" in frame and bool(frame["recipe.flip"].all())  # digits are not mirrored
    accuracy = next((choice for choice in choose(frame) if choice.aim == "accuracy"), None)
    ways = []
    if behind:
        ways.append("train for more epochs (--epochs), since every loss is behind a reference")
    if frame["seed"].nunique() < 5:
        ways.append("run five seeds or more (--seeds 5)")
    elif accuracy is not None and accuracy.level:
        needed = _seeds_to_tell(accuracy)
        if needed is not None:
            ways.append(
                f"run about {needed} seeds (--seeds {needed}), which would show an accuracy difference this large"
            )
    if photographs:
        ways.append("start from a pretrained encoder (--model linear@efficientnet_lite0)")
    if scratch and not tuned:
        ways.append("tune every loss alike (--tune 20)")
    ways.append("see what more labels would change (--n 50,100,200)")
    return f"Next: {enumerated(ways[:2])}."


def _seeds_to_tell(choice: Choice) -> int | None:
    """The seeds that would show the best mean's lead over the next as significant, if it is real; None above 30."""
    rival = next((one for one in choice.level if one.loss == "ce" and not one.calibrated), choice.level[0])
    d = choice.differences[rival]
    half = d.std / math.sqrt(2)  # two values with this mean and spread stand for the sample
    if not half > 0:
        return None
    needed = seeds_needed([d.mean - half, d.mean + half], alpha=ALPHA / max(len(choice.differences), 1))
    return needed if needed is not None and choice.seeds < needed <= _MOST_SEEDS else None


def _loss_to_use(choice: Choice, frozen: bool) -> tuple[str, str]:
    """The loss that is recommended for accuracy, and a sentence that says why."""
    q, best = choice.quantity, choice.best
    plain = [one for one in choice.means if not one.calibrated]
    usual = next((one for one in plain if one.loss == "ce"), best)
    measured = _with_unit(q, choice.means[best])
    if len(plain) == 1:
        return best.loss, f"{best.title} alone was run: accuracy {measured} ({_seeds(choice.seeds)})."
    lead = "On these frozen features the loss does not matter for accuracy" if frozen else "No loss is a clear winner"
    if usual == best or math.isclose(choice.means.get(usual, math.nan), choice.means[best], rel_tol=1e-9):
        if frozen and not any(map(choice.is_worse, plain)):
            return (
                usual.loss,
                f"{lead}: use {usual.title}; none has a higher mean ({measured}, {_seeds(choice.seeds)}).",
            )
        return usual.loss, f"Use {usual.title}: no loss is more accurate ({measured}, {_seeds(choice.seeds)})."
    if choice.is_worse(usual):
        gain = q.text(choice.differences[usual].mean, sign=True)
        others = f"; not significantly worse: {_named(choice.level)}" if choice.level else ""
        return best.loss, (
            f"Use {best.title}: its accuracy of {measured} is significantly better than {usual.title}'s ({gain} "
            f"{q.unit}, {_seeds(choice.seeds)}){others}."
        )
    gain = q.text(choice.differences[usual].mean, sign=True) if usual in choice.differences else ""
    return usual.loss, (
        f"{lead}: use {usual.title}, from which the best mean, of {best.title}, does not differ significantly ({gain} "
        f"{q.unit}, {_seeds(choice.seeds)})."
    )


def _probabilities(choice: Choice, loss: str) -> str:
    """A sentence on the probabilities of the recommended loss, raw and calibrated, beside the best."""
    q, raw, calibrated = choice.quantity, Candidate(loss), Candidate(loss, True)
    if raw not in choice.means or calibrated not in choice.means:
        return choice.sentence()
    helped = calibrated == choice.best or choice.means[calibrated] < choice.means[raw]
    own = calibrated if helped else raw
    before, after = q.text(choice.means[raw]), q.text(choice.means[calibrated])
    change = f"NLL {before} raw, {after} calibrated"
    lead = f"Calibrate its probabilities ({change})" if helped else f"Its probabilities need no calibration ({change})"
    if choice.best == own:
        return f"{lead}: no loss has better ones."
    if choice.is_worse(own):
        return f"{lead}; those of {choice.best.title} are significantly better ({q.text(choice.means[choice.best])})."
    return f"{lead}: those of no loss are significantly better."


def _choice(frame: pd.DataFrame, aim: str, quantity: Quantity) -> Choice | None:
    values = _values(frame, quantity)
    if not values:
        return None
    means = {one: sum(own.values()) / len(own) for one, own in values.items()}
    sign = 1 if quantity.higher_is_better else -1
    best = max(means, key=lambda one: sign * means[one])  # the first of equals: raw before calibrated
    seeds = len(values[best])
    others = [one for one in values if one != best]
    differences = {one: paired_difference(values[best], values[one]) for one in others}
    p = holm({one: _p(d) for one, d in differences.items()}) if seeds > 1 else {}
    return Choice(
        aim=aim, quantity=quantity, best=best, means=means, p=p, differences=differences, seeds=seeds,
    )  # fmt: skip


def _values(frame: pd.DataFrame, quantity: Quantity) -> dict[Candidate, dict[int, float]]:
    """A metric by seed, of the candidates that have a number for every seed; calibrated where that changes anything."""
    failed = never_trained(frame)
    found: dict[Candidate, dict[int, float]] = {}
    for loss in losses_in(frame):
        raw = by_seed(frame, loss, quantity.metric)
        calibrated = by_seed(frame, loss, CALIBRATED + quantity.metric)
        if loss not in failed:
            found[Candidate(loss)] = raw
            if calibrated != raw:
                found[Candidate(loss, True)] = calibrated
    most = max((len(own) for own in found.values()), default=0)
    return {one: own for one, own in found.items() if len(own) == most > 0}


def _p(difference: PairedDifference) -> float:
    """The t-test's p-value; the signed-rank test's where all differences are the same, 1 where they are 0."""
    if not math.isnan(difference.t_p):
        return difference.t_p
    return 1.0 if difference.mean == 0 else difference.wilcoxon_p


def _named(candidates: tuple[Candidate, ...]) -> str:
    """Names of a few, and how many more there are; cross-entropy first."""
    first = sorted(candidates, key=lambda one: one.loss != "ce")
    names = [one.title.replace(", calibrated", " (calibrated)") for one in first[:_MOST_NAMED]]
    rest = len(candidates) - len(names)
    return enumerated([*names, f"{rest} more"] if rest else names)


def _with_unit(quantity: Quantity, value: float) -> str:
    return f"{quantity.text(value)} %" if quantity.percent else quantity.text(value)


def _seeds(n: int) -> str:
    return f"{n} {'seed' if n == 1 else 'seeds'}"
