"""The process of the ``gence`` command, and of ``python -m gence`` from a checkout with ``PYTHONPATH=src``."""

import signal

from gence.cli import main


def run() -> None:
    """Run the command in a process that ends with it."""
    try:
        main()
    finally:  # what is left is Python's end, where a Ctrl-C would be a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    run()
