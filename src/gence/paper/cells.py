"""Cells of studies, settings with lines: the file that keeps them, the loop that makes those missing, their tables."""

from __future__ import annotations

import fnmatch
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gence.lab.report import Cell, Row, Table
from gence.lab.spec import SpecError, check_choice
from gence.lab.store import Store, StoreError, replace_file
from gence.paper.exhibit_registry import Apart
from gence.paper.records import default_results, is_ours

SEEDS = 5


class Named(Protocol):
    """What has a name: a setting, which ``--rows`` selects by it, or a line, which ``--losses`` does."""

    @property
    def name(self) -> str:
        """The name."""
        ...


Cells = Mapping[str, Mapping[str, Any]]
Asked = Iterable[tuple[Any, Sequence[Any]]]
"""Settings, and the lines that are made together."""
Make = Callable[[Any, Sequence[Any]], list[dict[str, Any]]]
"""Makes the cells of a setting's lines."""


@dataclass(frozen=True)
class Records:
    """The cells that are done, in one compact file, ``records.jsonl``, a line each.

    Attributes:
        folder: where ``records.jsonl`` and ``about.json`` lie.
    """

    folder: Path

    @classmethod
    def beside(cls, store: Store) -> Records:
        """Those of the repository for its own store, else those inside the store."""
        return cls(default_results().parent / "transfer" if is_ours(store) else store.root / "transfer")

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "records.jsonl"

    def read(self) -> dict[str, dict[str, Any]]:
        """Every cell by its name, ``SETTING/LINE``."""
        if not self.path.exists():
            return {}
        found = {}
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                cell = json.loads(line)
                found[cell["cell"]] = cell
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(f"{self.path}, line {number} cannot be read ({error!r}); remove the line") from error
        return found

    def add(self, cells: Iterable[Mapping[str, Any]]) -> None:
        """Add cells, or put them in the place of older ones; the file is sorted, so that two of them merge."""
        found = self.read() | {cell["cell"]: dict(cell) for cell in cells}
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(found[name], sort_keys=True, separators=(",", ":")) for name in sorted(found)]
        replace_file(self.path, ("\n".join(lines) + "\n").encode())

    def about(self) -> dict[str, Any]:
        """Checksums of the sources, and where the cells were made."""
        path = self.folder / "about.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found

    def note(self, source: str, checksums: Mapping[str, str], environment: Mapping[str, Any]) -> None:
        """Note a source's checksums; raise `StoreError` where the recorded cells are of other data."""
        found = self.about() or {"sources": {}}
        known = found["sources"].get(source, {})
        changed = [name for name, digest in checksums.items() if known.get(name, digest) != digest]
        if changed:
            raise StoreError(
                f"{source}: {', '.join(changed)} has changed since its cells were recorded in {self.folder}; use the "
                "data they were made with, or another --store"
            )
        found["sources"][source] = {**known, **checksums}
        found["environment"] = dict(environment)
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / "about.json", (json.dumps(found, indent=1, sort_keys=True) + "\n").encode())


def make_missing(
    records: Records, asked: Asked, make: Make, time_limit: float | None, echo: Callable[[str], None]
) -> None:
    """Make the cells that are missing, and keep each setting's as soon as they are made.

    Args:
        records: where cells are kept.
        asked: settings and lines.
        make: what makes them.
        time_limit: begin no setting after this many seconds.
        echo: told what is done.
    """
    from gence.lab.data import default_cache_dir, sole_maker

    began = time.monotonic()
    for setting, lines in asked:
        done = whole(records.read())
        missing = [line for line in lines if f"{setting.name}/{line.name}" not in done]
        if not missing:
            continue
        if time_limit is not None and time.monotonic() - began > time_limit:
            echo("stopped by the time limit; run it again to resume")
            return
        cells = make(setting, missing)
        with sole_maker(default_cache_dir(), "study-cells", "the cells"):  # several processes may share a file
            records.add(cells)
        echo(f"{setting.name}: {len(cells)} cells in {sum(cell['cpu_s'] for cell in cells):.1f} s of CPU")
    echo("all cells that were asked for are there")


def say_missing(records: Records, asked: Asked, echo: Callable[[str], None]) -> None:
    """Say which cells are missing."""
    done, count, missing = whole(records.read()), 0, 0
    for setting, lines in asked:
        lacking = [line.name for line in lines if f"{setting.name}/{line.name}" not in done]
        count, missing = count + len(lines), missing + len(lacking)
        if lacking:
            echo(f"{setting.name}: {', '.join(lacking)}")
    echo(f"{missing} of {count} cells are missing")


def whole(cells: Cells) -> set[str]:
    """The names of the cells that have every seed; others are made again."""
    return {name for name, cell in cells.items() if len(cell["metrics"].get("accuracy", ())) >= SEEDS}


def cell_of(
    setting: Named,
    line: Named,
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
    lines: tuple[Any, ...]
    make: Callable[[Records, Any, Sequence[Any]], list[dict[str, Any]]]

    def records(self, store: Store) -> Records:
        """Where its cells are."""
        return Records(Records.beside(store).folder / self.name)

    def asked(self, rows: Sequence[str] = (), losses: Sequence[str] = ()) -> list[tuple[Any, tuple[Any, ...]]]:
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
        """Make the cells that are missing."""
        records = self.records(store)
        make_missing(
            records, self.asked(rows, losses), lambda one, lines: self.make(records, one, lines), time_limit, echo
        )

    def list_missing(
        self, store: Store, rows: Sequence[str], losses: Sequence[str], echo: Callable[[str], None]
    ) -> None:
        """Say which cells are missing."""
        say_missing(self.records(store), self.asked(rows, losses), echo)

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
