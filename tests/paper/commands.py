"""Commands as a user types them."""

from __future__ import annotations

from typer.testing import CliRunner

from gence.cli.app import create_app


def invoke(*arguments: object) -> str:
    """Run a command that succeeds; return what it prints."""
    result = CliRunner().invoke(create_app(), [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output
