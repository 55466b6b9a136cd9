"""Tables of probabilities that can be trusted: before and after calibration, and what detectors make of OOD inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gence.lab.report.choice import CALIBRATED
from gence.lab.report.frame import Setting, by_seed, losses_in, ood_sets
from gence.lab.report.style import BRIER, ECE, NLL, Quantity, loss_title
from gence.lab.report.tables import Cell, Row, Table

if TYPE_CHECKING:
    import pandas as pd


def _nats(metric: str, title: str) -> Quantity:
    return Quantity(metric=metric, title=title, percent=False, higher_is_better=False, digits=3)


CALIBRATION = (
    NLL,
    _nats("nll_calibration", "NLL, calibration part"),
    ECE,
    BRIER,
    _nats("brier_calibration", "Brier, calibration part"),
)
SETS = tuple(
    quantity
    for level in (90, 95)
    for quantity in (
        Quantity(metric=f"coverage/lac{level}", title=f"Coverage of {level} % sets"),
        Quantity(
            metric=f"set_size/lac{level}", title=f"Classes per {level} % set", percent=False, higher_is_better=False,
            digits=2,
        ),
    )
)  # fmt: skip
DETECTORS = {
    "entropy": "Entropy",
    "confidence": "Max. probability",
    "energy": "Energy",
    "max_logit": "MaxLogit",
    "knn": "kNN",
    "mahalanobis": "Mahalanobis",
    "vim": "ViM",
}
"""Detectors in the order in which they are shown. The last three read features."""


SHORT = (NLL, ECE, *SETS[:2])
"""The columns that a narrow terminal has room for."""


def calibration_table(frame: pd.DataFrame, quantities: Sequence[Quantity] = (*CALIBRATION, *SETS)) -> Table | None:
    """Return two rows per loss, raw and calibrated: means over seeds; None where nothing is calibrated."""
    losses = [loss for loss in losses_in(frame) if by_seed(frame, loss, f"{CALIBRATED}{NLL.metric}")]
    if not losses:
        return None
    rows = []
    best = {q: _best(frame, losses, q) for q in quantities}
    for loss in losses:
        for prefix, words in (("", "raw"), (CALIBRATED, "calibrated")):
            numbers = (_cell(q, by_seed(frame, loss, prefix + q.metric), best[q]) for q in quantities)
            rows.append(Row(cells=(_word(f"{loss_title(loss)}, {words}"), *numbers), loss=loss))
    return Table(
        name="calibration",
        caption="Probabilities raw and divided by a temperature that was fitted on samples that the model did not see: "
        "for heads out of fold on the training labels, for networks on the part that was held out. Prediction sets "
        "(LAC) have their threshold from the same samples; they keep their promise if coverage is close to the level "
        "in the column's name. "
        + "Calibration parts are what the best temperature of the test samples would take off. " * (BRIER in quantities)
        + "Means over seeds; the best of each score and size is marked.",
        columns=("Loss", *(q.heading if not q.metric.startswith("coverage") else f"{q.title}, %" for q in quantities)),
        rows=tuple(rows),
    )


def detector_tables(setting: Setting) -> list[Table]:
    """Return a table per OOD set: a row per loss, the AUROC of every detector."""
    found = []
    for number, ood in enumerate(ood_sets(setting.frame), 1):
        names = [name for name in DETECTORS if f"ood/{ood}/auroc_{name}" in setting.frame]
        quantities = [Quantity(metric=f"ood/{ood}/auroc_{name}", title=DETECTORS[name]) for name in names]
        losses = losses_in(setting.frame)
        top = max((_mean(by_seed(setting.frame, loss, q.metric)) for loss in losses for q in quantities), default=0.0)
        rows = []
        for loss in losses:
            values = [(q, by_seed(setting.frame, loss, q.metric)) for q in quantities]
            rows.append(
                Row(cells=(_word(loss_title(loss)), *(_cell(q, own, q.text(top)) for q, own in values)), loss=loss)
            )
        on_features = "; the last of them read features" if "knn" in names else ""
        found.append(
            Table(
                name=f"detectors-{number}",
                caption=f"AUROC in per cent of telling test inputs (positive) from those of {ood}, raw logits"
                f"{on_features}. Means over seeds; the best of all is marked. FPR at 95 % TPR and both AUPR are in the "
                "records.",
                columns=("Loss", *(DETECTORS[name] for name in names)),
                rows=tuple(rows),
            )
        )
    return found


def _best(frame: pd.DataFrame, losses: Sequence[str], quantity: Quantity) -> str | None:
    """The best mean of a column as printed; none of coverage, of which more is not better, and of parts of a score."""
    if quantity.metric.startswith("coverage") or quantity.metric.endswith("_calibration"):
        return None
    own = [_mean(by_seed(frame, loss, prefix + quantity.metric)) for loss in losses for prefix in ("", CALIBRATED)]
    finite = [value for value in own if math.isfinite(value)]
    return quantity.text((max if quantity.higher_is_better else min)(finite)) if finite else None


def _cell(quantity: Quantity, values: dict[int, float], best: str | None) -> Cell:
    mean = _mean(values)
    text = quantity.text(mean)
    return Cell(text=text, value=quantity.scaled(mean) if math.isfinite(mean) else "", best=text == best)


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else math.nan


def _word(text: str) -> Cell:
    return Cell(text=text, value=text)
