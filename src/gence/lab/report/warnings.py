"""What may spoil a comparison, each with what to do about it: from the data before the runs, from records after."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gence.lab.data import first_few
from gence.lab.report.frame import by_seed, diverged_runs, is_frozen, losses_in, ood_sets
from gence.lab.report.style import (
    ACCURACY,
    MARGINAL_KL,
    OFFSET_ACCURACY,
    auroc_of,
    loss_order,
    loss_title,
    reference_title,
)
from gence.lab.spec import LossSpec, RunSpec, small_classes
from gence.lab.store import changed_parts

if TYPE_CHECKING:
    import pandas as pd

FEW_IMAGES = 5
"""Fewer training images than this in a class, and the class's accuracy is a matter of luck."""
DRIFTED_KL = 0.5
"""A marginal this far (in nats) from the prior has lost classes."""
DRIFTED_GAIN = 0.1
"""An offset that gains this much accuracy repairs a drift, whatever the divergence says."""


def data_concerns(
    counts: Sequence[int],
    classes: Sequence[str],
    *,
    batch_size: int,
    losses: Sequence[LossSpec],
    more_labels: bool = False,
) -> list[str]:
    """Return what is worrying about a training set.

    Args:
        counts: training images per class.
        classes: their names.
        batch_size: rows a step.
        losses: the losses to be compared.
        more_labels: whether the data have more labels than were drawn, so that --n can be raised.
    """
    found = []
    few = small_classes(counts, classes, FEW_IMAGES)
    if few:
        remedies = (
            "label more of them, merge or remove these classes, or raise --n"
            if more_labels
            else "label more of them, or merge or remove these classes"
        )
        found.append(
            f"{len(few)} of {len(classes)} classes have fewer than {FEW_IMAGES} training images: {first_few(few)}. "
            f"Their accuracy is very uncertain; {remedies}."
        )
    gence = [loss for loss in losses if loss.name == "gence"]
    free = [loss for loss in gence if not loss.params.get("anchor")]
    if batch_size < len(classes) and gence:
        remedy = 'an anchor: "gence(anchor=0.1)"' if free else "a larger anchor"
        found.append(
            f"The batch has {batch_size} rows and there are {len(classes)} classes: most classes are absent from a "
            f"batch, so GenCE sees a poor marginal. Use --batch-size {2 * len(classes)} or more, or {remedy}."
        )
    if min(batch_size, sum(counts)) < 2 and free:
        found.append("A batch of one row gives GenCE without an anchor no gradient at all. Use --batch-size 2 or more.")
    return found


def unfinished_concerns(
    wanted: Sequence[RunSpec], recorded: Collection[str], failed: Collection[str] = ()
) -> list[str]:
    """Return that a comparison lacks runs, and which: nothing else on a page tells of a loss that has none.

    Args:
        wanted: all runs of the comparison.
        recorded: keys of those that have a record.
        failed: keys of those that failed.
    """
    all_runs, there = Counter(str(spec.loss) for spec in wanted), set(recorded)
    if all(spec.key in there for spec in wanted):
        return []
    done = Counter(str(spec.loss) for spec in wanted if spec.key in there)
    broken = Counter(str(spec.loss) for spec in wanted if spec.key in failed and spec.key not in there)
    losses = sorted(all_runs, key=loss_order)
    each = ", ".join(f"{loss_title(loss)} {done[loss]} of {all_runs[loss]}" for loss in losses)
    sentences = [
        f"This comparison is not finished: {done.total()} of {len(wanted)} runs are there ({each}).",
        "All of this report rests on these runs and may change; a loss without runs is not counted "
        "anywhere, not even in Holm's correction.",
    ]
    if broken:
        each = ", ".join(f"{broken[loss]} of {loss_title(loss)}" for loss in losses if broken[loss])
        sentences.append(f"Runs that failed: {each}; the folder failures/ of the store says why.")
    sentences.append("Rerun the same command to resume; it then writes this report again.")
    return [" ".join(sentences)]


def tuning_concerns(progress: str | None) -> list[str]:
    """Return that losses are not tuned to the end; `progress` says how far they are, None that they are."""
    if progress is None:
        return []
    return [
        f"{progress}: each loss has what was best for it so far, so the losses may not be tuned alike. Rerun "
        "the same command to resume."
    ]


def image_concerns(checksums: Iterable[Mapping[str, str]]) -> list[str]:
    """Return what is worrying about the images of one setting's runs: that they are not the same in all of them.

    Args:
        checksums: those of each run, as its record has them; empty where it has none.

    >>> image_concerns([{"test": "a"}, {}, {"test": "a"}])
    []
    """
    known: dict[str, str] = {}
    changed: dict[str, None] = {}
    for own in checksums:
        changed |= dict.fromkeys(changed_parts(own, known))
        known = {**own, **known}
    if not changed:
        return []
    return [
        f"These runs used different images: {' and '.join(changed)} differ between them, "
        "so their numbers cannot stand side by side. Remove the records of the old images, or run the comparison "
        "again into another store."
    ]


_BEHIND = 0.01  # of accuracy


def reference_concerns(frame: pd.DataFrame, references: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning where the best loss is behind a reference without a network."""
    accuracies: dict[str, list[float]] = {}
    for one in references:
        accuracies.setdefault(one["name"], []).append(one["metrics"]["accuracy"])
    if not accuracies:
        return []
    name, values = max(accuracies.items(), key=lambda pair: statistics.fmean(pair[1]))
    best = max(
        (statistics.fmean(own.values()) for loss in losses_in(frame) if (own := by_seed(frame, loss, ACCURACY.metric))),
        default=0.0,
    )
    behind = statistics.fmean(values) - best
    if behind <= _BEHIND:
        return []
    return [
        f"A simple reference beats every loss, so their differences say little: {reference_title(name)} is "
        f"{100 * behind:.1f} points more accurate than the best loss. "
        + (
            "Use it, tune with more trials (--tune 32), or train for more epochs."
            if is_frozen(frame)
            else "Train for more epochs, with another recipe, or on a pretrained encoder."
        )
    ]


def run_concerns(frame: pd.DataFrame) -> list[str]:
    """Return what is worrying about the runs of one setting: divergence and drifting marginals."""
    found = []
    broken = diverged_runs(frame)
    for loss in losses_in(frame):
        if loss in broken:
            diverged, runs = broken[loss]
            found.append(
                f"{loss_title(loss)}: {diverged} of {runs} runs diverged (the loss became infinite). Lower the "
                'learning rate or add warm-up; --tune 20 (the extra "tune") does both for every loss alike.'
            )
        found += _drift(frame, loss)
    return [*found, *_inverted(frame)]


def _inverted(frame: pd.DataFrame) -> list[str]:
    """Return a warning for each OOD set that is taken for the test set more often than not."""
    found = []
    for name in ood_sets(frame):
        q = auroc_of(name)
        means = {
            loss: statistics.fmean(own.values()) for loss in losses_in(frame) if (own := by_seed(frame, loss, q.metric))
        }
        below = [f"{loss_title(loss)} {q.text(mean)} %" for loss, mean in means.items() if mean < 0.5]
        if below:
            found.append(
                f"On {name} the AUROC is below 50 % ({', '.join(below)}): these losses are more confident about the "
                "out-of-distribution samples than about the test set, so do not reject by confidence there."
            )
    return found


def _drift(frame: pd.DataFrame, loss: str) -> list[str]:
    accuracy = by_seed(frame, loss, ACCURACY.metric)
    offset = by_seed(frame, loss, OFFSET_ACCURACY.metric)
    divergence = by_seed(frame, loss, MARGINAL_KL.metric)
    drifted = [
        seed
        for seed, value in accuracy.items()
        if divergence.get(seed, 0.0) > DRIFTED_KL or offset.get(seed, -math.inf) - value > DRIFTED_GAIN
    ]
    if not drifted:
        return []
    before = sum(accuracy[s] for s in drifted) / len(drifted)
    repaired = [offset[s] for s in drifted if s in offset]
    effect = (
        f" Subtracting the marginal (offset) takes these runs from {ACCURACY.text(before)} to "
        f"{ACCURACY.text(sum(repaired) / len(repaired))} % accuracy."
        if len(repaired) == len(drifted)
        else ""
    )
    spec = LossSpec.parse(loss)
    anchor = spec.params.get("anchor")
    if spec.name != "gence":
        remedy = "Train longer"
    elif anchor:
        remedy = f"Use an anchor larger than {anchor}, train longer"
    else:
        remedy = 'Use an anchor, "gence(anchor=0.1)"'
    return [
        f"{loss_title(loss)}: in {len(drifted)} of {len(accuracy)} runs the predicted marginal drifted away from the "
        f"class distribution.{effect} {remedy}, or fold gence.marginal_offset into the last bias."
    ]
