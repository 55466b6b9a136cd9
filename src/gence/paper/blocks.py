"""Generated blocks of Markdown files: what stands between two marks comes from records and is never typed.

<!-- generated: table1 -->
... replaced ...
<!-- end -->
"""

from __future__ import annotations

import functools
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gence.lab.report import markdown_table
from gence.lab.store import Store, environment_record
from gence.metrics import Summary, summarize
from gence.paper.does_it_help import decision_guide, does_it_help_table
from gence.paper.exhibit import ANCHORED, DATA_TITLES, MODEL_TITLES, OFFSET, SIX_LOSSES, Column
from gence.paper.exhibit_registry import Asked, entries, shown
from gence.paper.exhibit_table import Drawing
from gence.paper.exhibits_page import agreement_table


def study_record(study: str, accuracies: Mapping[tuple[str, str], Sequence[float]], *, rows_are: str) -> dict[str, Any]:
    """Return a study as it is kept: every seed's accuracy, and where it was measured.

    Args:
        study: what was run, such as "examples/unlabelled.py".
        accuracies: (row, column) of the table -> one test accuracy per seed, from 0 to 1.
        rows_are: the heading above the rows' names.

    >>> record = study_record("a script", {("digits", "CE"): [0.9, 0.875]}, rows_are="data")
    >>> record["rows"]
    [{'row': 'digits', 'column': 'CE', 'accuracies': [0.9, 0.875]}]
    """
    if not accuracies or not all(accuracies.values()):
        raise ValueError(f"accuracies: expected at least one seed in every cell of {study}, got {dict(accuracies)}")
    rows = [
        {"row": row, "column": column, "accuracies": [round(float(value), 6) for value in seeds]}
        for (row, column), seeds in accuracies.items()
    ]
    return {"study": study, "environment": environment_record(), "rows_are": rows_are, "rows": rows}


def write_study(
    path: str | Path, study: str, accuracies: Mapping[tuple[str, str], Sequence[float]], *, rows_are: str
) -> None:
    """Write `study_record` as JSON."""
    record = study_record(study, accuracies, rows_are=rows_are)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


LEAST_SEEDS = 3
_GENCE, _CE, *_OTHERS = SIX_LOSSES
COLUMNS = (_CE, _GENCE, OFFSET, ANCHORED, *_OTHERS)
"""What a reader asks first stands first: cross-entropy, GenCE and its two repairs."""

_CELL = ["data", "subset.n", "subset.rho", "model", "recipe"]
_METRICS = {"accuracy": "Accuracy, %", "ece": "Calibration error (ECE), %, 15 bins; to be read beside the accuracy"}


def measured_table(store: Store, metric: str = "accuracy") -> str:
    """Return a Markdown table, one line per cell in which cross-entropy and GenCE have at least three seeds.

    Cells are those judged on the test set under a recipe with a name.

    Args:
        store: where the records are.
        metric: "accuracy" or "ece".
    """
    frame = store.frame()
    if frame.empty:
        return "Nothing is measured yet.\n"
    frame = frame[(frame["evaluate_on"] == "test") & ~frame["recipe"].str.startswith("custom")]
    frame = frame[frame["loss"].isin([str(column.loss) for column in COLUMNS])]
    cells = [runs for _, runs in frame.groupby(_CELL, dropna=False) if _can_be_compared(runs)]
    if not cells:
        return "No cell has enough seeds of both cross-entropy and GenCE yet.\n"
    head = ["data", "N", "network", "recipe", *(column.title for column in COLUMNS)]
    runs = pd.concat(cells)
    diverged = int((runs["status"] == "diverged").sum())
    seeds = sorted({len(_of(cell, column)) for cell in cells for column in COLUMNS} - set(range(LEAST_SEEDS)))
    note = (
        f"{_METRICS[metric]}: mean ± sample standard deviation over {' or '.join(map(str, seeds))} seeds. "
        f"{len(runs)} runs on {' and '.join(sorted(set(runs['device'])))}; {diverged or 'none'} diverged."
    )
    table = markdown_table(head, [_line(cell, metric) for cell in cells], "llll" + "r" * len(COLUMNS))
    return f"{table}\n\n{note}\n"


def _of(runs: pd.DataFrame, column: Column) -> pd.DataFrame:
    return runs[runs["loss"] == str(column.loss)]


def _can_be_compared(runs: pd.DataFrame) -> bool:
    return all(len(_of(runs, column)) >= LEAST_SEEDS for column in (_CE, _GENCE))


def _line(runs: pd.DataFrame, metric: str) -> list[str]:
    first = runs.iloc[0]
    size = "all" if pd.isna(first["subset.n"]) else f"{first['subset.n']:.0f}"
    if not pd.isna(first["subset.rho"]):
        size = f"rho {first['subset.rho']:g}"
    words = [DATA_TITLES.get(first["data"], first["data"]), size]
    words += [MODEL_TITLES.get(first["model"], first["model"]), first["recipe"]]
    found = [_summary(_of(runs, column), column.prefix + metric) for column in COLUMNS]
    # Of calibration no best is marked: a network that has learnt nothing may have it.
    best = max((one.mean for one in found if one), default=None) if metric == "accuracy" else None
    for one in found:
        text = f"{one.mean:.1f} ± {one.std:.1f}" if one else "–"
        words.append(f"**{text}**" if one and one.mean == best else text)
    return words


def _summary(runs: pd.DataFrame, name: str) -> Summary | None:
    """Mean and spread in per cent; None where there are few seeds, or one without this number."""
    values = 100 * runs[name].dropna()
    return summarize(values.tolist()) if len(values) >= max(LEAST_SEEDS, len(runs)) else None


def study_table(record: Mapping[str, Any]) -> str:
    """Return a Markdown table of accuracies in %, and a line that says what was run, where, and what the spread is.

    >>> rows = [{"row": "digits", "column": "CE", "accuracies": [0.9, 0.88]}]
    >>> place = {"device": "cpu", "versions": {"torch": "2.15.0"}}
    >>> print(study_table({"study": "a script", "rows_are": "data", "rows": rows, "environment": place}))
    | data | CE |
    | --- | ---: |
    | digits | 89.0 ± 1.4 |
    <BLANKLINE>
    Test accuracy in %, mean ± sample standard deviation over 2 seeds; a script, on cpu with torch 2.15.0.
    """
    cells = {(cell["row"], cell["column"]): cell["accuracies"] for cell in record["rows"]}
    columns = list(dict.fromkeys(column for _, column in cells))
    rows = [
        [row, *(_cell(cells.get((row, column))) for column in columns)]
        for row in dict.fromkeys(row for row, _ in cells)
    ]
    counts = sorted({len(seeds) for seeds in cells.values()})
    seeds = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    environment = record["environment"]
    return markdown_table([record["rows_are"], *columns], rows) + (
        f"\n\nTest accuracy in %, mean ± sample standard deviation over {seeds} seeds; {record['study']}, on "
        f"{environment['device']} with torch {environment['versions']['torch']}."
    )


def _cell(accuracies: Sequence[float] | None) -> str:
    if accuracies is None:
        return "–"
    spread = f" ± {100 * statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * statistics.fmean(accuracies):.1f}{spread}"


_PROVIDERS = {
    "cross_entropy": "CE",
    "cross_entropy, compiled": "CE, compiled",
    "GenCE": "GenCE",
    "GenCE plain": "GenCE, plain formula",
}
_WALL_BELOW = 100_000  # logits: there the launches are the cost, and the clock on the wall shows it


def speed_table(path: Path) -> str:
    """Return a Markdown table: forward and backward in ms per shape and provider, and GenCE's extra memory."""
    record: dict[str, Any] = json.loads(path.read_text())
    shapes: dict[tuple[int, int, str], dict[str, dict[str, Any]]] = {}
    for row in record["rows"]:
        shapes.setdefault((row["n"], row["K"], row["dtype"]), {})[row["provider"]] = row
    head = ["n x K", "dtype", *_PROVIDERS.values(), "GenCE's extra memory"]
    lines = []
    for (n, K, dtype), rows in shapes.items():
        clock = "both_wall_ms" if n * K < _WALL_BELOW else "both_cold_ms"
        times = [f"{rows[name][clock]['median']:.3g}" if name in rows else "–" for name in _PROVIDERS]
        lines.append([f"{n} x {K}", dtype, *times, f"{rows['GenCE']['extra_mib']:.2g} MiB"])
    environment = record["environment"]
    versions = environment.get("versions", environment)
    return markdown_table(head, lines, "ll" + "r" * (len(head) - 2)) + (
        f"\n\nMilliseconds, medians, on {environment['device']} with torch {versions['torch']}; wall time for the two "
        "small shapes, time between events on logits that are not in the cache for the others.\n"
    )


def registry_table() -> str:
    """Return a Markdown table of all losses: name, equation, what each promises, source."""
    from gence.losses import LOSSES  # here, because a table of records needs no torch

    lines = []
    for name, info in LOSSES.items():
        promises = {"coupled": info.coupled, "proper": info.proper, "shift-invariant": info.shift_invariant}
        kept = ", ".join(promise for promise, holds in promises.items() if holds) or "–"
        lines.append([f"`{name}`", info.title, f"`{info.equation}`", kept, info.source])
    return markdown_table(["name", "title", "loss of a row with label y", "properties", "source"], lines, "lllll")


def attack_table(record: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table: what the attack tried, how often, what it found, and what tries it again.

    Args:
        record: each harness's counts, as `python -m tests.adversarial --out FILE` writes them.

    >>> tables = {"what": "A damaged table.", "cases": 1200, "failures": [], "seed": 7}
    >>> print(attack_table({"tables": tables}))
    | name | what is tried | cases | failures | first seed |
    | --- | --- | ---: | ---: | ---: |
    | `tables` | A damaged table | 1,200 | 0 | 7 |
    """
    lines = [
        [f"`{name}`", own["what"].rstrip("."), f"{own['cases']:,}", str(len(own["failures"])), str(own["seed"])]
        for name, own in record.items()
    ]
    return markdown_table(["name", "what is tried", "cases", "failures", "first seed"], lines, "llrrr")


_BLOCK = re.compile(r"(?P<head><!-- generated: (?P<name>\S+) -->\n)(?P<body>.*?)(?P<tail><!-- end -->)", re.DOTALL)
_LEFT_OUT = ("both_hot_ms", "forward_cold_ms", "backward_cold_ms")  # in the record; too much for a page
NOTHING = "No records have been rendered into this file yet.\n"

Renderer = Callable[[], str]


def renderers(store: Store, bench: Path) -> dict[str, Renderer]:
    """Return the functions that write each block, by name.

    A name of `gence show` is its table with the sentences around it, NAME_figure its figures, and an entry may have
    blocks of its own, such as `headline`; `does_it_help` is the front page's table, `decision_guide` that of the docs,
    `agreement` that of the page of the paper;
    `measured` and `measured_ece` are what the store holds, one line per cell;
    `losses` is the registry; `speed` is the loss's cost, one line per shape; `bench-NAME` is the table of the rows in
    `NAME.json` of the folder of benchmarks, where small studies lie too; `attack` is what `make attack` tried, from
    `attack.json` beside that folder.

    Args:
        store: where the records of the paper are.
        bench: the folder of benchmark records.
    """
    found: dict[str, Renderer] = {}
    for name, entry in entries().items():
        found[name] = functools.partial(_exhibit, name, store)
        if entry.drawings is not None:
            found[f"{name}_figure"] = functools.partial(_figures, entry.drawings, store)
        for block, render in entry.blocks.items():
            found[block] = functools.partial(_own_block, render, store)
    found["measured"] = lambda: f"\n{measured_table(store)}\n"
    found["measured_ece"] = lambda: f"\n{measured_table(store, 'ece')}\n"
    found["agreement"] = lambda: f"\n{agreement_table(store).markdown()}\n\n"
    found["does_it_help"] = lambda: f"\n{does_it_help_table(store)}\n"
    found["decision_guide"] = lambda: f"\n{decision_guide(store)}\n"
    found["losses"] = lambda: f"\n{registry_table()}\n\n"
    attack = bench.parent / "attack.json"
    if attack.exists():
        found["attack"] = lambda: f"\n{attack_table(json.loads(attack.read_text()))}\n\n"
    if (bench / "loss.json").exists():
        found["speed"] = lambda: f"\n{speed_table(bench / 'loss.json')}\n"
    for path in sorted(bench.glob("*.json")):
        found[f"bench-{path.stem}"] = functools.partial(_bench, path)
    return found


def filled(text: str, known: Mapping[str, Renderer]) -> str:
    """Return a file's text with every block written again.

    A `bench-` block whose benchmark has no record yet says so. Any other unknown name is an error.

    >>> filled("<!-- generated: sum -->\\nold\\n<!-- end -->", {"sum": lambda: "1 + 1 = 2\\n"})
    '<!-- generated: sum -->\\n1 + 1 = 2\\n<!-- end -->'
    """

    def write(block: re.Match[str]) -> str:
        name = block["name"]
        if name in known:
            body = known[name]()
        elif name.startswith("bench-"):
            body = NOTHING
        else:
            raise ValueError(f"there is no generated block {name!r}; known are {', '.join(sorted(known))}")
        return f"{block['head']}{body}{block['tail']}"

    if text.count("<!-- generated: ") != len(_BLOCK.findall(text)):
        raise ValueError("a generated block has no <!-- end --> after it")
    return _BLOCK.sub(write, text)


def _exhibit(name: str, store: Store) -> str:
    table, notes = shown(name, store)
    parts = [*notes, table.markdown().rstrip("\n") if table.rows else table.caption]
    return "\n" + "\n\n".join(parts) + "\n\n"


def _figures(drawings: Callable[[Asked], list[Drawing]], store: Store) -> str:
    parts = [drawing.markdown() for drawing in drawings(Asked(store))]
    return "\n" + "\n\n".join(parts or ["Nothing has been measured yet, so there is no figure."]) + "\n\n"


def _own_block(render: Callable[[Store], str], store: Store) -> str:
    return "\n" + render(store).rstrip("\n") + "\n\n"


def _bench(path: Path) -> str:
    record: dict[str, Any] = json.loads(path.read_text())
    if "study" in record:
        return f"\n{study_table(record)}\n\n"
    rows = record.get("rows")
    if not isinstance(rows, list) or not rows:
        return NOTHING
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if _fits(name, value)))
    lines = [[_short(row.get(name)) for name in columns] for row in rows]
    table = markdown_table([name.replace("_", " ") for name in columns], lines, "l" * len(columns))
    return f"\n{table}\n\nOn {record.get('environment', {}).get('device', 'an unnamed device')}.\n\n"


def _fits(name: str, value: Any) -> bool:
    """Whether a value can stand in a table: plain values, timings with their quantiles, and repeats of a number."""
    if isinstance(value, dict):
        return "median" in value and name not in _LEFT_OUT
    repeats = isinstance(value, list) and bool(value) and all(isinstance(one, float) for one in value)
    return (repeats or not isinstance(value, list)) and name not in _LEFT_OUT


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, dict):  # a timing with its quantiles
        return f"{value['median']:.3g} ({value['low']:.3g}–{value['high']:.3g})"
    if isinstance(value, list):  # repeats
        return f"{min(value):.3g}–{max(value):.3g} (n = {len(value)})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
