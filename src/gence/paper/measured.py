"""What the store holds, cell by cell: a short table for the front page."""

from __future__ import annotations

import pandas as pd

from gence.experiment.store import Store
from gence.metrics import summarize
from gence.paper.exhibit import DATA_TITLES, MODEL_TITLES

LEAST_SEEDS = 3
_CELL = ["data", "subset.n", "subset.rho", "model", "recipe", "loss"]
_SHOWN = {"accuracy": "accuracy, %", "ece": "ECE, %", "offset/accuracy": "accuracy after the offset, %"}


def measured_table(store: Store) -> str:
    """Return a Markdown table of all cells on the test set with at least three seeds, under a recipe with a name."""
    frame = store.frame()
    if frame.empty:
        return "Nothing is measured yet.\n"
    frame = frame[(frame["evaluate_on"] == "test") & ~frame["recipe"].str.startswith("custom")]
    head = ["data", "N", "network", "recipe", "loss", "seeds", *_SHOWN.values(), "diverged"]
    cells = [runs for _, runs in frame.groupby(_CELL, dropna=False) if len(runs) >= LEAST_SEEDS]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * 6 + " ---: |" * (len(head) - 6)]
    lines += [_line(runs) for runs in cells]
    runs_and_devices = f"{sum(map(len, cells))} runs on {' and '.join(sorted(set(frame['device'])))}"
    return "\n".join(lines) + (
        f"\n\nMean ± sample standard deviation over seeds; {runs_and_devices}. The offset is `marginal_offset`, "
        "fitted on the training logits.\n"
    )


def _line(runs: pd.DataFrame) -> str:
    first = runs.iloc[0]
    values = []
    for metric in _SHOWN:
        found = runs[metric].dropna()
        summary = summarize((100 * found).tolist())
        values.append(f"{summary.mean:.1f} ± {summary.std:.1f}" if len(found) == len(runs) else "–")
    size = f"{first['subset.n']:.0f}" if pd.isna(first["subset.rho"]) else f"rho {first['subset.rho']:g}"
    words = [DATA_TITLES.get(first["data"], first["data"]), size]
    words += [MODEL_TITLES.get(first["model"], first["model"]), first["recipe"], first["loss"], str(len(runs))]
    return "| " + " | ".join([*words, *values, str(int((runs["status"] == "diverged").sum()))]) + " |"
