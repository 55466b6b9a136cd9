"""Grids: products and lists of runs, in Python and in TOML.

A TOML grid has a base, axes whose product is taken, single runs to include, and names of its own:

    [base]
    data = "cifar100"
    model = "vgg19"
    recipe = "paper"
    subset = 2000

    [product]
    loss = ["ce", "gence", "gence(anchor=0.1, prior=train)", "mine"]
    seed = [0, 1, 2, 3, 4]
    "recipe.lr" = [0.05, 0.1]

    [[include]]
    loss = { name = "focal", gamma = 3 }
    seed = 0

    [losses]
    mine = { name = "gence", anchor = 0.3 }

    [recipes.longer]
    base = "paper"
    epochs = 500

A name of a group stands for its losses: loss = ["paper", "mdca"]; see `LOSS_GROUPS`.

Several grids in one file are an array of tables, `[[grid]]`, each with its own base, product and include.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gence.lab.spec.fields import SpecError, check_choice, check_keys
from gence.lab.spec.loss import LossSpec, check_numbers, expand_groups
from gence.lab.spec.recipe import RECIPES, Recipe, named_recipe
from gence.lab.spec.run import RunSpec, Subset

_PARTS = ("base", "product", "include")
_NAMES = ("recipes", "subsets", "losses")
# What every loss takes, as torch's cross-entropy does; the loss's own parameters are in the registry.
_SHARED_LOSS_PARAMS = ("label_smoothing", "weight")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A product of axes over a base, and single runs beside it.

    Attributes:
        base: a spec, or the fields all runs share; dotted names reach inside ("recipe.lr").
        product: axes, each a name and its values; every combination is a run, the last axis turning fastest.
        include: further runs, each as changes to the base.

    >>> grid = Grid(base={"data": "digits", "model": "small_cnn", "recipe": "tiny", "subset": 200},
    ...             product={"loss": ["ce", "gence(anchor=0.1)"], "seed": range(5)})
    >>> len(grid.specs())
    10
    """

    base: RunSpec | Mapping[str, Any]
    product: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    include: Sequence[Mapping[str, Any]] = ()

    def specs(self) -> list[RunSpec]:
        """Return the runs of the grid, each once, in order."""
        axes = {name: _axis(name, values) for name, values in self.product.items()}
        points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        if not axes:
            # A grid of includes alone has no product; a bare base is one run.
            points = [] if self.include else [{}]
        runs = [*self._product(points), *map(self._run, self.include)]
        check_losses(runs)
        return list({run.key: run for run in runs}.values())

    def _product(self, points: Sequence[Mapping[str, Any]]) -> list[RunSpec]:
        """Return the runs of a product, made from the first, in which the same fields are set: there may be 100,000."""
        if not points:
            return []
        first = self._run(points[0])
        inside = {} if isinstance(self.base, RunSpec) else {name: v for name, v in self.base.items() if "." in name}
        return [first, *(first.replace(**{**inside, **point}) for point in points[1:])]

    def _run(self, changes: Mapping[str, Any]) -> RunSpec:
        if isinstance(self.base, RunSpec):
            return self.base.replace(**changes)
        values = {**self.base, **changes}
        whole = {name: value for name, value in values.items() if "." not in name}
        inside = {name: value for name, value in values.items() if "." in name}
        return RunSpec.from_dict(whole).replace(**inside)


def read_grid(path: str | os.PathLike[str]) -> list[RunSpec]:
    """Read the runs of a TOML grid; an unknown or misspelt key is an error that names the nearest."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise SpecError(f"there is no grid file {os.fspath(path)!r}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{os.fspath(path)} is not TOML, which is text in UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{os.fspath(path)} is not TOML: {error}") from error
    try:
        return parse_grid(document)
    except SpecError as error:
        raise SpecError(f"{os.fspath(path)}: {error}") from error


def parse_grid(document: Mapping[str, Any]) -> list[RunSpec]:
    """Return the runs of a grid given as the tables of a TOML document."""
    check_keys("the grid", document, (*_PARTS, *_NAMES, "grid"))
    names = _OwnNames.from_tables(document)
    tables = _tables("grid", document.get("grid", []))
    alone = {name: document[name] for name in _PARTS if name in document}
    if alone:
        tables = [alone, *tables]
    if not tables:
        raise SpecError("the grid has no [base] and no [[grid]]: there is nothing to run")
    runs: dict[str, RunSpec] = {}
    for table in tables:
        check_keys("a grid", table, _PARTS)
        grid = Grid(
            base=names.resolved(_table("base", table.get("base", {}))),
            product={
                name: [names.value(name, value) for value in _grouped(name, _axis(name, values), names)]
                for name, values in _table("product", table.get("product", {})).items()
            },
            include=[names.resolved(changes) for changes in _tables("include", table.get("include", []))],
        )
        runs |= {run.key: run for run in grid.specs()}
    return list(runs.values())


def _grouped(name: str, values: Sequence[Any], names: _OwnNames) -> Sequence[Any]:
    """Return an axis with the groups of losses spelt out, where the grid has no loss of that name."""
    if name != "loss":
        return values
    own = [[value] if isinstance(value, str) and value in names.losses else expand_groups([value]) for value in values]
    return list(itertools.chain(*own))


def check_losses(specs: Iterable[RunSpec]) -> None:
    """Raise `SpecError` for a loss, or a parameter of a loss, unknown to the registry or not a number."""
    from gence.losses import LOSSES

    for loss in dict.fromkeys(spec.loss for spec in specs):
        check_choice("loss", loss.name, LOSSES)
        known = (*LOSSES[loss.name].params, *_SHARED_LOSS_PARAMS)
        check_keys(f"loss {loss.name!r}", loss.params, known)
        check_numbers(loss, may_tune=True)


@dataclass(frozen=True)
class _OwnNames:
    """The recipes, subsets and losses a grid file names for itself."""

    recipes: Mapping[str, Recipe]
    subsets: Mapping[str, Subset]
    losses: Mapping[str, LossSpec]

    @classmethod
    def from_tables(cls, document: Mapping[str, Any]) -> _OwnNames:
        from gence.losses import LOSSES

        given = {kind: _table(kind, document.get(kind, {})) for kind in _NAMES}
        # A loss may be named with parameters: ce(label_smoothing=0.1).
        _check_free("recipe", given["recipes"], RECIPES)
        _check_free("subset", given["subsets"], ("all",))
        _check_free("loss", (name.partition("(")[0].strip() for name in given["losses"]), LOSSES)
        return cls(
            recipes={name: _own_recipe(name, given["recipes"]) for name in given["recipes"]},
            subsets={name: Subset.from_value(value) for name, value in given["subsets"].items()},
            losses={name: LossSpec.from_value(value) for name, value in given["losses"].items()},
        )

    def resolved(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.value(name, value) for name, value in changes.items()}

    def value(self, name: str, value: Any) -> Any:
        """Return a field's value with the grid's own names replaced by what they stand for."""
        if name == "recipe" and isinstance(value, str):
            return self.recipes[value] if value in self.recipes else named_recipe(value)
        if name == "recipe" and isinstance(value, Mapping) and str(value.get("base", "")) in self.recipes:
            return self.recipes[value["base"]].replace(**{k: v for k, v in value.items() if k != "base"})
        if name == "loss" and isinstance(value, str):
            return self.losses.get(value, value)
        if name == "subset" and isinstance(value, str) and value != "all":
            if not self.subsets:
                raise SpecError(
                    f'subset is {value!r}; expected a whole number, "all", or a table such as {{ n = 2000 }}'
                )
            check_choice("subset", value, self.subsets)
            return self.subsets[value]
        return value


def _own_recipe(name: str, tables: Mapping[str, Any], above: tuple[str, ...] = ()) -> Recipe:
    """Return a recipe of the file's own, which may be based on another one of them, wherever that stands."""
    if name in above:
        raise SpecError(f"recipes.{name} is based on itself: {' on '.join((*above, name))}")
    table = _table(f"recipes.{name}", tables[name])
    base = table.get("base")
    if isinstance(base, str) and base in tables:
        changes = {field: value for field, value in table.items() if field != "base"}
        return _own_recipe(base, tables, (*above, name)).replace(**changes)
    if base is not None:
        check_choice(f"recipes.{name}.base", base, (*RECIPES, *tables))
    return Recipe.from_dict(table)


def _axis(name: str, values: Any) -> list[Any]:
    """Return the values of one axis of a product."""
    if isinstance(values, Mapping):
        inside = next(iter(values), "lr")
        raise SpecError(
            f"product.{name} is a table, got {dict(values)!r}; to vary what is inside, quote the whole name: "
            f'"{name}.{inside}" = [...]'
        )
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise SpecError(f"product.{name} must be a list of values, got {values!r}; a single value belongs in base")
    listed = list(values)
    if not listed:
        raise SpecError(f"product.{name} is empty: the product would have no runs")
    return listed


def _table(name: str, value: Any) -> Mapping[str, Any]:
    """Return a table of the file, or say how one is written."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} must be one table, written [{name}] with its fields below; got {value!r}")
    return value


def _tables(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    """Return an array of tables of the file, or say how one is written."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) for one in value):
        raise SpecError(f"{name} must be an array of tables, each written [[{name}]]; got {value!r}")
    return value


def _check_free(kind: str, names: Iterable[str], taken: Iterable[str]) -> None:
    """Raise `SpecError` for a name of the grid's own that means something already."""
    for name in names:
        if name in taken:
            raise SpecError(f"the grid's {kind} {name!r} has the name of a built-in one; call it something else")
