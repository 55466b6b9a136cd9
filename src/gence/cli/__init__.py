"""The command line: parse, call, print. One file a group of commands; each imports what it needs when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the ``gence`` command."""
    try:
        try:
            import typer
        except ModuleNotFoundError:
            sys.exit("gence: the command line needs the lab's packages; install them with: pip install 'gence[lab]'")
        from gence.cli.app import create_app
        from gence.cli.terminal import ended_by_signals, output_flushed, print_in_any_encoding, shown_plainly

        print_in_any_encoding()
        with shown_plainly(), ended_by_signals(), output_flushed():
            create_app()()
    except KeyboardInterrupt:  # while the first imports are made
        sys.exit(130)
