"""Names of exhibits and studies in a command's help: they are looked up when the help is printed."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand

NAMES, GRIDS = "{names}", "{grids}"
"""What the help of an argument has in the place of all names, and of those that can be run."""


class CommandOfNames(TyperCommand):
    """A command one of whose arguments is a name of the paper's registry."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the names that there are."""
        from gence.paper import entries

        known = entries()
        grids = ", ".join(name for name, entry in known.items() if entry.is_grid or entry.timing)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.help:
                parameter.help = parameter.help.replace(NAMES, ", ".join(known)).replace(GRIDS, grids)
        super().format_help(ctx, formatter)
