"""Grids by name: exhibits, the search for the recipe, the tuned comparison, and TOML files, joined into one list."""

from __future__ import annotations

from collections.abc import Sequence

from gence.lab.spec import RunSpec, SpecError, check_choice, named_recipe, read_grid
from gence.lab.store import Store
from gence.paper.exhibit import SEEDS
from gence.paper.registry import EXHIBITS, STUDIES, load_exhibit
from gence.paper.studies import open_choices
from gence.paper.studies.tuned import tuned_specs
from gence.paper.tables import by_priority

GRIDS = (*EXHIBITS, *STUDIES, "open_choices", "tuned")
"""Names of grids; anything that ends in .toml is a file."""


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
        names: exhibits, "open_choices", "tuned" (final runs of what was tuned in the store), or TOML files.
        store: where tuned settings are looked up, and which candidates of the search went on.
        rows: patterns of row names, for exhibits.
        losses: column names, for exhibits; losses as they were tuned, for "tuned".
        seeds: how many seeds, from 0; by default what the grid says itself: 5, 3 for a study, 2 for the search.
        recipe: another recipe's name in place of "paper", for exhibits; the one tuning began with, for "tuned".
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}; expected at least 1")
    runs: list[RunSpec] = []
    studied: list[RunSpec] = []
    under = named_recipe(recipe) if recipe else None
    exhibits = {name: load_exhibit(name, under) for name in names if name in (*EXHIBITS, *STUDIES)}
    # A row may be one exhibit's and not the next one's; one that nobody has is a slip.
    if len(exhibits) == len(names) > 1:
        for pattern in rows:
            if not any(exhibit.has_row(pattern) for exhibit in exhibits.values()):
                raise ValueError(f"rows: {pattern} matches no row of {', '.join(exhibits)}")
    for name in names:
        if name.endswith(".toml"):
            given = {"rows": rows, "losses": losses, "seeds": seeds, "recipe": recipe}
            if useless := [option for option, value in given.items() if value]:
                options = " and ".join(useless)
                raise SpecError(
                    f"{name} is a file and says itself what it runs; leave out {options}, or change the file"
                )
            runs += read_grid(name)
            continue
        if name == "epoch_time":
            raise SpecError("epoch_time is no grid: it is timed alone, by measure_epoch_time or gence run epoch_time")
        check_choice("grid", name, (*GRIDS, "epoch_time", "GRID.toml"))
        if name == "open_choices":
            if losses or recipe:
                raise SpecError(
                    "open_choices runs cross-entropy alone, under every candidate for the recipe; losses and recipe "
                    "change nothing there: leave them out"
                )
            runs += open_choices.open_choice_specs(
                store, rows=tuple(rows) or open_choices.CELLS, seeds=seeds or open_choices.SEEDS
            )
        elif name == "tuned":
            runs += tuned_specs(store, rows=rows, losses=losses, seeds=seeds or SEEDS, recipe=under)
        else:
            exhibit = exhibits[name]
            here = [pattern for pattern in rows if len(names) == 1 or exhibit.has_row(pattern)]
            if rows and not here:
                continue
            wanted = exhibit.specs(rows=here, losses=losses, seeds=seeds)
            if name in STUDIES:
                studied += wanted
            else:
                runs += wanted
    return list({spec.key: spec for spec in (*by_priority(runs), *studied)}.values())
