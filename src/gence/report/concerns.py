"""What may spoil a comparison, each with what to do about it: from the data before the runs, from records after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gence.report.aggregate import by_seed, losses_in
from gence.report.names import loss_title
from gence.report.quantities import ACCURACY, MARGINAL_KL, OFFSET_ACCURACY

if TYPE_CHECKING:
    import pandas as pd

FEW_IMAGES = 5
"""Fewer training images than this in a class, and the class's accuracy is a matter of luck."""
DRIFTED_KL = 0.5
"""A marginal this far (in nats) from the prior has lost classes."""
DRIFTED_GAIN = 0.1
"""An offset that gains this much accuracy repairs a drift, whatever the divergence says."""


def data_concerns(
    counts: Sequence[int], classes: Sequence[str], *, batch_size: int, losses: Sequence[str]
) -> list[str]:
    """Return what is worrying about a training set.

    Args:
        counts: training images per class.
        classes: their names.
        batch_size: rows a step.
        losses: the losses to be compared.
    """
    found = []
    few = [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < FEW_IMAGES]
    if few:
        shown = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
        found.append(
            f"{len(few)} of {len(classes)} classes have fewer than {FEW_IMAGES} training images: {shown}. Their "
            "accuracy will be a matter of luck; label more of them, merge or leave out these classes, or raise --n."
        )
    if batch_size < len(classes) and any(loss.startswith("gence") for loss in losses):
        found.append(
            f"The batch has {batch_size} rows and there are {len(classes)} classes: most classes are absent from a "
            f"batch, so GenCE sees a poor marginal. Use --batch-size {2 * len(classes)} or more, or an anchor: "
            '"gence(anchor=0.1)".'
        )
    if min(batch_size, sum(counts)) < 2:
        found.append("A batch of one row gives GenCE no gradient at all. Use --batch-size 2 or more.")
    return found


def run_concerns(frame: pd.DataFrame) -> list[str]:
    """Return what is worrying about the runs of one setting: divergence and drifting marginals."""
    found = []
    for loss in losses_in(frame):
        rows = frame[frame["loss"] == loss]
        diverged = int((rows["status"] == "diverged").sum())
        if diverged:
            found.append(
                f"{loss_title(loss)}: {diverged} of {len(rows)} runs diverged (the loss became infinite). Lower the "
                "learning rate or add warm-up; --tune 20 does both for every loss alike."
            )
        found += _drift(frame, loss)
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
    gence = loss.startswith("gence")
    remedy = (
        'Use an anchor, "gence(anchor=0.1)", or fold gence.marginal_offset into the last bias.'
        if gence
        else "Train longer, or fold gence.marginal_offset into the last bias."
    )
    return [
        f"{loss_title(loss)}: in {len(drifted)} of {len(accuracy)} runs the predicted marginal drifted away from the "
        f"class distribution.{effect} {remedy}"
    ]
