"""gence data: list, prepare and check sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gence.cli.options import FeatureColumns, LabelColumn, OodLabel, TextColumn

if TYPE_CHECKING:
    from gence.lab.data import CheckReport

_Source = Annotated[
    str, typer.Argument(help="Read a named data set (gence data list), a folder or archive, hf:OWNER/NAME, or a table.")
]
_ImageSize = Annotated[
    int | None, typer.Option(help="Resize images to this many pixels. Default: keep them if small, square and uniform.")
]
_DataDir = Annotated[
    Path | None, typer.Option(help="Look for NAME-train.zip and NAME-test.zip here. Default: $GENCE_DATA.")
]
_CacheDir = Annotated[Path | None, typer.Option(help="Keep decoded images here. Default: $GENCE_CACHE.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="List, decode and check data sources.", no_args_is_help=True)
    app.add_typer(group, name="data")

    @group.command("list")
    def list_sources() -> None:
        """List the data sets that have a name; your own folders and archives need no name.

        Example: gence data list
        """
        from gence.lab.data import known_sources

        for info in known_sources():
            _, height, width = info.image_shape
            typer.echo(f"{info.name}: {info.summary}")
            typer.echo(
                f"    {info.num_classes} classes, {width} x {height} pixels, {info.train_images:,} training and "
                f"{info.test_images:,} test images; {info.origin}; {info.terms}"
            )
        typer.echo("NAME-train.zip and NAME-test.zip in the folder $GENCE_DATA are read in place of a download.")

    @group.command()
    def prepare(
        source: _Source, image_size: _ImageSize = None, data_dir: _DataDir = None, cache_dir: _CacheDir = None
    ) -> None:
        """Download where needed, decode every image once, and keep the result, so that training starts at once.

        Example: gence data prepare cifar10
        """
        from gence.lab.data import PartReport, is_table, left_out_notes, load

        if is_table(source):
            raise ValueError(
                f"{source} is a table, which needs no preparing; gence compare embeds its texts once, and keeps them"
            )
        for note in left_out_notes(source, data_dir):
            typer.echo(f"note: {note}", err=True)
        splits = load(source, image_size=image_size, data_dir=data_dir, cache_dir=cache_dir, progress=True)
        for part in (splits.train, splits.test):
            typer.echo(PartReport.of(part).in_words())

    @group.command()
    def check(
        source: _Source,
        text: TextColumn = None,
        label: LabelColumn = None,
        features: FeatureColumns = None,
        ood_label: OodLabel = None,
        image_size: _ImageSize = None,
        data_dir: _DataDir = None,
        cache_dir: _CacheDir = None,
    ) -> None:
        """Read every image or row and say all that is wrong: damaged files, missing labels, copies in the test part.

        Examples: gence data check photos.zip

        gence data check tickets.csv --text message --label team
        """
        from gence.lab.data import check as check_source, with_columns

        named = tuple(features or ())
        source = with_columns(source, text=text, label=label, features=named, without=ood_label)
        report = check_source(source, image_size=image_size, data_dir=data_dir, cache_dir=cache_dir, progress=True)
        _print_report(report)
        if not report.ok:
            raise typer.Exit(1)


def _print_report(report: CheckReport) -> None:
    for part in report.parts:
        typer.echo(part.in_words())
    for note in report.notes:
        typer.echo(f"note: {note}")
    for problem in report.problems:
        typer.echo(f"problem: {problem}")
    found = len(report.problems)
    typer.echo(f"{report.source}: sound" if report.ok else f"{report.source}: {found} problem{'s'[: found > 1]}")
