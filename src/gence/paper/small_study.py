"""The table of a small study, from the record that its script wrote (`gence.experiment.small_study`)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


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
    lines = ["| " + " | ".join([record["rows_are"], *columns]) + " |", "| --- |" + " ---: |" * len(columns)]
    for row in dict.fromkeys(row for row, _ in cells):
        lines.append("| " + " | ".join([row, *(_cell(cells.get((row, column))) for column in columns)]) + " |")
    counts = sorted({len(seeds) for seeds in cells.values()})
    seeds = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    environment = record["environment"]
    return "\n".join(lines) + (
        f"\n\nTest accuracy in %, mean ± sample standard deviation over {seeds} seeds; {record['study']}, on "
        f"{environment['device']} with torch {environment['versions']['torch']}."
    )


def _cell(accuracies: Sequence[float] | None) -> str:
    if accuracies is None:
        return "–"
    spread = f" ± {100 * statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * statistics.fmean(accuracies):.1f}{spread}"
