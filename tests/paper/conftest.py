from __future__ import annotations

import pytest

from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.exhibit import Exhibit


class Writer:
    """Writes records whose numbers a test decides; nothing is trained."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def cell(self, exhibit: Exhibit, row_name: str, column_name: str, values: list[float], **result) -> None:
        row = exhibit.selected([row_name])[0]
        column = next(column for column in exhibit.columns if column.name == column_name)
        for spec, value in zip(row.specs(column), values, strict=False):
            metrics = {"accuracy": 0.5, column.prefix + row.metric: value / exhibit.scale}
            made = RunResult(**{"metrics": metrics, "wall_s": 6.0, **result})
            self.store.write(spec, made, {"device": "test device"})

    def printed(self, exhibit: Exhibit, row_name: str, shift: float = 0.0) -> None:
        """Write a row whose every cell has the printed mean (plus a shift) and a spread of 1."""
        row = exhibit.selected([row_name])[0]
        for name, printed in row.printed.items():
            offsets = (-1.2649110640673518, -0.6324555320336759, 0.0, 0.6324555320336759, 1.2649110640673518)
            self.cell(exhibit, row_name, name, [printed.mean + shift + offset for offset in offsets])


@pytest.fixture
def writer(tmp_path) -> Writer:
    return Writer(Store(tmp_path / "store"))
