"""gence store: merge, check, export and pack results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gence.cli.terminal import check_out

if TYPE_CHECKING:
    from gence.lab.store import Store


def store_at(path: Path | None, *, must_exist: bool = False) -> Store:
    """Return the store at a path; by default the repository's records of the paper."""
    from gence.lab.store import Store

    if path is None:
        from gence.paper import default_results

        path = default_results()
    found = Store(path, must_exist=must_exist)
    for sentence in found.strange_lines():
        typer.echo(f"Warning: {sentence}; its run counts as missing", err=True)
    return found


_Folder = Annotated[Path, typer.Argument(help="Folder of records.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(name="store", help="Merge, check, export and pack folders of records.", no_args_is_help=True)
    app.add_typer(group)

    @group.command()
    def merge(
        into: Annotated[Path, typer.Argument(help="Add the records to this store; it is made if missing.")],
        others: Annotated[list[Path], typer.Argument(help="Read the records of these stores.")],
    ) -> None:
        """Add the records and tuned settings of other stores to one; where two differ, keep the older.

        Example: gence store merge results/paper results/from-another-machine
        """
        from gence.lab.store import Store, is_it_the_folder
        from gence.lab.sweep import merge_tuned

        target = Store(into)
        troubles = 0
        for path in others:
            other = Store(path, must_exist=True)
            report = target.merge(other)
            troubles += len(report.conflicts) + len(report.damaged)
            typer.echo(
                f"{path}: {len(report.added)} records added, {len(report.same)} already there, "
                f"{len(report.conflicts)} differ"
            )
            for key in report.conflicts:
                typer.echo(f"  {key}: the older record was kept")
            for problem in report.damaged:
                typer.echo(f"  skipped: {problem}", err=True)
            if tuned := merge_tuned(target, other):
                typer.echo(f"  tuned settings of {tuned} losses added")
            elif not (report.added or report.same or report.conflicts or report.damaged):
                typer.echo(f"  there are no records in {path}; {is_it_the_folder(path)}", err=True)
        if troubles:
            raise typer.Exit(1)

    @group.command()
    def check(
        store: _Folder,
        remove_leftovers: Annotated[
            bool, typer.Option("--remove-leftovers", help="Delete files that stopped processes left.")
        ] = False,
    ) -> None:
        """Verify every record, and name those that are damaged.

        Example: gence store check results/paper
        """
        from gence.lab.store import Store, is_it_the_folder

        report = Store(store, must_exist=True).check(remove_leftovers=remove_leftovers)
        for sentence in (*report.problems, *report.notes):
            typer.echo(sentence, err=True)
        state = "removed" if remove_leftovers else "left by stopped processes"
        leftovers = f", {len(report.leftovers)} files {state}" if report.leftovers else ""
        typer.echo(f"{report.sound} records are sound, {len(report.problems)} problems{leftovers}")
        if not report.ok:
            raise typer.Exit(1)
        if not report.sound:
            typer.echo(f"there are no records in {store}; {is_it_the_folder(store)}", err=True)
            raise typer.Exit(1)

    @group.command()
    def export(
        store: _Folder,
        to: Annotated[Path, typer.Argument(help="A .csv or .parquet file.")],
    ) -> None:
        """Write one row per record, with every field and metric, to a CSV or Parquet file.

        Example: gence store export results/paper runs.csv
        """
        source = _with_records(store)
        writers = {".csv": source.export_csv, ".parquet": source.export_parquet}
        if to.suffix not in writers:
            raise ValueError(f"{to} ends in {to.suffix or 'nothing'!r}; expected a file that ends in .csv or .parquet")
        check_out("the target", to)
        count = writers[to.suffix](to)
        typer.echo(f"wrote {count} rows to {to}")

    @group.command()
    def pack(
        store: _Folder,
        drop_predictions: Annotated[
            bool, typer.Option("--drop-predictions", help="Delete predictions, as in the repository.")
        ] = False,
    ) -> None:
        """Move all records into one file, as a repository keeps them.

        Example: gence store pack results/paper --drop-predictions
        """
        import shutil

        source = _with_records(store)
        typer.echo(f"{source.pack_path} holds {source.pack()} records")
        predictions = source.root / "predictions"
        if drop_predictions and predictions.is_dir():
            shutil.rmtree(predictions)
            typer.echo("predictions are deleted")


def _with_records(folder: Path) -> Store:
    """Return the store of a folder; one without records is an error, as nothing is to be made of it."""
    from gence.lab.store import is_it_the_folder

    found = store_at(folder, must_exist=True)
    if not found.keys():
        raise ValueError(f"there are no records in {folder}; {is_it_the_folder(folder)}")
    return found
