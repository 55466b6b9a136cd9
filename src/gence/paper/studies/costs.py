"""What the runs of the paper's exhibits cost, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

from gence.lab.report import Cell, Row, Table
from gence.lab.store import Store
from gence.lab.sweep import cell_name, cells
from gence.paper.exhibit import Exhibit
from gence.paper.exhibit_registry import Asked, Entry, View, paper_exhibits
from gence.paper.exhibit_table import ABSENT, text_cell


def cost_table(exhibits: Sequence[Exhibit], store: Store, seeds: int | None = None) -> Table:
    """Return what each cell of the exhibits took: runs recorded of those wanted, device minutes, seconds a run."""
    present = store.keys()
    wanted = [spec for exhibit in exhibits for spec in exhibit.specs(seeds=seeds)]
    unique = list({spec.key: spec for spec in wanted}.values())
    lines, done_cells, minutes = [], 0, 0.0
    by_cell = cells(unique)
    for runs in by_cell.values():
        records = [store.read(spec.key) for spec in runs if spec.key in present]
        took = sum(record.result.wall_s for record in records)
        devices = sorted({str(record.environment.get("device")) for record in records})
        done_cells += len(records) == len(runs)
        minutes += took / 60
        lines.append(
            Row(
                cells=(
                    text_cell(cell_name(runs[0])),
                    Cell(text=f"{len(records)} of {len(runs)}", value=len(records)),
                    _number(took / 60 if records else None),
                    _number(took / len(records) if records else None),
                    text_cell(", ".join(devices) or ABSENT),
                )
            )
        )
    return Table(
        name="costs",
        caption=f"{done_cells} of {len(by_cell)} cells are complete; {minutes:.1f} device minutes. All other runs of "
        f"the store (tuning, remedies, the search for the recipe) took {_minutes(store) - minutes:.1f}. A run's time "
        "is its share of the cohort it was trained in, evaluation included.",
        columns=("Cell", "Runs", "Minutes", "Seconds a run", "Device"),
        rows=tuple(lines),
    )


def _minutes(store: Store) -> float:
    return sum(record.result.wall_s for record in store.records()) / 60


def _number(value: float | None) -> Cell:
    return Cell(text="missing", value="") if value is None else Cell(text=f"{value:.1f}", value=value)


def _view(asked: Asked) -> View:
    return cost_table(paper_exhibits(asked.recipe), asked.store, asked.seeds), []


ENTRIES = (Entry(name="costs", place=2000, heading="What it cost", view=_view, options=("seeds", "recipe")),)
