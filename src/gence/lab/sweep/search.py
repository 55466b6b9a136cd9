"""What is tuned: the ranges of the recipe's scalars and of each loss's own parameters, declared as data.

Runs of a grid that differ only in loss, seed and what tuning changes are one cell.

Every loss searches the same recipe ranges; a loss with parameters of its own searches those too, unless they are
given: `focal` tunes gamma, `focal(gamma=2)` does not. `gence` is the paper's loss, whose anchor is 0;
`gence(anchor=tune)` asks for the anchor to be tuned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gence.lab.spec import PER_RUN_FIELDS, RECIPES, TUNE, LossSpec, RunSpec, SpecError, canonical_json


@dataclass(frozen=True)
class Range:
    """Real numbers between two ends; `log` draws their logarithm evenly."""

    low: float
    high: float
    log: bool = False

    def suggest(self, trial: Any, name: str) -> float:
        """Return a value for an Optuna trial, to four significant digits: more would only be noise in tables."""
        drawn = trial.suggest_float(name, self.low, self.high, log=self.log)
        return min(max(float(f"{drawn:.4g}"), self.low), self.high)


@dataclass(frozen=True)
class OneOf:
    """One of a few values."""

    values: tuple[float, ...]

    def suggest(self, trial: Any, name: str) -> float:
        """Return a value for an Optuna trial."""
        return float(trial.suggest_categorical(name, list(self.values)))


Space = Mapping[str, Range | OneOf]

SGD_SPACE: Space = {"lr": Range(0.005, 0.5, log=True), "weight_decay": Range(1e-5, 1e-2, log=True)}
ADAMW_SPACE: Space = {"lr": Range(1e-4, 1e-2, log=True), "weight_decay": Range(1e-4, 0.5, log=True)}
DECIDED = frozenset({*SGD_SPACE, *ADAMW_SPACE, "warmup_epochs"})
"""Of the recipe, what tuning decides."""

WARMUP_FRACTION = OneOf((0.0, 0.025, 0.1))
"""Warm-up as a fraction of the epochs."""

LOSS_SPACES: Mapping[str, Space] = {
    "generalized_ce": {"q": Range(0.05, 0.95)},
    "focal": {"gamma": Range(0.5, 5.0)},
    "logit_adjusted": {"tau": Range(0.25, 2.0)},
    "supcon": {"temperature": Range(0.03, 0.5, log=True)},
    "mdca": {"beta": Range(0.5, 20.0, log=True)},
    "poly1": {"epsilon": Range(-1.0, 6.0)},
    "mbls": {"alpha": Range(0.01, 1.0, log=True), "margin": Range(0.0, 15.0)},
    "logit_norm": {"tau": Range(0.02, 1.0, log=True)},
    "dual_focal": {"gamma": Range(0.5, 6.0)},
}
"""Parameters that are tuned unless they are given."""

ON_REQUEST: Mapping[str, Space] = {"gence": {"anchor": Range(0.01, 1.0, log=True)}}
"""Parameters that are tuned where their value is `tune`."""

_ANY_LOSS: Space = {"label_smoothing": Range(0.0, 0.3)}


def loss_space(loss: LossSpec) -> dict[str, Range | OneOf]:
    """Return the parameters of a loss that are to be tuned.

    >>> sorted(loss_space(LossSpec.parse("focal"))), sorted(loss_space(LossSpec.parse("focal(gamma=2)")))
    (['gamma'], [])
    >>> sorted(loss_space(LossSpec.parse("gence"))), sorted(loss_space(LossSpec.parse("gence(anchor=tune)")))
    ([], ['anchor'])
    """
    own = LOSS_SPACES.get(loss.name, {})
    known = {**own, **ON_REQUEST.get(loss.name, {}), **_ANY_LOSS}
    space = {name: range_ for name, range_ in own.items() if loss.params.get(name, TUNE) == TUNE}
    for name, value in loss.params.items():
        if value == TUNE:
            if name not in known:
                raise SpecError(f"loss {loss} asks to tune {name!r}; what can be tuned: {', '.join(sorted(known))}")
            space[name] = known[name]
    return space


def suggest_changes(base: RunSpec, loss: LossSpec, trial: Any) -> dict[str, Any]:
    """Return the changes to `base` that an Optuna trial suggests for a loss."""
    recipe_space = ADAMW_SPACE if base.recipe.optimizer == "adamw" else SGD_SPACE
    changes: dict[str, Any] = {f"recipe.{name}": r.suggest(trial, name) for name, r in recipe_space.items()}
    fraction = WARMUP_FRACTION.suggest(trial, "warmup_fraction")
    changes["recipe.warmup_epochs"] = round(fraction * base.recipe.epochs, 3)
    own = {name: r.suggest(trial, f"loss.{name}") for name, r in loss_space(loss).items()}
    fixed = {name: value for name, value in loss.params.items() if value != TUNE}
    changes["loss"] = LossSpec(name=loss.name, params={**fixed, **own})
    return changes


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
