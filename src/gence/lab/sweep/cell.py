"""Cells of a grid: runs that differ only in loss, seed and what tuning changes, and the short name of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gence.lab.spec import PER_RUN_FIELDS, RECIPES, RunSpec, canonical_json
from gence.lab.sweep.search import DECIDED

# A study of the last layer's bias compares it within a cell.
_WITHIN_A_CELL = PER_RUN_FIELDS | {"head_bias"}


def cells(specs: Sequence[RunSpec]) -> dict[str, list[RunSpec]]:
    """Return the runs by the cell they belong to, in order: they differ in loss, seed and what tuning changes."""
    found: dict[str, list[RunSpec]] = {}
    for spec in specs:
        recipe = {name: value for name, value in spec.recipe.to_dict().items() if name not in _WITHIN_A_CELL}
        found.setdefault(spec.cohort_key + canonical_json(recipe), []).append(spec)
    return found


def cell_name(spec: RunSpec) -> str:
    """Return a short name for a run's cell; a batch size that is not the paper's is part of it.

    >>> base = {"data": "cifar10", "model": "vgg19", "recipe": "paper", "subset": 2000, "loss": "ce", "seed": 0}
    >>> cell_name(RunSpec.from_dict(base))
    'cifar10-2000-vgg19'
    """
    size = f"rho{spec.subset.rho:g}" if spec.subset.rho is not None else str(spec.subset.n or "all")
    batch = "" if spec.recipe.batch_size == RECIPES["paper"].batch_size else f"-b{spec.recipe.batch_size}"
    return f"{spec.data}-{size}-{spec.model}{batch}"


def cells_to_tune(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return one run of each cell to begin from: runs that differ in what tuning decides are of one cell.

    Elsewhere a cell has its last layers with and without a bias together; they are tuned apart.
    """
    found: dict[str, RunSpec] = {}
    for spec in specs:
        base = spec.replace(loss="ce", seed=0)
        shared = base.to_dict()
        shared["recipe"] = {name: value for name, value in shared["recipe"].items() if name not in DECIDED}
        found.setdefault(canonical_json(shared), base)
    return list(found.values())
