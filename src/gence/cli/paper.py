"""gence show: the paper beside our measurements."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
