"""From the store to the cells of an exhibit: what was measured, over how many seeds, and how far from the print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gence.lab.spec import RunSpec
from gence.lab.store import Record, Store
from gence.metrics import Summary, summarize
from gence.paper.exhibit import SEEDS, Column, Exhibit, Printed, Row
from gence.paper.exhibits.reliability import OVERCONFIDENCE

_CONFIDENT_BINS = 5
_FEWEST_CONFIDENT = 100


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
    """A line of an exhibit with its cells by column name."""

    row: Row
    cells: dict[str, Measured]


def measure(
    exhibit: Exhibit, store: Store | Reader, *, rows: Sequence[str] = (), seeds: int = SEEDS
) -> list[MeasuredRow]:
    """Return the rows of an exhibit as far as the store has records; a missing cell is there, with nothing in it.

    Several looks at the same runs share a `Reader`.
    """
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

    def cell(self, exhibit: Exhibit, row: Row, column: Column, seeds: int) -> Measured:
        """Return one cell, as far as there are records."""
        wanted = row.specs(column, seeds)
        records = [record for spec in wanted if (record := self.record(spec)) is not None]
        numbers = {
            record.spec.seed: exhibit.scale * value
            for record in records
            if (value := _number(record, row.metric, column.prefix)) is not None
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


def _number(record: Record, metric: str, prefix: str) -> float | None:
    """Return a finite number of a record, or None: a diverged run has an accuracy and little else."""
    if metric == OVERCONFIDENCE:
        return _overconfidence(record)
    value = record.result.metrics.get(f"{prefix}{metric}")
    return value if value is not None and math.isfinite(value) else None


def _overconfidence(record: Record) -> float | None:
    """Confidence less accuracy, over the predictions in the most confident bins; None if there are hardly any."""
    bins = record.result.tables.get("reliability")
    if not bins:
        return None
    rows = list(zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True))[-_CONFIDENT_BINS:]
    filled = [(count, confidence - accuracy) for count, confidence, accuracy in rows if count]
    total = sum(count for count, _ in filled)
    return sum(count * gap for count, gap in filled) / total if total >= _FEWEST_CONFIDENT else None
