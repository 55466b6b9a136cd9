"""gence compare and gence report: does GenCE help on these data?."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
