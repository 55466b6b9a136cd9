"""The table that is on the screen while runs are made."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gence.lab.report import MAIN, loss_order, loss_title
from gence.lab.spec import RunSpec
from gence.lab.store import Store
from gence.lab.sweep import GridProgress

if TYPE_CHECKING:
    from rich.console import RenderableType


class LiveTable:
    """Loss by loss: seeds done, means so far; below, the time that is left.

    Pass `update` to the runner and `render` to `rich.live.Live`.

    Args:
        store: where the runs are recorded; each record is read once, when the runner tells of it.
        specs: the runs.
    """

    def __init__(self, store: Store, specs: Sequence[RunSpec]) -> None:
        self._store = store
        self._specs = {spec.key: spec for spec in specs}
        self._metrics: dict[str, dict[str, float]] = {}
        self._started = time.monotonic()
        self._read(key for key in self._specs if store.has(key))
        self._before = len(self._metrics)

    def update(self, progress: GridProgress) -> None:
        """Take note of the runs that were recorded."""
        self._read(progress.recorded)

    def render(self) -> RenderableType:
        """Return the table as it stands."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("loss", "seeds")
        for quantity in MAIN:
            table.add_column(quantity.heading, justify="right")
        for loss in sorted({str(spec.loss) for spec in self._specs.values()}, key=loss_order):
            keys = [key for key, spec in self._specs.items() if str(spec.loss) == loss]
            done = [self._metrics[key] for key in keys if key in self._metrics]
            numbers = []
            for quantity in MAIN:
                values = [found[quantity.metric] for found in done if quantity.metric in found]
                numbers.append(quantity.text(sum(values) / len(values)) if values else "")
            bar = "●" * len(done) + "·" * (len(keys) - len(done))
            table.add_row(
                Text(loss_title(loss)), Text(bar if len(keys) <= 10 else f"{len(done)} of {len(keys)}"), *numbers
            )
        return Group(table, Text(self._time(), style="dim"))

    def _read(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._metrics[key] = self._store.read(key).result.metrics

    def _time(self) -> str:
        done, total = len(self._metrics), len(self._specs)
        elapsed = time.monotonic() - self._started
        new = done - self._before
        text = f"{done} of {total} runs, {elapsed:.0f} s"
        if new and done < total:
            text += f", about {elapsed / new * (total - done):.0f} s left"
        return text
