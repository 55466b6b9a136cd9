"""The runs of exhibits and studies, joined into one list with the most informative first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gence.lab.spec import RunSpec, SpecError, check_choice, named_recipe
from gence.lab.store import Store
from gence.paper.exhibit_registry import Asked, Entry, entries

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
        raise SpecError(f"{name} is no grid: it is timed alone, by gence run {name}")
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
