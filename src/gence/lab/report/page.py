"""A report from a store: the page, and beside it every figure (SVG, PNG) and table (Markdown, LaTeX, CSV) as a file."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence._version import __version__
from gence.lab.report.choice import next_step, recommendation
from gence.lab.report.figures import Panel, as_png, as_svg, inlined, panels
from gence.lab.report.frame import (
    Setting,
    SettingRecords,
    load_rows,
    read_references,
    read_setting,
    read_tuned,
    settings,
)
from gence.lab.report.mistakes import Mistake, confident_mistakes, images_at_hand, read_predictions, short_name
from gence.lab.report.rows import class_tables, encoder_in_words, facts, train_command
from gence.lab.report.style import Mark, colour_variables, loss_title, marks_for
from gence.lab.report.tables import Table, difference_table, loss_table, reference_table, run_table, tuning_table
from gence.lab.report.trust import calibration_table, detector_tables
from gence.lab.report.verdict import Verdict, judge
from gence.lab.report.warnings import image_concerns, reference_concerns, run_concerns
from gence.lab.store import Store, StoreError, frame_as_csv, is_it_the_folder, replace_file

if TYPE_CHECKING:
    import pandas as pd

_OWN_FILES = {
    "figures": re.compile(
        r"(s\d+-)?((accuracy|nll|ece)(-difference)?|accuracy-by-(labels|batch)|auroc-\d+|ood-\d+-\d+|"
        r"(train|test)-(accuracy|loss)|marginal-kl|risk-coverage|(reliability|marginal|confusion)-\d+)\.(svg|png)"
    ),
    "tables": re.compile(
        r"(s\d+-)?(losses|classes(-f1)?|calibration|detectors-\d+|references|tuning|differences|runs)\.(md|tex|csv)"
    ),
}
MOST_SETTINGS = 6
"""Settings that get all their figures; a page with more would grow beyond what can be sent to anybody."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Chapter:
    """Everything the report says and shows about one setting."""

    setting: Setting
    gathered: SettingRecords
    verdict: Verdict
    concerns: tuple[str, ...]
    tables: tuple[Table, ...]
    panels: tuple[tuple[Panel, str], ...]  # with the SVG of each
    mistakes: dict[str, list[Mistake]] | None  # None: the data set is not available
    classes: tuple[str, ...]
    encoder: str = ""  # what embedded the images, in a sentence; empty for networks from scratch
    advice: str = ""  # which loss to use
    next_step: str = ""
    facts: tuple[tuple[str, str], ...] = ()  # what was compared: labels, test samples, network, recipe ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Report:
    """What a store says, ready to be written."""

    title: str
    frame: pd.DataFrame
    chapters: tuple[Chapter, ...]
    left_out: tuple[str, ...]  # titles of the settings beyond MOST_SETTINGS


def build_report(
    store: Store | str | os.PathLike[str],
    *,
    keys: Iterable[str] | None = None,
    concerns: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> Report:
    """Gather all that a report shows.

    Args:
        store: the store, or its folder.
        keys: the runs to show; all that were judged on test by default.
        concerns: what was found worrying before the runs, to be shown with the first setting.
        cache_dir: where data sets are cached.

    Raises:
        StoreError: if there is no run to show.
    """
    store = Store.at(store, must_exist=True)
    frame = load_rows(store, keys=keys)
    found = settings(frame)
    if not found:
        raise StoreError(f"the store {store.root} has no finished run to report; {is_it_the_folder(store.root)}")
    chapters = []
    for number, setting in enumerate(found[:MOST_SETTINGS]):
        before = concerns if number == 0 else ()
        chapters.append(_chapter(store, setting, frame, before, cache_dir, prefix=f"s{number + 1}-" * (len(found) > 1)))
    return Report(
        title="Losses compared",
        frame=frame,
        chapters=tuple(chapters),
        left_out=tuple(setting.title for setting in found[MOST_SETTINGS:]),
    )


def write_report(report: Report, out: str | os.PathLike[str], *, files: bool = True) -> Path:
    """Write a report into a folder; return the page's path.

    Every name that is written is made here, from fixed words and numbers, never from a class or a file of the data.

    Args:
        report: what `build_report` returned.
        out: the folder; made if absent, and only files of a report are replaced in it.
        files: also write figures/ and tables/; those of an earlier report that this one does not have are removed.
    """

    folder = make_folder(out)
    page = folder / "report.html"
    replace_file(page, _encoded(render(report)))
    replace_file(folder / "runs.csv", _encoded(frame_as_csv(report.frame)))
    if not files:
        return page
    written: set[str] = set()
    for number, chapter in enumerate(report.chapters):
        prefix = f"s{number + 1}-" * (len(report.chapters) > 1)
        content = {}
        for panel, svg in chapter.panels:
            content[f"figures/{panel.name}.svg"] = _encoded(svg)
            content[f"figures/{panel.name}.png"] = as_png(panel.figure)
        for table in chapter.tables:
            for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
                content[f"tables/{prefix}{table.name}.{ending}"] = _encoded(text)
        for name, data in content.items():
            replace_file(folder / name, data)
        written |= content.keys()
    _remove_old(folder, written)
    return page


def _encoded(text: str) -> bytes:
    """Return a text as UTF-8, with escapes for bytes of a file's name that are not valid."""
    return text.encode(errors="backslashreplace")


def _remove_old(folder: Path, written: Iterable[str]) -> None:
    """Remove figures and tables of an earlier report, known by the names that reports give, and nothing else."""
    kept = {folder / name for name in written}
    for part, names in _OWN_FILES.items():
        for path in (folder / part).glob("*"):
            if names.fullmatch(path.name) and path not in kept and path.is_file():
                path.unlink()


def make_folder(out: str | os.PathLike[str]) -> Path:
    """Return the folder of a report, made if absent, or say why it cannot be.

    Raises:
        StoreError: it is a file, or the system does not let us make it.
    """
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StoreError(f"out is {folder}, and it or a part of it is a file; expected a folder") from None
    except OSError as error:
        raise StoreError(f"out is {folder}, which cannot be created: {error.strerror}; expected a folder") from error
    return folder


def _chapter(
    store: Store, setting: Setting, whole: pd.DataFrame, before: Sequence[str], cache_dir: Path | None, prefix: str
) -> Chapter:
    gathered = read_setting(store, setting)
    records = {record.key: record for runs in gathered.records.values() for record in runs}
    verdict = judge(setting.frame)
    images = images_at_hand(records[setting.frame["key"].iloc[0]], cache_dir)
    classes = tuple(map(short_name, images.classes)) if images is not None else ()
    predictions = {} if images is None else read_predictions(store, gathered)
    references, tuned = read_references(store, setting), read_tuned(store, setting)
    behind = reference_concerns(setting.frame, references)
    tables = (
        loss_table(setting), reference_table(references) if references else None, tuning_table(setting.frame, tuned),
        difference_table(verdict), calibration_table(setting.frame), *detector_tables(setting),
        run_table(setting.frame), *class_tables(predictions, classes),
    )  # fmt: skip
    shown = predictions or read_predictions(store, gathered)
    drawn = [
        replace(panel, name=prefix + panel.name) for panel in panels(setting, gathered, verdict, whole, classes, shown)
    ]
    if tuned and not setting.title.endswith(", tuned"):
        setting = replace(setting, title=f"{setting.title}, tuned")
    return Chapter(
        setting=setting,
        gathered=gathered,
        verdict=verdict,
        concerns=(
            *behind,
            *before,
            *image_concerns(record.result.data for record in records.values()),
            *run_concerns(setting.frame),
        ),
        tables=tuple(table for table in tables if table is not None),
        panels=tuple((panel, as_svg(panel.figure, panel.name)) for panel in drawn),
        mistakes=None if images is None else confident_mistakes(predictions, images),
        classes=classes,
        encoder=encoder_in_words(gathered),
        advice=recommendation(setting.frame),
        next_step=next_step(setting.frame, behind=bool(behind), tuned=bool(tuned)),
        facts=facts(setting, gathered, tuned),
    )


SECTIONS: Mapping[str, tuple[str, str]] = {
    "sweeps": ("More labels, larger batches", "Means over seeds with standard deviations."),
    "numbers": (
        "Accuracy, NLL and ECE",
        "Every mark is a seed; the bar below is the mean, the line its 95 % t interval.",
    ),
    "differences": (
        "Differences, seed by seed",
        "Each seed gives every loss the same samples and the same start, so differences tell more than means. The line "
        "is the 95 % interval, corrected for the number of losses. Losses far away are named at the edge.",
    ),
    "reliability": (
        "Reliability",
        "Accuracy (coloured) by confidence; calibrated predictions follow the dotted line. The grey bars show where "
        "predictions are; the open marks show accuracy after calibration, where there was one. All seeds together.",
    ),
    "risk": (
        "Answering only when sure",
        "The error rate among the most confident test samples, against the share of them that is answered; mean over "
        "seeds.",
    ),
    "ood": (
        "Out-of-distribution inputs",
        "AUROC of telling test samples from out-of-distribution samples by the entropy of the prediction; raw softmax.",
    ),
    "learning": (
        "Learning curves",
        "Accuracy on (at most 1,000) test samples during training; accuracy and loss on augmented training samples. "
        "Losses have different units: compare shapes.",
    ),
    "drift": (
        "The marginal over training",
        "GenCE leaves the predicted class marginal almost free. A divergence that grows means that predictions slide "
        "into a few classes.",
    ),
    "marginal": (
        "The marginal at the end",
        "Share of each class in the predictions on the training samples (marks, one per run) against its true share "
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
        loader=PackageLoader("gence.lab.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    folder = files("gence.lab.report") / "templates"
    losses = list(dict.fromkeys(loss for chapter in report.chapters for loss in chapter.gathered.losses))
    marks = marks_for(losses)
    csv = _encoded(frame_as_csv(report.frame))
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
        chapters=[_chapter_html(chapter, number, losses, marks) for number, chapter in enumerate(report.chapters)],
    )


def notebook_html(report: Report) -> str:
    """Return HTML for a notebook; figures are pictures, so nothing reaches into the notebook's own page."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("gence.lab.report"), autoescape=True)
    chapter = report.chapters[0]
    figures = [
        {
            "uri": f"data:image/svg+xml;base64,{base64.b64encode(_encoded(svg)).decode()}",
            "text": f"{panel.title}. {panel.description}",
        }
        for panel, svg in chapter.panels
        if panel.section == "numbers"
    ]
    template = environment.get_template("notebook.html")
    return template.render(chapter=chapter, table=chapter.tables[0], figures=figures)


def _chapter_html(chapter: Chapter, number: int, losses: list[str], marks: dict[str, Mark]) -> dict[str, Any]:
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
                "size": "" if panel.loss is None else "medium" if panel.section == "confusion" else "small",
                # What a table above says is for those who do not see the figure: it is in the drawing itself.
                "caption": "" if panel.section in ("numbers", "differences") else panel.description,
            }
        )
    sections = [
        {
            "id": f"c{number}-part-{name}", "title": SECTIONS[name][0], "text": SECTIONS[name][1], "panels": found,
            "first": name == "sweeps",  # what several settings were run for stands before all tables
        }
        for name, found in parts.items()
        if found
    ]  # fmt: skip
    records = [record for loss in own for record in chapter.gathered.records[loss]]
    return {
        "number": number,
        "title": chapter.setting.title,
        "encoder": chapter.encoder,
        "facts": chapter.facts,
        "advice": chapter.advice,
        "next_step": chapter.next_step,
        "verdict": chapter.verdict,
        "concerns": chapter.concerns,
        "tables": {table.name: table for table in chapter.tables},
        "sections": sections,
        "mistakes": chapter.mistakes,
        "environments": sorted({json.dumps(r.environment, sort_keys=True) for r in records}),
        "commands": "\n".join(train_command(r.spec) for r in records),
        "specs": json.dumps([{"key": r.key, "spec": r.spec.to_dict()} for r in records], indent=1),
    }
