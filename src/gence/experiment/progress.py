"""The progress bar of a grid."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gence.experiment.plan import Plan
from gence.experiment.work import Task

if TYPE_CHECKING:
    from rich.console import Console


def console_or_stderr(console: Console | None) -> Console:
    """Return the console, or one that writes to standard error."""
    if console is not None:
        return console
    from rich.console import Console

    return Console(stderr=True)


@contextlib.contextmanager
def grid_bar(console: Console, plan: Plan) -> Iterator[Callable[[Task, float], None]]:
    """Draw one bar for the whole grid; yield the function that moves it."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    running: dict[int, float] = {}
    # Cohorts take minutes; a speed over the last half minute would forget them.
    with Progress(*columns, console=console, speed_estimate_period=3600) as progress:
        bar = progress.add_task("runs", total=len(plan.specs))

        def tell(task: Task, fraction: float) -> None:
            if fraction < 1:
                running[id(task)] = fraction * len(task.specs)
            else:
                running.pop(id(task), None)
            progress.update(bar, completed=plan.settled + sum(running.values()))

        yield tell
