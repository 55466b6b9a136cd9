"""gence train, evaluate, predict: one run."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
