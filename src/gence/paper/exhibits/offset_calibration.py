"""What the records of networks trained from scratch tell of calibration: raw and after the marginal offset.

They keep metrics and reliability curves, no logits: a temperature, prediction sets and further detectors cannot be
computed from them. The study `after_calibration` has those, on frozen features.
"""

from __future__ import annotations

import statistics

from gence.lab.report import Cell, Row, Table
from gence.paper.exhibit import ANCHORED, MODEL_TITLES, SIX_LOSSES
from gence.paper.exhibit_registry import Asked, Entry, View, load_exhibit
from gence.paper.records import Reader, measure

NAME = "offset_calibration"
LINES = (*SIX_LOSSES, ANCHORED)
OVER = "over-confidence"
COLUMNS = {
    "accuracy": ("Accuracy, %", 100, 1),
    "offset/accuracy": ("Accuracy, offset, %", 100, 1),
    "nll": ("NLL", 1, 2),
    "offset/nll": ("NLL, offset", 1, 2),
    "ece": ("ECE, %", 100, 1),
    "offset/ece": ("ECE, offset, %", 100, 1),
    OVER: ("Over-confidence, points", 100, 1),
}
"""Metric -> its title, scale and digits."""

Means = dict[tuple[str, str], dict[str, float]]
"""(network, name of the loss) -> metric -> mean."""


def means(asked: Asked) -> tuple[Means, dict[str, int]]:
    """Means over the rows of Table 1 that have all seeds of every loss, and how many rows that are, by network."""
    reader, found, counts = Reader(asked.store), Means(), dict[str, int]()
    exhibit = load_exhibit("table1")
    rows = [one for one in measure(exhibit, reader) if all(one.cells[line.name].complete for line in LINES)]
    for network in sorted(MODEL_TITLES.values(), reverse=True):
        own = [one.row for one in rows if network in one.row.labels]
        counts |= {network: len(own)} if own else {}
        for line in LINES if own else ():
            records = [reader.record(spec) for row in own for spec in row.specs(line, exhibit.seeds)]
            metrics = [record.result.metrics for record in records if record is not None]
            found[network, line.name] = {
                name: statistics.fmean(one[name] for one in metrics) for name in COLUMNS if name != OVER
            } | {OVER: statistics.fmean(one["mean_confidence"] - one["accuracy"] for one in metrics)}
    return found, counts


def view(asked: Asked) -> View:
    """A row per network and loss: accuracy, NLL and ECE raw and after the offset, and how much is over-confidence."""
    found, counts = means(asked)
    titles = {line.name: line for line in LINES}
    rows, seen = [], set[str]()
    for (network, name), values in found.items():
        label = "" if network in seen else f"{network}, {counts[network]} rows"
        seen.add(network)
        cells = (
            Cell(text=f"{scale * values[metric]:.{digits}f}", value=scale * values[metric])
            for metric, (_, scale, digits) in COLUMNS.items()
        )
        begin = (Cell(text=label, value=network), Cell(text=titles[name].title, value=titles[name].title))
        rows.append(Row(cells=(*begin, *cells), loss=str(titles[name].loss)))
    caption = "Means over five seeds and the complete rows of Table 1. Over-confidence: mean confidence less accuracy."
    if not rows:
        caption = "No row of Table 1 is complete yet."
    columns = ("Network", "Loss", *(title for title, *_ in COLUMNS.values()))
    return Table(name=NAME.replace("_", "-"), caption=caption, columns=columns, rows=tuple(rows)), [CANNOT]


CANNOT = (
    "These records keep metrics and reliability curves, no logits. So they do not tell what a temperature fitted on "
    "held-out labels, prediction sets, MaxLogit or detectors on features would give: the study after_calibration does, "
    "on frozen features."
)

ENTRIES = (
    Entry(
        name=NAME, place=8, heading="Networks from scratch: calibration raw and after the offset", view=view,
        options=(), of="table1",
        findings=(
            "With VGG-19 plain GenCE is worse calibrated than cross-entropy under the paper's recipe: its calibration "
            "error is 21.5 % raw and 17.8 % after the offset, that of cross-entropy 13.7 and 13.3 %, and its log loss "
            "is higher too, 2.54 and 2.33 against 2.20 and 2.21.",
            "With ResNet-50 it is better calibrated, 13.4 against 25.9 % after the offset, and 5.0 points less "
            "accurate.",
            "Of both losses' errors nearly everything is over-confidence, which is what one temperature can remove; "
            "whether anything of the difference would remain cannot be told from these records.",
        ),
    ),
)  # fmt: skip
