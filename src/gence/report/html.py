"""The page: one file that needs nothing else, from the same rows and drawings as the files beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from gence._version import __version__
from gence.report.build import Chapter, Report
from gence.report.names import Mark, colour_variables, loss_title, marks_for
from gence.report.svg import inlined

SECTIONS: Mapping[str, tuple[str, str]] = {
    "numbers": (
        "Accuracy, NLL and ECE",
        "Every mark is a seed; the bar below is the mean, the line its 95 % t interval.",
    ),
    "differences": (
        "Differences, seed by seed",
        "Each seed gives every loss the same images and the same start, so differences tell more than means. The line "
        "is the 95 % t interval, not corrected for the number of losses. Losses far away are named at the edge.",
    ),
    "reliability": (
        "Reliability",
        "Accuracy (coloured) by confidence; calibrated predictions follow the dotted line. The grey bars show where "
        "predictions are. All seeds together.",
    ),
    "sweeps": ("More labels, larger batches", "Means over seeds with standard deviations."),
    "ood": (
        "Inputs from elsewhere",
        "AUROC of telling test images from out-of-distribution images by the entropy of the prediction; raw softmax.",
    ),
    "learning": ("Learning curves", "On the augmented training images. Losses have different units: compare shapes."),
    "drift": (
        "The marginal over training",
        "GenCE leaves the predicted class marginal almost free. A divergence that grows means that predictions slide "
        "into a few classes.",
    ),
    "marginal": (
        "The marginal at the end",
        "Share of each class in the predictions on the training images (marks, one a run) against its true share "
        "(grey bars).",
    ),
    "confusion": ("Confusion matrices", "Per cent of each true class (rows) by predicted class, all seeds together."),
}
"""The parts of a chapter in order: a heading, and what a reader must know to read its figures."""


def render(report: Report) -> str:
    """Return the page's HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("gence.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    folder = files("gence.report") / "templates"
    losses = list(dict.fromkeys(loss for chapter in report.chapters for loss in chapter.gathered.losses))
    marks = marks_for(losses)
    csv = report.frame.to_csv(index=False).encode()
    return environment.get_template("report.html").render(
        report=report,
        version=__version__,
        # Our own files, not data: the only texts that are not escaped, with the figures below.
        css=Markup((folder / "report.css").read_text(encoding="utf-8")),
        script=Markup((folder / "report.js").read_text(encoding="utf-8")),
        colours=Markup(colour_variables(marks.values())),
        losses=[{"index": i, "title": loss_title(loss), "mark": marks[loss]} for i, loss in enumerate(losses)],
        index={loss: i for i, loss in enumerate(losses)},
        loss_title=loss_title,
        csv=f"data:text/csv;charset=utf-8;base64,{base64.b64encode(csv).decode()}",
        chapters=[_chapter(chapter, number, losses, marks) for number, chapter in enumerate(report.chapters)],
    )


def _chapter(chapter: Chapter, number: int, losses: list[str], marks: dict[str, Mark]) -> dict[str, Any]:
    from markupsafe import Markup

    parts: dict[str, list[dict[str, Any]]] = {section: [] for section in SECTIONS}
    own = chapter.gathered.losses
    for panel, svg in chapter.panels:
        shown = inlined(
            svg,
            name=f"f{number}-{panel.name.replace('/', '-')}",
            title=panel.title,
            description=panel.description,
            marks=list(marks.values()),
            losses=[losses.index(loss) for loss in own],
        )
        parts[panel.section].append(
            {
                "svg": Markup(shown),
                "title": panel.title,
                "description": panel.description,
                "loss": None if panel.loss is None else losses.index(panel.loss),
            }
        )
    sections = [
        {"id": f"c{number}-part-{name}", "title": SECTIONS[name][0], "text": SECTIONS[name][1], "panels": found}
        for name, found in parts.items()
        if found
    ]
    records = [record for loss in own for record in chapter.gathered.records[loss]]
    return {
        "number": number,
        "title": chapter.setting.title,
        "verdict": chapter.verdict,
        "concerns": chapter.concerns,
        "tables": {table.name: table for table in chapter.tables},
        "sections": sections,
        "mistakes": chapter.mistakes,
        "environments": sorted({json.dumps(r.environment, sort_keys=True) for r in records}),
        "specs": json.dumps([{"key": r.key, "spec": r.spec.to_dict()} for r in records], indent=1),
    }
