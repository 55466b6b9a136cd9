"""Tables in a terminal: every number whole, whatever the terminal's width."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from gence.lab.report import Table

_WIDE = 10_000
_FILE_WIDTH = 200


def table_console() -> Console:
    """Return the console for tables: the terminal, or, to a file, one so wide that hardly anything is broken."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=_FILE_WIDTH)


def print_table(table: Table, console: Console) -> None:
    """Print a table, over the console's width where that would cut it.

    Lines that the terminal breaks can be put right with a wider one; a number that is cut is lost. So is what is bold
    in a pipe, or in a terminal that knows no styles: there the best has a mark.
    """
    from rich.console import Console

    bold = console.color_system is not None  # rich writes no style without one; NO_COLOR leaves it, and bold with it
    if not _fits(table.rich(bold=bold), console.width):
        widest = Console(width=_WIDE).measure(table.rich(bold=bold)).maximum
        console = Console(file=console.file, width=max(console.width, widest))
    console.print(table.rich(bold=bold))


def _fits(shown: RichTable, width: int) -> bool:
    """Whether rich finds widths for the columns whose sum is the table's: it takes no less than a column's least."""
    from rich.console import Console

    wide = Console(width=_WIDE)
    shown.width = width
    return all(sum(segment.cell_length for segment in line) <= width for line in wide.render_lines(shown, pad=False))
