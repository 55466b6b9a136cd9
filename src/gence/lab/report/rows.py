"""What a page says of runs on the rows of a table, and its table of classes, worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gence.lab.report.mistakes import Predictions
from gence.lab.report.style import loss_title
from gence.lab.report.tables import Cell, Row, Table


def class_table(predictions: Predictions, classes: Sequence[str]) -> Table | None:
    """Return a row per class with each loss's accuracy on it, the class that is hardest for all first.

    None where no predictions are kept, or a run has classes that the data do not have.
    """
    K = len(classes)
    if not predictions or any(int(run["label"].max(initial=0)) >= K for runs in predictions.values() for run in runs):
        return None
    first = next(iter(predictions.values()))[0]
    support = np.bincount(first["label"].astype(int), minlength=K)
    shares = {loss: np.mean([_right(run, K) for run in runs], axis=0) for loss, runs in predictions.items()}
    means = np.mean(list(shares.values()), axis=0)
    order = [k for k in np.argsort(means, kind="stable").tolist() if support[k]]
    rows = tuple(
        Row(
            cells=(
                Cell(text=classes[k], value=classes[k]),
                Cell(text=str(support[k]), value=int(support[k])),
                *(Cell(text=f"{100 * share[k]:.1f}", value=float(100 * share[k])) for share in shares.values()),
            )
        )
        for k in order
    )
    return Table(
        name="classes",
        caption=f"Accuracy in % on the test samples of each of {len(rows)} classes, mean over "
        f"{max(len(runs) for runs in predictions.values())} seeds; the classes that are hardest for all losses first.",
        columns=("Class", "Test samples", *(loss_title(loss) for loss in shares)),
        rows=rows,
    )


def _right(run: Mapping[str, np.ndarray], K: int) -> np.ndarray:
    """The share of each class's samples that a run got right; NaN never, as classes without samples count as 0."""
    label = run["label"].astype(int)
    right = np.bincount(label, weights=label == run["predicted"], minlength=K)
    shares: np.ndarray = right / np.maximum(np.bincount(label, minlength=K), 1)
    return shares


def rows_in_words(about: Mapping[str, Any]) -> str:
    """Return what heads on rows read, in sentences.

    >>> rows_in_words({"name": "features", "features": 16, "rows": "features", "columns": "Ready features: 16 per row"})
    'Ready features: 16 per row.'
    """
    columns = f"{about['columns']}."
    if about["rows"] == "features":
        return columns
    if about["rows"] == "columns":
        return (
            f"{columns} {about['features']} features per row: missing numbers are filled with the median and all are "
            "standardised, categories are columns of 0 and 1; fitted on the training part."
        )
    cut = about["cut"]
    longer = "No text is" if not cut else "One text is" if cut == 1 else f"{cut:,} texts are"
    return (
        f"{columns} Frozen features of the pretrained text encoder {about['name']}: {about['features']} per text "
        f"(weights {about['weights']}). {longer} longer than the {about['limit']} tokens it reads"
        f"{'.' if not cut else ', and cut off there.'}"
    )
