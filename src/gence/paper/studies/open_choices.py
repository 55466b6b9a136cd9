"""The choices the paper's recipe leaves open, resolved by evidence from cross-entropy alone.

The recipe names RandAugment, MixUp and CutMix but not their strengths, no initialisation, and does not say whether the
rate warms up. Each candidate sets them; cross-entropy is trained under them on four cells of Table 1, and the candidate
whose accuracies come closest to the printed ones is the recipe called "paper". No other loss has a say in it.

Every candidate is tried on the two cells with N = 2000; the `GO_ON` closest there go on to the two with N = 5000 (more,
if the last of them tie), the others are out; of those that went on, the closest over all four cells is chosen (of
equals, the one listed first). In a cell all are judged on the same seeds, those that each of them has: one may be
enough, and what Table 1 adds for the candidate in use does not count.

The candidates with a warm-up were added when the others had been tried and cross-entropy had been found to learn next
to nothing in its first twenty epochs under all of them.

Distance: the root mean square over the cells of (our mean less the printed mean), in percentage points. Not in units of
the printed standard deviations: over five seeds those are uncertain themselves and differ by a factor of nine between
the four cells, so one cell would decide alone.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gence.lab.report import Cell, Row, Table
from gence.lab.spec import LossSpec, Recipe, RunSpec, SpecError
from gence.lab.store import Store
from gence.paper.exhibit import RunRow
from gence.paper.exhibit_registry import Asked, Entry, View, load_exhibit
from gence.paper.exhibit_table import ABSENT, text_cell

SEEDS = 2
"""Seeds a candidate is judged on by default; the records of the chosen one are part of Table 1."""

CELLS = ("cifar100-2000-vgg19", "cifar10-2000-vgg19", "cifar100-5000-vgg19", "cifar10-5000-vgg19")
"""Rows of Table 1. VGG-19 at both sizes: the cheapest cells, and those where the recipe matters most."""

FIRST = CELLS[:2]
"""The cells every candidate is tried on; the others are for those that go on."""

GO_ON = 4
"""How many candidates go on."""

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
    "half mixed, warm-up 1": _AS_PRINTED.replace(**_MIXED, mix_probability=0.5, warmup_epochs=1),
    "half mixed, warm-up 5": _AS_PRINTED.replace(**_MIXED, mix_probability=0.5, warmup_epochs=5),
    "not mixed, warm-up 1": _AS_PRINTED.replace(warmup_epochs=1),
    "not mixed, warm-up 5": _AS_PRINTED.replace(warmup_epochs=5),
}
"""The settings that are tried, by name."""


@dataclass(frozen=True)
class Judged:
    """How close cross-entropy comes under a candidate.

    Attributes:
        name: the candidate's name.
        recipe: what it is.
        means: our mean accuracy in per cent for each of `CELLS`, over the seeds that all have; None without a record.
        counts: seeds behind each mean.
        first_distance: root mean square difference from the printed values of `FIRST`; NaN unless both have a record.
        distance: likewise over all cells; NaN unless every cell has a record, and for a candidate that is out.
        out: whether `GO_ON` others are closer on `FIRST`; None while any candidate lacks one of these cells.
    """

    name: str
    recipe: Recipe
    means: tuple[float | None, ...]
    counts: tuple[int, ...]
    first_distance: float
    distance: float
    out: bool | None = None


def open_choice_specs(store: Store, *, rows: Sequence[str] = CELLS, seeds: int = SEEDS) -> list[RunSpec]:
    """Return the runs of the search: cross-entropy under each candidate, cell by cell and within a cell seed by seed.

    Beyond `FIRST` these are the candidates that went on, and none while that is not known: ask again when the first
    cells are recorded.

    Args:
        store: where the records are that say which candidates went on.
        rows: the cells, names or patterns that match some of `CELLS`.
        seeds: how many seeds, from 0.
    """
    wanted = [name for name in CELLS if any(fnmatch.fnmatchcase(name, pattern) for pattern in rows or CELLS)]
    if not wanted:
        raise ValueError(f"rows: {', '.join(rows)} matches no cell of the search; its cells are {', '.join(CELLS)}")
    out = {one.name: one.out for one in judge(store)}
    went_on = [recipe for name, recipe in CANDIDATES.items() if out[name] is False]
    return [
        spec
        for row in load_exhibit("table1").selected(wanted)
        for recipes in [CANDIDATES.values() if row.name in FIRST else went_on]
        for runs in zip(*(_runs(row, recipe, seeds) for recipe in recipes), strict=True)
        for spec in runs
    ]


def judge(store: Store) -> list[Judged]:
    """Return how each candidate does by the store's records: the closest first, then the incomplete, then those out."""
    rows = [load_exhibit("table1").selected([name])[0] for name in CELLS]
    first = [_accuracies(store, row, CANDIDATES) for row in rows[: len(FIRST)]]
    firsts = {name: _distance(rows, [cell[name] for cell in first]) for name in CANDIDATES}
    known = not any(map(math.isnan, firsts.values()))
    bar = sorted(firsts.values())[GO_ON - 1]
    out = {name: firsts[name] > bar if known else None for name in CANDIDATES}
    went_on = [name for name in CANDIDATES if not out[name]]
    later = [_accuracies(store, row, went_on) for row in rows[len(FIRST) :]]
    judged = []
    for name, recipe in CANDIDATES.items():
        found = [cell.get(name, ()) for cell in (*first, *later)]
        means = tuple(sum(values) / len(values) if values else None for values in found)
        distance = math.nan if out[name] else _distance(rows, found)
        counts = tuple(map(len, found))
        judged.append(Judged(name, recipe, means, counts, firsts[name], distance, out[name]))
    return sorted(judged, key=lambda one: (bool(one.out), _nan_last(one.distance), _nan_last(one.first_distance)))


def chosen(store: Store) -> Judged | None:
    """Return the candidate that is closest, or None while one that is not out lacks a cell: the search is not over."""
    judged = [one for one in judge(store) if not one.out]
    return None if any(math.isnan(one.distance) for one in judged) else judged[0]


def search_outlook(store: Store) -> str:
    """Return what the search has found, or what to do next."""
    found = chosen(store)
    if found is not None:
        seeds = f"{min(found.counts)} of {SEEDS} seeds"
        return f"Chosen, on cross-entropy alone and {seeds}: {found.name} (distance {found.distance:.2f})."
    if judge(store)[0].out is None:
        lacking, then = "not every candidate has both cells of N = 2000", f", and again for the {GO_ON} closest"
    else:
        lacking, then = "not every candidate that went on has both cells of N = 5000", ""
    return f"The search is not over: {lacking}. Next: gence run open_choices{then}."


def search_table(store: Store) -> Table:
    """Return the search for the recipe's open choices: cross-entropy's accuracy under each candidate, closest first."""
    printed = [load_exhibit("table1").selected([name])[0].printed["ce"].mean for name in CELLS]
    head = ("the paper's cross-entropy", *(f"{mean:.2f}" for mean in printed), ABSENT, ABSENT)
    lines = [Row(cells=tuple(text_cell(text) for text in head))]
    found = chosen(store)
    for one in judge(store):
        best, lacking = found is not None and one.name == found.name, "out" if one.out else "missing"
        texts = [
            lacking if mean is None else f"{mean:.2f} (n = {n})" for mean, n in zip(one.means, one.counts, strict=True)
        ]
        lines.append(
            Row(
                cells=(
                    text_cell(one.name, best=best),
                    *map(text_cell, texts),
                    _distance_cell(one.first_distance, lacking),
                    _distance_cell(one.distance, lacking, best),
                )
            )
        )
    return Table(
        name="open-choices",
        caption="Accuracy of cross-entropy in %, mean over n seeds, under each candidate for what the paper's recipe "
        "leaves open. Distance: root mean square difference from the printed values, percentage points. "
        f"All {len(CANDIDATES)} candidates are tried at N = 2000; the {GO_ON} closest there go on to N = 5000, the "
        "others are out; of those that went on, the closest over all four cells is marked once each has them.",
        columns=("Candidate", *CELLS, "Distance, N = 2000", "Distance, all four"),
        rows=tuple(lines),
    )


def _runs(row: RunRow, recipe: Recipe, seeds: int) -> list[RunSpec]:
    return [row.base.replace(recipe=recipe, loss=LossSpec(name="ce"), seed=seed) for seed in range(seeds)]


def _accuracies(store: Store, row: RunRow, names: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Return the accuracies in per cent of each candidate in a cell, for the seeds that all with a record have."""
    present = store.keys()
    found = {
        name: {
            spec.seed: 100 * store.read(spec.key).result.metrics["accuracy"]
            for spec in _runs(row, CANDIDATES[name], SEEDS)
            if spec.key in present
        }
        for name in names
    }
    shared = set.intersection(*(set(by_seed) for by_seed in found.values() if by_seed), set(range(SEEDS)))
    return {name: tuple(by_seed[seed] for seed in shared if seed in by_seed) for name, by_seed in found.items()}


def _distance(rows: Sequence[RunRow], found: Sequence[Sequence[float]]) -> float:
    """Root mean square difference from the printed means of as many rows as there are cells; NaN if one is empty."""
    if not all(found):
        return math.nan
    off = [sum(cell) / len(cell) - row.printed["ce"].mean for row, cell in zip(rows, found, strict=False)]
    return math.sqrt(sum(value**2 for value in off) / len(off))


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _distance_cell(distance: float, lacking: str, best: bool = False) -> Cell:
    if math.isnan(distance):
        return Cell(text=lacking, value="")
    return Cell(text=f"{distance:.2f}", value=distance, best=best)


def _asked_specs(asked: Asked, losses: Sequence[str]) -> list[RunSpec]:
    if losses or asked.recipe is not None:
        raise SpecError(
            "open_choices runs cross-entropy alone, under every candidate for the recipe; losses and recipe change "
            "nothing there: leave them out"
        )
    return open_choice_specs(asked.store, rows=asked.rows, seeds=asked.seeds or SEEDS)


def _view(asked: Asked) -> View:
    return search_table(asked.store), [search_outlook(asked.store)]


ENTRIES = (
    Entry(
        name="open_choices",
        place=18,
        heading="The recipe's open choices",
        view=_view,
        options=(),
        specs=_asked_specs,
        recipes=CANDIDATES,
        outlook=search_outlook,
    ),
)
