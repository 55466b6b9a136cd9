"""gence bench: what the loss and a training step cost."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
