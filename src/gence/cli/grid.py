"""gence run and gence tune: many runs."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
