"""A report from a store: the page, and beside it every figure (SVG, PNG) and table (Markdown, LaTeX, CSV) as a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gence.experiment.atomic import StoreError, replace
from gence.experiment.store import Store
from gence.experiment.store_reports import is_it_the_folder
from gence.report.aggregate import Setting, load_rows, settings
from gence.report.concerns import image_concerns, run_concerns
from gence.report.figures import panels
from gence.report.gathered import Gathered, gather
from gence.report.mistakes import Mistake, confident_mistakes, judged_images
from gence.report.panel import Panel
from gence.report.svg import as_png, as_svg
from gence.report.tables import Table, difference_table, loss_table, run_table
from gence.report.verdict import Verdict, judge

if TYPE_CHECKING:
    import pandas as pd

_OWN_FILES = {
    "figures": re.compile(
        r"(s\d+-)?((accuracy|nll|ece)(-difference)?|accuracy-by-(labels|batch)|auroc-\d+|ood-\d+-\d+|"
        r"train-(accuracy|loss)|marginal-kl|(reliability|marginal|confusion)-\d+)\.(svg|png)"
    ),
    "tables": re.compile(r"(s\d+-)?(losses|differences|runs)\.(md|tex|csv)"),
}
MOST_SETTINGS = 6
"""Settings that get all their figures; a page with more would grow beyond what can be sent to anybody."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Chapter:
    """All that is said and shown about one setting."""

    setting: Setting
    gathered: Gathered
    verdict: Verdict
    concerns: tuple[str, ...]
    tables: tuple[Table, ...]
    panels: tuple[tuple[Panel, str], ...]  # with the SVG of each
    mistakes: dict[str, list[Mistake]] | None  # None: the data set is not at hand
    classes: tuple[str, ...]


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
    title: str | None = None,
    cache_dir: Path | None = None,
) -> Report:
    """Gather all that a report shows.

    Args:
        store: the store, or its folder.
        keys: the runs to show; all that were judged on test by default.
        concerns: what was found worrying before the runs, to be shown with the first setting.
        title: of the page; by default the first setting's.
        cache_dir: where data sets are cached.

    Raises:
        StoreError: if there is no run to show.
    """
    store = store if isinstance(store, Store) else Store(store, must_exist=True)
    frame = load_rows(store, keys=keys)
    found = settings(frame)
    if not found:
        raise StoreError(f"the store {store.root} has no finished run to report; {is_it_the_folder(store.root)}")
    chapters = []
    for number, setting in enumerate(found[:MOST_SETTINGS]):
        before = concerns if number == 0 else ()
        chapters.append(_chapter(store, setting, frame, before, cache_dir, prefix=f"s{number + 1}-" * (len(found) > 1)))
    return Report(
        title=title or "Losses compared",
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
    from gence.report.html import render

    folder = make_folder(out)
    page = folder / "report.html"
    replace(page, render(report).encode())
    replace(folder / "runs.csv", report.frame.to_csv(index=False).encode())
    if not files:
        return page
    written: set[str] = set()
    for number, chapter in enumerate(report.chapters):
        prefix = f"s{number + 1}-" * (len(report.chapters) > 1)
        content = {}
        for panel, svg in chapter.panels:
            content[f"figures/{panel.name}.svg"] = svg.encode()
            content[f"figures/{panel.name}.png"] = as_png(panel.figure)
        for table in chapter.tables:
            for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
                content[f"tables/{prefix}{table.name}.{ending}"] = text.encode()
        for name, data in content.items():
            replace(folder / name, data)
        written |= content.keys()
    _remove_old(folder, written)
    return page


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
        raise StoreError(f"out is {folder}, which cannot be made: {error.strerror}; expected a folder") from error
    return folder


def _chapter(
    store: Store, setting: Setting, whole: pd.DataFrame, before: Sequence[str], cache_dir: Path | None, prefix: str
) -> Chapter:
    gathered = gather(store, setting)
    images_of_runs = (record.result.data for runs in gathered.records.values() for record in runs)
    verdict = judge(setting.frame)
    images = judged_images(store.read(setting.frame["key"].iloc[0]), cache_dir)
    classes = images.classes if images is not None else ()
    drawn = [
        Panel(**{**panel.__dict__, "name": prefix + panel.name})
        for panel in panels(setting, gathered, verdict, whole, classes)
    ]
    return Chapter(
        setting=setting,
        gathered=gathered,
        verdict=verdict,
        concerns=(*before, *image_concerns(images_of_runs), *run_concerns(setting.frame)),
        tables=(loss_table(setting), difference_table(verdict), run_table(setting.frame)),
        panels=tuple((panel, as_svg(panel.figure, panel.name)) for panel in drawn),
        mistakes=None if images is None else confident_mistakes(store, gathered, images),
        classes=classes,
    )
