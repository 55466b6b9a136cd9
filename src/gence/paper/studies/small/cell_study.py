"""What makes, lists and shows the cells of a small study: settings with lines, in a file of records of their own."""

from __future__ import annotations

import fnmatch
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gence.lab.report import Cell, Row, Table
from gence.lab.spec import SpecError, check_choice
from gence.lab.store import Store
from gence.paper.exhibit_registry import Apart
from gence.paper.studies.transfer_grid import SEEDS, Line, Records


class Named(Protocol):
    """A setting, as far as a study has to know it."""

    @property
    def name(self) -> str:
        """What ``--rows`` selects."""
        ...

    @property
    def title(self) -> str:
        """What tables call it."""
        ...


Cells = Mapping[str, Mapping[str, Any]]
Make = Callable[[Records, Any, Sequence[Line]], list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class CellStudy:
    """A grid of settings and lines with five seeds in each cell.

    Attributes:
        name: the folder of its records, beside those of the transfer study.
        settings: rows of the grid, the most worth first.
        lines: its columns.
        make: makes the cells of a setting: (records, for checksums; setting; lines).
    """

    name: str
    settings: tuple[Any, ...]
    lines: tuple[Line, ...]
    make: Make

    def records(self, store: Store) -> Records:
        """Where its cells are."""
        return Records(Records.beside(store).folder / self.name)

    def asked(self, rows: Sequence[str] = (), losses: Sequence[str] = ()) -> list[tuple[Any, tuple[Line, ...]]]:
        """Settings that match the patterns, and the lines asked for; raise `SpecError` for what fits nothing."""
        for loss in losses:
            check_choice("losses", loss, [line.name for line in self.lines])
        names = [one.name for one in self.settings]
        for pattern in rows:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise SpecError(f"rows: {pattern} matches no setting of {self.name}; its settings are like {names[0]}")
        return [
            (one, tuple(line for line in self.lines if line.is_in(one) and (not losses or line.name in losses)))
            for one in self.settings
            if not rows or any(fnmatch.fnmatchcase(one.name, pattern) for pattern in rows)
        ]

    def run(
        self,
        store: Store,
        rows: Sequence[str],
        losses: Sequence[str],
        time_limit: float | None,
        echo: Callable[[str], None],
    ) -> None:
        """Make the cells that are missing, and keep each setting's as soon as they are made."""
        began, records = time.monotonic(), self.records(store)
        for setting, lines in self.asked(rows, losses):
            done = whole(records.read())
            missing = [line for line in lines if f"{setting.name}/{line.name}" not in done]
            if not missing:
                continue
            if time_limit is not None and time.monotonic() - began > time_limit:
                echo("stopped by the time limit; run it again to resume")
                return
            cells = self.make(records, setting, missing)
            records.add(cells)
            echo(f"{setting.name}: {len(cells)} cells in {sum(cell['cpu_s'] for cell in cells):.0f} s of CPU")
        echo("all cells that were asked for are there")

    def list_missing(
        self, store: Store, rows: Sequence[str], losses: Sequence[str], echo: Callable[[str], None]
    ) -> None:
        """Say which cells are missing."""
        done, asked = whole(self.records(store).read()), self.asked(rows, losses)
        missing = 0
        for setting, lines in asked:
            lacking = [line.name for line in lines if f"{setting.name}/{line.name}" not in done]
            missing += len(lacking)
            if lacking:
                echo(f"{setting.name}: {', '.join(lacking)}")
        echo(f"{missing} of {sum(len(lines) for _, lines in asked)} cells are missing")

    @property
    def apart(self) -> Apart:
        """How `gence run` makes and lists its cells."""
        return Apart(run=self.run, list=self.list_missing)

    def counted(self, cells: Cells) -> str:
        """How many cells there are, and what they took."""
        names = [f"{setting.name}/{line.name}" for setting, lines in self.asked() for line in lines]
        done = whole(cells)
        minutes = sum(cells[name]["cpu_s"] for name in names if name in cells) / 60
        measured = sum(name in done for name in names)
        return f"{measured} of {len(names)} cells are measured with {SEEDS} seeds, in {minutes:.0f} minutes of CPU"

    def table(self, name: str, cells: Cells, caption: str, metric: str = "accuracy") -> Table:
        """A row per line and a column per setting: means in per cent, the best of each column marked."""
        means = {
            (line.name, setting.name): 100 * statistics.fmean(found)
            for line in self.lines
            for setting in self.settings
            if (found := cells.get(f"{setting.name}/{line.name}", {}).get("metrics", {}).get(metric))
        }
        best = {
            setting.name: max((mean for (_, of), mean in means.items() if of == setting.name), default=None)
            for setting in self.settings
        }
        rows = []
        for line in self.lines:
            shown = [means.get((line.name, setting.name)) for setting in self.settings]
            words = ["missing" if line.is_in(setting) else "–" for setting in self.settings]
            numbers = (
                Cell(text=word, value=word)
                if mean is None
                else Cell(text=f"{mean:.1f}", value=mean, best=mean == best[setting.name])
                for mean, word, setting in zip(shown, words, self.settings, strict=True)
            )
            rows.append(Row(cells=(Cell(text=line.title, value=line.title), *numbers), loss=str(line.loss)))
        return Table(
            name=name.replace("_", "-"),
            caption=f"{caption} {self.counted(cells)}.",
            columns=("Loss", *(setting.title for setting in self.settings)),
            rows=tuple(rows),
        )


def whole(cells: Cells) -> set[str]:
    """The names of the cells that have every seed; others are made again."""
    return {name for name, cell in cells.items() if len(cell["metrics"].get("accuracy", ())) >= SEEDS}


def cell_of(
    setting: Named,
    line: Line,
    labels: int,
    tuned: Mapping[str, Any],
    seeds: Sequence[Mapping[str, float]],
    cpu_s: float,
) -> dict[str, Any]:
    """A cell as records keep it: the numbers that every seed has."""
    names = [name for name in seeds[0] if all(name in one for one in seeds)]
    return {
        "cell": f"{setting.name}/{line.name}",
        "labels": labels,
        "tuned": dict(tuned),
        "metrics": {name: [float(f"{one[name]:.5g}") for one in seeds] for name in names},
        "cpu_s": round(cpu_s, 2),
    }
