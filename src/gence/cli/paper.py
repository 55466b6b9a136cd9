"""gence show: the paper beside our measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gence.cli.grid import split_words, store_at

_FORMATS = ("text", "markdown", "latex", "csv")


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command()
    def show(
        name: Annotated[
            str,
            typer.Argument(
                help="An exhibit, tuned, tuned_ece, open_choices, costs, epoch_time; or paper: all as a page."
            ),
        ],
        store: Annotated[
            Path | None, typer.Option("--store", help="Folder of records; results/paper by default.")
        ] = None,
        rows: Annotated[str, typer.Option(help="Rows, separated by commas; * matches anything.")] = "",
        seeds: Annotated[int, typer.Option(help="Seeds a cell should have.")] = 5,
        recipe: Annotated[str | None, typer.Option(help="Another recipe than the paper's.")] = None,
        format: Annotated[str, typer.Option("--format", help=", ".join(_FORMATS))] = "text",
        out: Annotated[Path | None, typer.Option(help="With the name paper: where the page goes.")] = None,
    ) -> None:
        """Print an exhibit beside the paper: n, and the difference in standard errors; missing cells as missing.

        Examples: gence show table1

        gence show ece --rows 'cifar10-*' --format markdown

        gence show paper --out paper.html
        """
        from rich.console import Console

        from gence.experiment.fields import check_choice
        from gence.paper.shown import shown

        check_choice("--format", format, _FORMATS)
        place = store_at(store, must_exist=store is not None)
        if name == "paper":
            from gence.paper.page import write_page

            typer.echo(f"wrote {write_page(place, Path('paper.html') if out is None else out, recipe=recipe)}")
            return
        table, notes = shown(name, place, rows=split_words(rows), seeds=seeds, recipe=recipe)
        if format == "text":
            # Wide enough that no cell is cut when the output is a file.
            console = Console() if sys.stdout.isatty() else Console(width=200)
            console.print(table.rich())
            for note in notes:
                console.print(note, highlight=False)
        else:
            form = {"markdown": table.markdown, "latex": table.latex, "csv": table.csv}[format]
            typer.echo(form(), nl=False)
