"""Generated blocks of Markdown files: what stands between two marks comes from records and is never typed.

<!-- generated: table1 -->
... replaced ...
<!-- end -->
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gence.experiment.store import Store
from gence.paper.larger_batches_figure import batches_block
from gence.paper.measured import measured_table
from gence.paper.remedies_course_figure import course_block
from gence.paper.remedies_evidence import read_study
from gence.paper.remedies_figure import figure_block
from gence.paper.remedies_findings import headline
from gence.paper.shown import SHOWN, shown
from gence.paper.small_study import study_table
from gence.paper.speed import speed_table

_BLOCK = re.compile(r"(?P<head><!-- generated: (?P<name>\S+) -->\n)(?P<body>.*?)(?P<tail><!-- end -->)", re.DOTALL)
_LEFT_OUT = ("both_hot_ms", "forward_cold_ms", "backward_cold_ms")  # in the record; too much for a page
NOTHING = "No records have been rendered into this file yet.\n"

Renderer = Callable[[], str]


def renderers(store: Store, bench: Path) -> dict[str, Renderer]:
    """Return the functions that write each block, by name.

    A name of `gence show` is its table with the sentences around it; `remedies_figure` is the remedies' figure and
    what it lacks, `remedies_course_figure` their drift over the epochs, `larger_batches_figure` their accuracy against
    batch size, `headline` what GenCE makes there against cross-entropy; `measured` and `measured_ece` are what the
    store holds, a line a cell; `speed` is the loss's cost, a line a shape; `bench-NAME` is the table of the rows in
    `NAME.json` of the folder of benchmarks, where small studies lie too.

    Args:
        store: where the records of the paper are.
        bench: the folder of benchmark records.
    """
    found: dict[str, Renderer] = {name: functools.partial(_exhibit, name, store) for name in SHOWN}
    found["remedies_figure"] = functools.partial(figure_block, store)
    found["remedies_course_figure"] = functools.partial(course_block, store)
    found["larger_batches_figure"] = functools.partial(batches_block, store)
    found["headline"] = lambda: f"\n{headline(read_study(store))}\n\n"
    found["measured"] = lambda: f"\n{measured_table(store)}\n"
    found["measured_ece"] = lambda: f"\n{measured_table(store, 'ece')}\n"
    if (bench / "loss.json").exists():
        found["speed"] = lambda: f"\n{speed_table(bench / 'loss.json')}\n"
    for path in sorted(bench.glob("*.json")):
        found[f"bench-{path.stem}"] = functools.partial(_bench, path)
    return found


def filled(text: str, known: Mapping[str, Renderer]) -> str:
    """Return a file's text with every block written anew.

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


def _bench(path: Path) -> str:
    record: dict[str, Any] = json.loads(path.read_text())
    if "study" in record:
        return f"\n{study_table(record)}\n\n"
    rows = record.get("rows")
    if not isinstance(rows, list) or not rows:
        return NOTHING
    columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if _fits(name, value)))
    lines = ["| " + " | ".join(name.replace("_", " ") for name in columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(_short(row.get(name)) for name in columns) + " |" for row in rows]
    return "\n" + "\n".join(lines) + f"\n\nOn {record.get('environment', {}).get('device', 'an unnamed device')}.\n\n"


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
