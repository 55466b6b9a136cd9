"""Records of small studies: accuracies over seeds that a script measures by itself, outside of any store of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gence.experiment.environment import environment_record


def study_record(study: str, accuracies: Mapping[tuple[str, str], Sequence[float]], *, rows_are: str) -> dict[str, Any]:
    """Return a study as it is kept: every seed's accuracy, and where it was measured.

    Args:
        study: what was run, such as "examples/unlabelled.py".
        accuracies: (row, column) of the table -> one test accuracy a seed, from 0 to 1.
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
