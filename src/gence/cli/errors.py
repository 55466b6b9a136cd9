"""Errors a person can act on: one line that says what to do, and a traceback only for what is our fault."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shown_plainly() -> Iterator[None]:
    """Print wrong input and missing packages as one line and exit with 2; GENCE_DEBUG=1 shows the traceback."""
    from gence.experiment.atomic import StoreError

    try:
        yield
    except (ValueError, TypeError, FileNotFoundError, PermissionError, StoreError) as error:
        if os.environ.get("GENCE_DEBUG"):
            raise
        sys.exit(_fail(str(error)))
    except ModuleNotFoundError as error:
        if os.environ.get("GENCE_DEBUG"):
            raise
        sys.exit(_fail(f"this command needs the package {error.name!r}; install it, or the extra that brings it"))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(message: str) -> int:
    print(f"gence: {message}", file=sys.stderr)
    return 2
