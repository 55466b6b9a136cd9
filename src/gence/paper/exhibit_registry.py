"""The registry: everything that has a name in `gence show`, `run`, `tune` and `report paper`, README and docs.

A file in `paper/exhibits`, `paper/studies` or `paper/studies/small` is found by being there: its `ENTRIES` declare what
it shows, and nothing else has to know of it. What several studies share is listed here as `SHARED`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gence.lab.report import Table
from gence.lab.spec import Recipe, RunSpec, SpecError, check_choice, named_recipe
from gence.lab.store import Store
from gence.paper.exhibit import Exhibit
from gence.paper.exhibit_table import Drawing, exhibit_table
from gence.paper.records import is_ours, measure

_FOLDERS = ("gence.paper.exhibits", "gence.paper.studies", "gence.paper.studies.small")
SHARED = ("evidence", "transfer_evidence", "transfer_grid", "transfer_runs")
"""Files of these folders that declare no entries; showing records must not import those of them that load torch."""


@dataclass(frozen=True)
class Asked:
    """What somebody wants to see of an exhibit.

    Attributes:
        store: where the records are.
        rows: patterns of row names; all rows if empty.
        seeds: how many seeds a cell should have; the exhibit's own number if None.
        recipe: another recipe than the exhibit's own.
    """

    store: Store
    rows: Sequence[str] = ()
    seeds: int | None = None
    recipe: Recipe | None = None


View = tuple[Table, list[str]]
"""A table, and the sentences that always go with it."""


@dataclass(frozen=True)
class Timing:
    """What is timed by itself instead of trained as a grid: what that is, and the function that writes the record."""

    what: str
    measure: Callable[[Store, str, bool], Path]


@dataclass(frozen=True)
class Apart:
    """Runs of a study with records in a format of their own: what makes the missing ones, and what lists them.

    Attributes:
        run: (store, patterns of rows, names of losses, seconds or None, where to say what is done).
        list: (store, patterns of rows, names of losses, where to say what is missing).
    """

    run: Callable[[Store, Sequence[str], Sequence[str], float | None, Callable[[str], None]], None]
    list: Callable[[Store, Sequence[str], Sequence[str], Callable[[str], None]], None]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A name of the paper, and all that belongs to it.

    Attributes:
        name: what the command line calls it.
        place: where it stands on the page and in lists, the smallest first.
        heading: its heading on the page; by default where it stands in the paper and its title.
        exhibit: makes its rows and columns, under a recipe or its own.
        in_paper: whether the paper has it: its runs are ordered by how much they tell, and it is part of the costs.
        of: the entry whose runs it shows too; they are asked for by that name.
        view: makes its table and the sentences below; by default the exhibit beside the printed values.
        options: the options that narrow its table.
        findings: sentences on the repository's records, written by hand and held to them by tests; they are shown with
            these records alone.
        drawings: makes its figures, as far as there are records.
        blocks: further generated blocks of the documents, by name.
        specs: lists its runs, where they are not the exhibit's: what is asked for, names of losses -> runs.
        recipes: recipes of its runs that have a name here alone.
        outlook: says what its records have decided or what to do next; printed after its runs.
        timing: how it is measured, if not by runs.
        apart: how its runs are made, where their records have a form of their own.
    """

    name: str
    place: int = 1000
    heading: str = ""
    exhibit: Callable[[Recipe | None], Exhibit] | None = None
    in_paper: bool = False
    of: str = ""
    view: Callable[[Asked], View] | None = None
    options: tuple[str, ...] = ("rows", "seeds", "recipe")
    findings: tuple[str, ...] = ()
    drawings: Callable[[Asked], list[Drawing]] | None = None
    blocks: Mapping[str, Callable[[Store], str]] = field(default_factory=dict)
    specs: Callable[[Asked, Sequence[str]], list[RunSpec]] | None = None
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    outlook: Callable[[Store], str] | None = None
    timing: Timing | None = None
    apart: Apart | None = None

    @property
    def is_grid(self) -> bool:
        """Whether its runs are asked for by its name."""
        return self.specs is not None or (self.exhibit is not None and not self.of)

    @property
    def title(self) -> str:
        """Its heading on the page."""
        if self.heading or self.exhibit is None:
            return self.heading or self.name
        exhibit = self.exhibit(None)
        return f"{exhibit.where}: {exhibit.title[0].lower()}{exhibit.title[1:]}"


def entries() -> dict[str, Entry]:
    """Return everything that has a name, by name, in the order of the page."""
    found: dict[str, Entry] = {}
    for folder in _FOLDERS:
        package = importlib.import_module(folder)
        for file in pkgutil.iter_modules(package.__path__, f"{folder}."):
            if file.ispkg or file.name.rpartition(".")[2] in SHARED:
                continue
            module = importlib.import_module(file.name)
            if not hasattr(module, "ENTRIES"):
                raise ValueError(f"{file.name} declares no ENTRIES; give it some, or list it in {__name__}.SHARED")
            for entry in module.ENTRIES:
                if entry.name in found:
                    raise ValueError(f"two entries are called {entry.name!r}; one of them is in {file.name}: rename it")
                found[entry.name] = entry
    return dict(sorted(found.items(), key=lambda one: one[1].place))


def load_exhibit(name: str, recipe: Recipe | None = None) -> Exhibit:
    """Return an exhibit by name, under its own recipe unless another is given.

    >>> exhibit = load_exhibit("table1")
    >>> len(exhibit.rows), len(exhibit.columns)
    (12, 8)
    """
    made = {entry.name: entry.exhibit for entry in entries().values() if entry.exhibit is not None}
    check_choice("exhibit", name, tuple(made))
    return made[name](recipe)


def paper_exhibits(recipe: Recipe | None = None) -> list[Exhibit]:
    """Return the exhibits of the paper whose cells are runs, in its order."""
    return [entry.exhibit(recipe) for entry in entries().values() if entry.in_paper and entry.exhibit is not None]


def shown(
    name: str, store: Store, *, rows: Sequence[str] = (), seeds: int | None = None, recipe: str | None = None
) -> View:
    """Return the table called `name` and the sentences below it: what was found, what was assumed.

    Args:
        name: a name of `entries`.
        store: where the records are.
        rows: patterns of row names, for exhibits.
        seeds: how many seeds a cell should have; 5 by default, and 3 for the studies.
        recipe: the name of another recipe than the paper's, for exhibits.
    """
    known = entries()
    check_choice("exhibit", name, tuple(known))
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}; expected at least 1")
    entry = known[name]
    asked = Asked(store, rows, seeds, named_recipe(recipe) if recipe else None)
    table, notes = (entry.view or _view_of(entry))(asked)
    whole = not rows and seeds is None and recipe is None
    return table, [*(entry.findings if whole and is_ours(store) else ()), *notes]


def exhibit_view(exhibit: Exhibit, asked: Asked) -> View:
    """Return an exhibit beside its printed values, and what was assumed."""
    table = exhibit_table(exhibit, measure(exhibit, asked.store, rows=asked.rows, seeds=asked.seeds), asked.seeds)
    return table, assumed(exhibit)


def assumed(exhibit: Exhibit) -> list[str]:
    """Return what the paper does not say and was decided here, as it stands below a table."""
    return [f"Assumed: {one}" for one in exhibit.assumptions]


def _view_of(entry: Entry) -> Callable[[Asked], View]:
    if entry.exhibit is None:
        raise TypeError(f"the entry {entry.name!r} has neither exhibit nor view; give it one")
    make = entry.exhibit
    return lambda asked: exhibit_view(make(asked.recipe), asked)


# (data, balanced size, network), most informative first; what is not listed comes after, in its own order.
_FIRST = (
    ("cifar100", 2000, "vgg19"),  # the paper's largest gap
    ("cifar10", 2000, "vgg19"),
    ("cifar10", 2000, "resnet50"),
    ("cifar100", 2000, "resnet50"),
    ("cifar100", 5000, "vgg19"),
    ("cifar10", 5000, "vgg19"),
)
_LAST = (
    ("cifar10", 5000, "resnet50"),
    ("cifar100", 5000, "resnet50"),
    ("mini-imagenet", 2000, "vgg19"),
    ("mini-imagenet", 2000, "resnet50"),
    ("mini-imagenet", 5000, "vgg19"),
    ("mini-imagenet", 5000, "resnet50"),
)
_PAPER_BATCH = 100


def grid_specs(
    names: Sequence[str],
    store: Store,
    *,
    rows: Sequence[str] = (),
    losses: Sequence[str] = (),
    seeds: int | None = None,
    recipe: str | None = None,
) -> list[RunSpec]:
    """Return the runs of several grids, each run once, most informative first; studies follow in their own order.

    Args:
        names: exhibits and studies, such as "table1", "open_choices" or "tuned" (final runs of what was tuned).
        store: where tuned settings are looked up, and which candidates of the search went on.
        rows: patterns of row names, for exhibits.
        losses: column names, for exhibits; losses as they were tuned, for "tuned".
        seeds: how many seeds, from 0; by default what the grid says itself: 5, 3 for a study, 2 for the search.
        recipe: another recipe's name in place of "paper", for exhibits; the one tuning began with, for "tuned".
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}; expected at least 1")
    asked = Asked(store, rows, seeds, named_recipe(recipe) if recipe else None)
    grids = [_grid(name) for name in names]
    exhibits = {
        entry.name: entry.exhibit(asked.recipe) for entry in grids if entry.exhibit is not None and entry.specs is None
    }
    # A row may be one exhibit's and not the next one's; one that nobody has is a slip.
    if len(exhibits) == len(names) > 1:
        for pattern in rows:
            if not any(exhibit.has_row(pattern) for exhibit in exhibits.values()):
                raise ValueError(f"rows: {pattern} matches no row of {', '.join(exhibits)}")
    runs: list[RunSpec] = []
    studied: list[RunSpec] = []
    for entry in grids:
        if entry.specs is not None:
            runs += entry.specs(asked, losses)
            continue
        exhibit = exhibits[entry.name]
        here = [pattern for pattern in rows if len(names) == 1 or exhibit.has_row(pattern)]
        if not rows or here:
            (runs if entry.in_paper else studied).extend(exhibit.specs(rows=here, losses=losses, seeds=seeds))
    return list({spec.key: spec for spec in (*by_priority(runs), *studied)}.values())


def by_priority(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return the runs, each once, in the order in which to do them.

    Table 1 at N = 2000 and VGG-19 at N = 5000 come first, then other batch sizes, ResNet-50 at N = 5000,
    Mini-ImageNet, and the long tails. Within a cell the given order stays.
    """
    return sorted({spec.key: spec for spec in specs}.values(), key=_rank)


def _grid(name: str) -> Entry:
    known = entries()
    if name in known and known[name].timing is not None:
        raise SpecError(f"{name} is not a grid: it is timed alone, with gence run {name}")
    if name in known and known[name].apart is not None:
        raise SpecError(f"{name} keeps its records in another format: run it alone, with gence run {name}")
    grids = [entry.name for entry in known.values() if entry.is_grid or entry.timing]
    check_choice("grid", name, (*grids, "GRID.toml"))
    return known[name]


def _rank(spec: RunSpec) -> int:
    place = (spec.data, spec.subset.n, spec.model)
    if spec.subset.rho is not None:
        return len(_FIRST) + len(_LAST) + 2
    if spec.recipe.batch_size != _PAPER_BATCH:
        return len(_FIRST) + (spec.model != "vgg19")
    if place in _FIRST:
        return _FIRST.index(place)
    return len(_FIRST) + 2 + (_LAST.index(place) if place in _LAST else len(_LAST) + 1)
