"""The choices the paper's recipe leaves open, resolved by evidence from cross-entropy alone.

The recipe names RandAugment, MixUp and CutMix but not their strengths, and no initialisation. Each candidate sets them;
cross-entropy is trained under every candidate on four cells of Table 1, and the candidate whose accuracies come closest
to the printed ones is the recipe called "paper". No other loss is looked at before that is settled.

Distance: the root mean square over the cells of (our mean less the printed mean), in percentage points. Not in units of
the printed standard deviations: over five seeds those are uncertain themselves and differ by a factor of nine between
the four cells, so one cell would decide alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gence.experiment.recipe import Recipe
from gence.experiment.spec import LossSpec, RunSpec
from gence.experiment.store import Store
from gence.paper.exhibit import Row
from gence.paper.table1 import table1

SEEDS = 2
"""Seeds a candidate is judged on by default; the records of the chosen one are part of Table 1."""

CELLS = ("cifar100-2000-vgg19", "cifar10-2000-vgg19", "cifar100-5000-vgg19", "cifar10-5000-vgg19")
"""Rows of Table 1. VGG-19 at both sizes: the cheapest cells, and those where the recipe matters most."""

_AS_PRINTED = Recipe()
_MIXED: dict[str, Any] = {"mixup_alpha": 0.2, "cutmix_alpha": 1.0}

CANDIDATES: dict[str, Recipe] = {
    # The middle, and one step from it in each open direction.
    "half mixed": _AS_PRINTED.replace(**_MIXED, mix_probability=0.5),
    "half mixed, torch init": _AS_PRINTED.replace(**_MIXED, mix_probability=0.5, init="torch"),
    "half mixed, alpha 1": _AS_PRINTED.replace(mixup_alpha=1.0, cutmix_alpha=1.0, mix_probability=0.5),
    "half mixed, RandAugment 1x5": _AS_PRINTED.replace(
        **_MIXED, mix_probability=0.5, randaugment_ops=1, randaugment_magnitude=5
    ),
    "half mixed, RandAugment 2x14": _AS_PRINTED.replace(**_MIXED, mix_probability=0.5, randaugment_magnitude=14),
    "all mixed": _AS_PRINTED.replace(**_MIXED, mix_probability=1.0),
    # Printed calibration errors of cross-entropy are far above what mixed targets usually leave, so hardly any mixing
    # is a candidate too, although the paper lists MixUp and CutMix.
    "tenth mixed": _AS_PRINTED.replace(**_MIXED, mix_probability=0.1),
    "not mixed": _AS_PRINTED,
    "not mixed, torch init": _AS_PRINTED.replace(init="torch"),
}
"""The settings that are tried, by name."""


@dataclass(frozen=True)
class Judged:
    """How close cross-entropy comes under a candidate.

    Attributes:
        name: the candidate's name.
        recipe: what it is.
        means: our mean accuracy in per cent for each of `CELLS`; None where there is no record.
        counts: seeds behind each mean.
        distance: root mean square difference from the printed values; NaN unless every cell has a record.
    """

    name: str
    recipe: Recipe
    means: tuple[float | None, ...]
    counts: tuple[int, ...]
    distance: float


def open_choice_specs(*, rows: Sequence[str] = CELLS, seeds: int = SEEDS) -> list[RunSpec]:
    """Return the runs of the search: cross-entropy under each candidate, cell by cell and within a cell seed by seed.

    Args:
        rows: the cells, names or patterns of rows of Table 1.
        seeds: how many seeds, from 0.
    """
    return [
        spec
        for row in table1().selected(tuple(rows) or CELLS)
        for runs in zip(*(_runs(row, recipe, seeds) for recipe in CANDIDATES.values()), strict=True)
        for spec in runs
    ]


def judge(store: Store) -> list[Judged]:
    """Return how each candidate does by the store's records, the closest first and the incomplete last."""
    present = store.keys()
    rows = [table1().selected([name])[0] for name in CELLS]
    judged = []
    for name, recipe in CANDIDATES.items():
        means: list[float | None] = []
        counts: list[int] = []
        for row in rows:
            keys = [spec.key for spec in _runs(row, recipe, SEEDS) if spec.key in present]
            found = [100 * store.read(key).result.metrics["accuracy"] for key in keys]
            means.append(sum(found) / len(found) if found else None)
            counts.append(len(found))
        judged.append(Judged(name, recipe, tuple(means), tuple(counts), _distance(rows, means)))
    return sorted(judged, key=lambda one: (math.isnan(one.distance), one.distance))


def chosen(store: Store) -> Judged | None:
    """Return the candidate that is closest, or None while any candidate lacks a cell: the search is not over."""
    judged = judge(store)
    return None if any(math.isnan(one.distance) for one in judged) else judged[0]


def _runs(row: Row, recipe: Recipe, seeds: int) -> list[RunSpec]:
    return [row.base.replace(recipe=recipe, loss=LossSpec(name="ce"), seed=seed) for seed in range(seeds)]


def _distance(rows: Sequence[Row], means: Sequence[float | None]) -> float:
    if any(mean is None for mean in means):
        return math.nan
    squares = [(mean - row.printed["ce"].mean) ** 2 for row, mean in zip(rows, means, strict=True) if mean is not None]
    return math.sqrt(sum(squares) / len(squares))
