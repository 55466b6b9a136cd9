"""The store that a command's --store names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gence.experiment.store import Store


def store_at(path: Path | None, *, must_exist: bool = False) -> Store:
    """Return the store at a path; by default the repository's records of the paper."""
    from gence.experiment.store import Store
    from gence.paper.results import default_results

    found = Store(default_results() if path is None else path, must_exist=must_exist)
    for sentence in found.strange_lines():
        typer.echo(f"Warning: {sentence}; its run counts as missing", err=True)
    return found
