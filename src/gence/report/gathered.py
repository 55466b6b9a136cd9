"""The curves and small tables of a setting's runs, pooled over seeds: what figures draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gence.experiment.records import Record
from gence.experiment.store import Store
from gence.report.aggregate import Setting, losses_in

_BINS = 24  # of a small figure; records have more


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The records of one setting, by loss and in the order of their seeds.

    Attributes:
        losses: the losses in the order in which they are shown.
        records: the records of each.
    """

    losses: tuple[str, ...]
    records: dict[str, list[Record]] = field(default_factory=dict)

    def curves(self, loss: str, name: str) -> list[np.ndarray]:
        """Return a curve of each run of a loss that has it."""
        found = (record.result.curves.get(name) for record in self.records[loss])
        return [np.asarray(curve, dtype=float) for curve in found if curve]

    def tables(self, loss: str, name: str) -> list[Any]:
        """Return a table of each run of a loss that has it."""
        found = (record.result.tables.get(name) for record in self.records[loss])
        return [table for table in found if table]

    def has(self, name: str) -> bool:
        """Return whether any run has this table."""
        return any(self.tables(loss, name) for loss in self.losses)


def gather(store: Store, setting: Setting) -> Gathered:
    """Read the records of a setting."""
    losses = losses_in(setting.frame)
    records: dict[str, list[Record]] = {loss: [] for loss in losses}
    for loss, key in _by_seed(setting):
        records[loss].append(store.read(key))
    return Gathered(losses=tuple(losses), records=records)


def pooled_reliability(tables: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return count, mean confidence and accuracy of each bin, pooled over runs; NaN where a bin is empty."""
    counts = np.sum([table["count"] for table in tables], axis=0).astype(float)
    pooled = []
    for name in ("confidence", "accuracy"):
        weighted = [np.nan_to_num(_numbers(table[name])) * np.asarray(table["count"], dtype=float) for table in tables]
        with np.errstate(invalid="ignore"):
            pooled.append(np.sum(weighted, axis=0) / np.where(counts > 0, counts, np.nan))
    return counts, pooled[0], pooled[1]


def pooled_histogram(histograms: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return edges, and the shares of ID and OOD inputs in each bin, as the mean over runs on common edges.

    Runs bin between their own smallest and largest score; each is spread evenly inside its bins onto common ones.
    """
    low = min(h["edges"][0] for h in histograms)
    high = max(h["edges"][-1] for h in histograms)
    edges = np.linspace(low, max(high, low + 1e-9), _BINS + 1)
    shares = []
    for name in ("id", "ood"):
        runs = []
        for h in histograms:
            cumulative = np.concatenate([[0.0], np.cumsum(np.asarray(h[name], dtype=float))])
            total = max(cumulative[-1], 1.0)
            runs.append(np.diff(np.interp(edges, np.asarray(h["edges"], dtype=float), cumulative)) / total)
        shares.append(np.mean(runs, axis=0))
    return edges, shares[0], shares[1]


def _numbers(values: Iterable[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _by_seed(setting: Setting) -> list[tuple[str, str]]:
    rows = setting.frame.sort_values("seed")
    return list(zip(rows["loss"], rows["key"], strict=True))
