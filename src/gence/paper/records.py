"""Where the repository's records are, and the cells of an exhibit as far as a store has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gence
from gence.lab.spec import RunSpec
from gence.lab.store import Record, Store
from gence.metrics import Summary, summarize
from gence.paper.exhibit import Column, Exhibit, Printed, RunRow


def checkout() -> Path | None:
    """Return the root of the checkout this package runs from, or None where it was installed without one."""
    package = Path(gence.__file__).resolve().parent
    root = package.parent.parent
    return root if package.parent.name == "src" and (root / "pyproject.toml").exists() else None


def default_results() -> Path:
    """Return the folder of the repository's records of the paper, `results/paper` of the checkout.

    Raises:
        FileNotFoundError: if the package was installed without a checkout: records are not part of a wheel.
    """
    root = checkout()
    if root is None:
        raise FileNotFoundError(
            "this installation of gence does not contain the paper's records, which are part of the repository; name a "
            "store with --store, or run from a checkout"
        )
    return root / "results" / "paper"


def is_ours(store: Store) -> bool:
    """Return whether a store holds the repository's records, about which there are sentences."""
    return checkout() is not None and store.root.resolve() == default_results()


@dataclass(frozen=True)
class Measured:
    """One cell.

    Attributes:
        summary: mean, standard deviation and n in the exhibit's unit; None if no run has a number.
        recorded: runs of the cell that have a record; above `summary.n` where a diverged run has no such number.
        wanted: runs the cell should have.
        printed: the paper's value, or None.
        by_seed: the numbers behind the summary.
    """

    summary: Summary | None
    recorded: int
    wanted: int
    printed: Printed | None
    by_seed: Mapping[int, float]

    @property
    def complete(self) -> bool:
        """Whether every run has its number."""
        return self.summary is not None and self.summary.n == self.wanted

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in the exhibit's unit."""
        return None if self.summary is None or self.printed is None else self.summary.mean - self.printed.mean

    @property
    def standard_errors(self) -> float | None:
        """The difference in standard errors of a difference of means, from both standard deviations.

        None for a single run, whose spread is unknown, and where neither side has any spread.
        """
        if self.difference is None or self.summary is None or self.printed is None or self.summary.n < 2:
            return None
        error = math.hypot(self.summary.sem, self.printed.std / math.sqrt(self.printed.n))
        return self.difference / error if error > 0 else None


@dataclass(frozen=True)
class MeasuredRow:
    """A row of an exhibit with its cells by column name."""

    row: RunRow
    cells: dict[str, Measured]


def measure(
    exhibit: Exhibit, store: Store | Reader, *, rows: Sequence[str] = (), seeds: int | None = None
) -> list[MeasuredRow]:
    """Return the rows of an exhibit as far as the store has records; a missing cell is there, with nothing in it.

    Args:
        exhibit: what to measure.
        store: where the records are; several looks at the same runs share a `Reader`.
        rows: patterns of row names; all by default.
        seeds: how many seeds a cell should have; the exhibit's own number by default.
    """
    seeds = exhibit.seeds if seeds is None else seeds
    reader = store if isinstance(store, Reader) else Reader(store)
    lines = exhibit.selected(rows) if exhibit.rows else ()
    return [
        MeasuredRow(row, {column.name: reader.cell(exhibit, row, column, seeds) for column in exhibit.columns})
        for row in lines
    ]


class Reader:
    """Reads each record once, however many cells it is part of."""

    def __init__(self, store: Store) -> None:
        self._store, self._present = store, store.keys()
        self._seen: dict[str, Record] = {}

    def cell(self, exhibit: Exhibit, row: RunRow, column: Column, seeds: int) -> Measured:
        """Return one cell, as far as there are records."""
        wanted = row.specs(column, seeds)
        records = [record for spec in wanted if (record := self.record(spec)) is not None]
        numbers = {
            record.spec.seed: exhibit.scale * value
            for record in records
            if (value := _number(record, exhibit, row.metric, column.prefix)) is not None
        }
        return Measured(
            summary=summarize(numbers) if numbers else None,
            recorded=len(records),
            wanted=seeds,
            printed=row.printed.get(column.name),
            by_seed=numbers,
        )

    def record(self, spec: RunSpec) -> Record | None:
        """Return the record of a run, or None."""
        if spec.key not in self._present:
            return None
        if spec.key not in self._seen:
            self._seen[spec.key] = self._store.read(spec.key)
        return self._seen[spec.key]


def _number(record: Record, exhibit: Exhibit, metric: str, prefix: str) -> float | None:
    """Return a finite number of a record, or None: a diverged run has an accuracy and little else."""
    value = exhibit.number(record) if exhibit.number else record.result.metrics.get(f"{prefix}{metric}")
    return value if value is not None and math.isfinite(value) else None
