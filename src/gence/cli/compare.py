"""``gence compare`` and ``gence report``: does GenCE help on these data?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gence.cli.options import read_sources
from gence.cli.store import store_at
from gence.cli.terminal import (
    exit_if_interrupted,
    failure_lines,
    interruption_told,
    print_table,
    table_console,
    table_fits,
)

if TYPE_CHECKING:
    from rich.console import Console

    from gence.lab.report import Report, Setting


def register(app: typer.Typer) -> None:
    """Add ``gence compare``; ``gence report`` and ``gence show`` also know the paper, and call what is here."""
    app.command()(_with_flags(compare))


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose options are those that `CompareOptions` gives to the command line."""
    from gence.lab.compare import flags

    parameters = []
    for option, flag, default in flags():
        shown = typer.Option(default, help=flag.help, min=flag.least)
        name = flag.name or option.name
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=flag.kind))
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def compare(**given: Any) -> None:
    """Compare losses on your images over several seeds, and report which differences are significant.

    With no option at all: scikit-learn's digits, 100 labels, seven losses, five seeds.
    Rerun the same command to resume after an interruption.

    Example: gence compare --data photos/ --n 500 --losses gence,ce,focal --ood other-photos/
    """
    from gence.lab.compare import compare as run, flags
    from gence.lab.report import train_command

    # What is not given has the default of the Python call, but for the processes.
    values = {option.name: given[flag.name or option.name] for option, flag, _ in flags()}
    values["ood"] = read_sources(values["ood"])
    options = {"workers": _cores(), **{name: value for name, value in values.items() if value is not None}}
    with interruption_told("without a report"):
        result = run(**options)
    console = table_console()
    if result.report is not None:
        _print_report(console, result.report)
    console.print(f"{result.summary()}.", highlight=False, markup=False)
    for line in failure_lines(result.runs.failed):
        console.print(line, style="red", highlight=False, markup=False)
    if result.page is not None:
        size = result.page.stat().st_size / 1e6
        console.print(
            f"Report: {result.page} ({size:.1f} MB; {result.seconds:.0f} s in all)", highlight=False, markup=False,
            soft_wrap=True,
        )  # fmt: skip
    if result.recommended is not None:
        command = train_command(result.recommended)
        told = (
            f"Saved: {result.saved}"
            if result.saved
            else f"To train this network and keep it:\n{command} --save best.safetensors"
        )
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    exit_if_interrupted(result.runs.stopped)
    if result.runs.failed:
        raise typer.Exit(1)


def report(store: Path, out: Path) -> None:
    """Write the report of a store: one page, and every figure and table as a file (``gence report STORE``)."""
    from gence.lab.report import build_report, make_folder, write_report

    page = write_report(build_report(store_at(store, must_exist=True)), make_folder(out))
    print(f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB)")


def show(store: Path) -> None:
    """Print what a store says: for every setting the verdict and the table of losses (``gence show STORE``)."""
    from gence.lab.report import image_concerns, judge, load_rows, recommendation, settings
    from gence.lab.store import is_it_the_folder

    records = store_at(store, must_exist=True)
    found = settings(load_rows(records))
    if not found:
        raise ValueError(f"the store {store} has no finished run; {is_it_the_folder(store)}")
    console = table_console()
    for setting in found:
        console.print(recommendation(setting.frame), style="bold", highlight=False, markup=False)
        console.print(judge(setting.frame).headline, highlight=False, markup=False)
        _print_losses(console, setting)
        for concern in image_concerns(map(records.images, setting.frame["key"])):
            console.print(f"Warning: {concern}", style="yellow", highlight=False, markup=False)


def _print_report(console: Console, report: Report) -> None:
    from gence.lab.report import SHORT, calibration_table

    for chapter in report.chapters:
        if len(report.chapters) > 1:
            console.rule(chapter.setting.title)
        console.print(chapter.advice, style="bold", highlight=False, markup=False)
        console.print(f"{chapter.verdict.headline} {chapter.next_step}", highlight=False, markup=False)
        _print_losses(console, chapter.setting)
        for table in chapter.tables:
            if table.name in ("references", "tuning"):
                print_table(table, console)
        calibration = calibration_table(chapter.setting.frame, SHORT)
        if calibration is not None:
            print_table(calibration, console)
        for found in chapter.verdict.metrics:
            console.print(f"- {found.sentence()}", highlight=False, markup=False)
        for note in chapter.verdict.notes:
            console.print(note, style="dim", highlight=False, markup=False)
        for concern in chapter.concerns:
            console.print(f"Warning: {concern}", style="yellow", highlight=False, markup=False)


def _print_losses(console: Console, setting: Setting) -> None:
    """Print the table of losses: the main columns, and those of OOD sets beside them, or below if that is too wide."""
    from gence.lab.report import MAIN, auroc_of, loss_table, ood_sets

    outside = tuple(auroc_of(name) for name in ood_sets(setting.frame))
    whole = loss_table(setting, (*MAIN, *outside))
    if not outside or table_fits(whole, console):
        print_table(whole, console)
        return
    print_table(loss_table(setting, MAIN), console)
    print_table(loss_table(setting, outside), console)


def _cores() -> int:
    import os

    # The cores this process may use: fewer than the machine has, in a container. Each process takes half a gigabyte.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)
