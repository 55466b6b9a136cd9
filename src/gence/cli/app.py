"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from gence._version import __version__
from gence.cli import bench, compare, data, paper, saved, store, sweep, train


def create_app() -> typer.Typer:
    """All commands under ``gence``."""
    app = typer.Typer(
        name="gence",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for group in (compare, train, saved, data, sweep, store, paper, bench):
        group.register(app)

    @app.callback()
    def gence(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
        ] = False,
    ) -> None:
        """Classification when labels are scarce: a loss, a lab, and the paper measured. Start with: gence compare"""

    @app.command()
    def version() -> None:
        """Print the version."""
        print(__version__)

    return app


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit
