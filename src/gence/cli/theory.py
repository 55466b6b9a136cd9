"""``gence verify``: the theory, checked."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def verify() -> None:
        """Check the theory numerically on finite problems, in seconds, and print what was measured.

        The exit status is 1 if a check fails.

        Example: gence verify
        """
        from rich.console import Console
        from rich.table import Table

        from gence.theory import verify as run_checks

        checks = run_checks()
        table = Table(title="Theory, exact in float64 on finite input spaces")
        for column in ("check", "statement", "measured", "bound", ""):
            table.add_column(column)
        for check in checks:
            verdict = "[green]holds[/]" if check.passed else "[red]fails[/]"
            table.add_row(
                check.name, check.statement, f"{check.measured:.3g}", f"{check.relation} {check.bound:.3g}", verdict
            )
        Console().print(table)
        if not all(check.passed for check in checks):
            raise typer.Exit(1)
