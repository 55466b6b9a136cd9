"""``python -m gence``: the command line, also from a checkout with ``PYTHONPATH=src``."""

from gence.cli import main

if __name__ == "__main__":
    main()
