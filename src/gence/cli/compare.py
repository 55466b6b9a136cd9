"""``gence compare`` and ``gence report``: does GenCE help on these data?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gence.cli.errors import exit_if_interrupted, interruption_told
from gence.cli.store import store_at
from gence.cli.tables import print_table, table_console

if TYPE_CHECKING:
    from rich.console import Console

    from gence.lab.report import Report, Setting


def register(app: typer.Typer) -> None:
    """Add ``gence compare``; ``gence report`` and ``gence show`` also know the paper, and call what is here."""
    app.command()(compare)


def compare(
    data: Annotated[str, typer.Option(help="Name of a data set, or a folder or archive of images.")] = "digits",
    n: Annotated[
        int | None, typer.Option(help="Labels to train on, balanced. Default: 100 for digits, else all.")
    ] = None,
    losses: Annotated[
        str | None, typer.Option(help='Such as "gence,ce,gence(anchor=0.1)". Default: the paper\'s six and this one.')
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 5,
    model: Annotated[
        str, typer.Option(help="Network; auto is small_cnn on a CPU or up to 16 px, else resnet18.")
    ] = "auto",
    ood: Annotated[list[str] | None, typer.Option(help="Images from elsewhere; may be given several times.")] = None,
    recipe: Annotated[
        str, typer.Option(help="tiny, modern or paper; auto is tiny on a CPU or up to 16 px, else modern.")
    ] = "auto",
    epochs: Annotated[int | None, typer.Option(min=1, help="In place of the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="In place of the recipe's.")] = None,
    image_size: Annotated[
        int | None, typer.Option(min=4, help="Pixels to bring images to. Default: as they are, if small and alike.")
    ] = None,
    tune: Annotated[int, typer.Option(min=0, help="Tune every loss with this many trials first (the extra tune).")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("gence-report"),
    store: Annotated[Path | None, typer.Option(help="Folder of the records. Default: store inside --out.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes on a CPU. Default: one a core, 8 at most.")
    ] = None,
    time_limit: Annotated[float | None, typer.Option(help="Seconds after which nothing is trained.")] = None,
    log: Annotated[str | None, typer.Option(help='"tensorboard" to write curves while training.')] = None,
) -> None:
    """Does GenCE help me? Train several losses over seeds, and write a report of what can be told from chance.

    With no option at all: scikit-learn's digits, 100 labels, seven losses, five seeds.
    Interrupted, the same command goes on where it stopped.

    Example: gence compare --data photos/ --n 500 --losses gence,ce,focal --ood other-photos/
    """
    from gence.lab.compare import AUTO, DEFAULT_LOSSES, compare as run

    with interruption_told("without a report"):
        result = run(
            data,
            n=AUTO if n is None else n,
            losses=DEFAULT_LOSSES if losses is None else losses,
            seeds=seeds,
            model=model,
            ood=ood or (),
            recipe=recipe,
            epochs=epochs,
            batch_size=batch_size,
            image_size=image_size,
            tune_trials=tune,
            out=out,
            store=store,
            device=device,
            time_limit=time_limit,
            log=log,
            workers=workers or _cores(),
        )
    console = table_console()
    if result.report is not None:
        _print_report(console, result.report)
    console.print(f"{result.summary()}.", highlight=False, markup=False)
    for line in _failures(result.runs.failed):
        console.print(line, style="red", highlight=False, markup=False)
    if result.page is not None:
        size = result.page.stat().st_size / 1e6
        console.print(
            f"Report: {result.page} ({size:.1f} MB; {result.seconds:.0f} s in all)", highlight=False, markup=False,
            soft_wrap=True,
        )  # fmt: skip
    exit_if_interrupted(result.runs.stopped)
    if result.runs.failed:
        raise typer.Exit(1)


def report(store: Path, out: Path) -> None:
    """Write the report of a store: one page, and every figure and table as a file (``gence report STORE``)."""
    from gence.lab.report import build_report, make_folder, write_report

    page = write_report(build_report(store_at(store, must_exist=True)), make_folder(out))
    print(f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB)")


def show(store: Path) -> None:
    """Print what a store says: for every setting the table of losses and the verdict (``gence show STORE``)."""
    from gence.lab.report import image_concerns, judge, load_rows, settings
    from gence.lab.store import is_it_the_folder, recorded_checksums

    records = store_at(store, must_exist=True)
    found = settings(load_rows(records))
    if not found:
        raise ValueError(f"the store {store} has no finished run; {is_it_the_folder(store)}")
    console = table_console()
    for setting in found:
        _print_losses(console, setting)
        console.print(judge(setting.frame).headline, style="bold", highlight=False, markup=False)
        for concern in image_concerns(recorded_checksums(records.line(key)) for key in setting.frame["key"]):
            console.print(f"Warning: {concern}", style="yellow", highlight=False, markup=False)


def _print_report(console: Console, report: Report) -> None:
    for chapter in report.chapters:
        _print_losses(console, chapter.setting)
        console.print(chapter.verdict.headline, style="bold", highlight=False, markup=False)
        for found in chapter.verdict.metrics:
            console.print(f"- {found.sentence()}", highlight=False, markup=False)
        for note in chapter.verdict.notes:
            console.print(note, style="dim", highlight=False, markup=False)
        for concern in chapter.concerns:
            console.print(f"Warning: {concern}", style="yellow", highlight=False, markup=False)


def _failures(failed: dict[str, str]) -> list[str]:
    """Return a line for each error, however many runs had it.

    >>> _failures({"0a": "no space left", "0b": "no space left", "0c": "killed"})
    ['2 runs failed (0a and others): no space left', 'Run 0c failed: killed']
    """
    keys: dict[str, list[str]] = {}
    for key, error in failed.items():
        keys.setdefault(error, []).append(key)
    return [
        f"Run {runs[0]} failed: {error}"
        if len(runs) == 1
        else f"{len(runs)} runs failed ({runs[0]} and others): {error}"
        for error, runs in keys.items()
    ]


def _print_losses(console: Console, setting: Setting) -> None:
    """Print the table of losses: the main columns and those of OOD sets, which a terminal of 80 often has room for."""
    from gence.lab.report import MAIN, auroc_of, loss_table, ood_sets

    print_table(loss_table(setting, (*MAIN, *(auroc_of(name) for name in ood_sets(setting.frame)))), console)


def _cores() -> int:
    import os

    # The cores this process may use: fewer than the machine has, in a container. Each process takes half a gigabyte.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8)
