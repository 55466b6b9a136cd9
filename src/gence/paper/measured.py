"""What the store holds, a line a cell: a short table for the front page."""

from __future__ import annotations

import pandas as pd

from gence.experiment.store import Store
from gence.metrics import Summary, summarize
from gence.paper.exhibit import ANCHORED, DATA_TITLES, MODEL_TITLES, OFFSET, SIX_LOSSES, Column

LEAST_SEEDS = 3
_GENCE, _CE, *_OTHERS = SIX_LOSSES
COLUMNS = (_CE, _GENCE, OFFSET, ANCHORED, *_OTHERS)
"""What a reader asks first stands first: cross-entropy, GenCE and its two repairs."""

_CELL = ["data", "subset.n", "subset.rho", "model", "recipe"]
_METRICS = {"accuracy": "Accuracy, %", "ece": "Calibration error (ECE), %, 15 bins; to be read beside the accuracy"}


def measured_table(store: Store, metric: str = "accuracy") -> str:
    """Return a Markdown table, a line a cell in which cross-entropy and GenCE have at least three seeds.

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
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * 4 + " ---: |" * len(COLUMNS)]
    shown = pd.concat(cells)
    diverged = int((shown["status"] == "diverged").sum())
    seeds = sorted({len(_of(runs, column)) for runs in cells for column in COLUMNS} - set(range(LEAST_SEEDS)))
    note = (
        f"{_METRICS[metric]}: mean ± sample standard deviation over {' or '.join(map(str, seeds))} seeds. "
        f"{len(shown)} runs on {' and '.join(sorted(set(shown['device'])))}; {diverged or 'none'} diverged."
    )
    return "\n".join([*lines, *(_line(runs, metric) for runs in cells)]) + f"\n\n{note}\n"


def _of(runs: pd.DataFrame, column: Column) -> pd.DataFrame:
    return runs[runs["loss"] == str(column.loss)]


def _can_be_compared(runs: pd.DataFrame) -> bool:
    return all(len(_of(runs, column)) >= LEAST_SEEDS for column in (_CE, _GENCE))


def _line(runs: pd.DataFrame, metric: str) -> str:
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
    return "| " + " | ".join(words) + " |"


def _summary(runs: pd.DataFrame, name: str) -> Summary | None:
    """Mean and spread in per cent; None where there are few seeds, or one without this number."""
    values = 100 * runs[name].dropna()
    return summarize(values.tolist()) if len(values) >= max(LEAST_SEEDS, len(runs)) else None
