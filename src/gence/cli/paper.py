"""``gence show`` and ``gence report``: the paper beside our measurements, or what any store says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gence.cli import compare
from gence.cli.options import NAMES, CommandOfNames, read_names, refuse_options
from gence.cli.store import store_at
from gence.cli.terminal import print_table, table_console

_FORMATS = ("text", "markdown", "latex", "csv")


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command(cls=CommandOfNames)
    def show(
        name: Annotated[
            str,
            typer.Argument(help=f"Print this: {NAMES}; or a folder of records."),
        ],
        store: Annotated[
            Path | None,
            typer.Option("--store", help="Read the records in this folder. Default: results/paper of the checkout."),
        ] = None,
        rows: Annotated[str, typer.Option(help="Select rows, separated by commas; * matches anything.")] = "",
        seeds: Annotated[
            int | None,
            typer.Option(help="Call a cell complete with this many seeds. Default: 5, and 3 for studies of our own."),
        ] = None,
        recipe: Annotated[str | None, typer.Option(help="Use this recipe instead of the paper's.")] = None,
        format: Annotated[str, typer.Option("--format", help=f"Print as {', '.join(_FORMATS)}.")] = "text",
    ) -> None:
        """Print an exhibit beside the paper: n, and the difference in standard errors; missing cells as missing.

        Examples: gence show table1

        gence show ece --rows 'cifar10-*' --format markdown

        gence show gence-report/store
        """
        from gence.lab.spec import check_choice, nearest
        from gence.paper import entries, shown

        known = entries()
        narrowing = {"--rows": rows, "--seeds": seeds, "--recipe": recipe}
        if name not in known and Path(name).is_dir():
            shaping = {"--store": store, "--format": None if format == "text" else format}
            refuse_options(name, "a folder of records is shown whole, as text", {**shaping, **narrowing})
            compare.show(Path(name))
            return
        if name not in known:
            raise ValueError(f"{name} is neither a table nor a folder of records; {nearest(name, tuple(known))}")
        fixed = {option: given for option, given in narrowing.items() if option[2:] not in known[name].options}
        refuse_options(name, "its table has no such choice", fixed)
        check_choice("--format", format, _FORMATS)
        place = store_at(store, must_exist=store is not None)
        table, notes = shown(name, place, rows=read_names(rows), seeds=seeds, recipe=recipe)
        if format == "text":
            console = table_console()
            found = [note for note in notes if note in known[name].findings]  # sentences about the table, before it
            for note in found:
                console.print(note, style="bold", highlight=False, markup=False)
            print_table(table, console)
            for note in notes[len(found) :]:
                console.print(note, highlight=False, markup=False)
        else:
            form = {"markdown": table.markdown, "latex": table.latex, "csv": table.csv}[format]
            typer.echo(form(), nl=False)

    @app.command()
    def report(
        what: Annotated[str, typer.Argument(help="Report on this: paper, or a folder of records.")],
        out: Annotated[Path, typer.Option(help="Write the report to this folder.")] = Path("gence-report"),
        store: Annotated[
            Path | None,
            typer.Option(
                help="Read the records in this folder, with the argument paper. Default: results/paper of the checkout."
            ),
        ] = None,
        recipe: Annotated[
            str | None, typer.Option(help="Use this recipe instead of the paper's, with the argument paper.")
        ] = None,
    ) -> None:
        """Write the paper, measured, as one page; or the report of any store, with its figures and tables as files.

        Examples: gence report paper --out report/

        gence report runs/ --out report/
        """
        if what != "paper":
            reason = "the report of a folder shows all of its records"
            refuse_options(what, reason, {"--store": store, "--recipe": recipe})
            compare.report(Path(what), out)
            return
        from gence.lab.report import make_folder
        from gence.paper import write_page

        place = store_at(store, must_exist=store is not None)
        page = write_page(place, make_folder(out) / "paper.html", recipe=recipe)
        typer.echo(f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB)")
