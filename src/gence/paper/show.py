"""What can be shown by name, as a table and the sentences that go with it."""

from __future__ import annotations

from collections.abc import Sequence

from gence.lab.report import Table
from gence.lab.spec import check_choice, named_recipe
from gence.lab.store import Store
from gence.paper.exhibit import SEEDS, Exhibit
from gence.paper.exhibits.epoch_time import epoch_time_table
from gence.paper.exhibits.smoothing import smoothing
from gence.paper.measure import measure
from gence.paper.registry import EXHIBITS, load_exhibit
from gence.paper.sentences import agreement
from gence.paper.studies.drift_course import course_shown
from gence.paper.studies.larger_batches import larger_batches_shown
from gence.paper.studies.open_choices import search_sentence
from gence.paper.studies.remedies_table import METRICS as REMEDIES, remedies_shown
from gence.paper.studies.tuned import METRICS as TUNED, tuned
from gence.paper.tables import cost_table, exhibit_table, search_table

_NOT_TUNED = "Nothing is tuned yet: gence tune table1 --rows ..."

SHOWN = (
    *EXHIBITS,
    "smoothing_ece",
    "epoch_time",
    *TUNED,
    *REMEDIES,
    "remedies_course",
    "larger_batches",
    "open_choices",
    "costs",
)
"""Everything that has a table."""

_STUDIES = {"remedies_course": course_shown, "larger_batches": larger_batches_shown}


def shown(
    name: str,
    store: Store,
    *,
    rows: Sequence[str] = (),
    seeds: int | None = None,
    recipe: str | None = None,
) -> tuple[Table, list[str]]:
    """Return the table called `name` and the sentences below it: what agrees, what does not, what was assumed.

    Args:
        name: one of `SHOWN`.
        store: where the records are.
        rows: patterns of row names, for exhibits.
        seeds: how many seeds a cell should have; 5 by default, and 3 for the studies.
        recipe: the name of another recipe than the paper's, for exhibits.
    """
    check_choice("exhibit", name, SHOWN)
    if seeds is not None and seeds < 1:
        raise ValueError(f"seeds is {seeds}; expected at least 1")
    under = named_recipe(recipe) if recipe else None
    if name in REMEDIES:
        return remedies_shown(name, store, rows=rows, seeds=seeds, recipe=under)
    if name in _STUDIES:
        return _STUDIES[name](store, rows=rows, seeds=seeds, recipe=under)
    seeds = SEEDS if seeds is None else seeds
    if name == "open_choices":
        return search_table(store), [search_sentence(store)]
    if name == "epoch_time":
        return epoch_time_table(store)
    if name == "costs":
        return cost_table([load_exhibit(exhibit, under) for exhibit in EXHIBITS], store, seeds), []
    exhibit: Exhibit
    if name in TUNED:
        exhibit = tuned(store, under, TUNED[name])
        if not exhibit.rows:
            nothing = "Nothing that was tuned is judged on OOD sets." if tuned(store, under).rows else _NOT_TUNED
            return exhibit_table(exhibit, [], seeds), [nothing]
    elif name == "smoothing_ece":
        exhibit = smoothing(under, "ece")
    else:
        exhibit = load_exhibit(name, under)
    measured = measure(exhibit, store, rows=rows, seeds=seeds)
    return exhibit_table(exhibit, measured, seeds), [
        *agreement(exhibit, measured),
        *(f"Assumed: {one}" for one in exhibit.assumptions),
    ]
