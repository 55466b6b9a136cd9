"""What a source that cannot be read raises, and how its message lists many names.

Free of torch, so that commands that only wait for runs can catch it.
"""

from __future__ import annotations

from collections.abc import Sequence


class DataError(ValueError):
    """Data that cannot be read, or that would be misread: the message names the file or argument and the way out."""


class NotAtHandError(DataError):
    """The images are not on this machine, and may not be downloaded."""


def first_few(words: Sequence[str], most: int = 5) -> str:
    """The first of many words, and how many more there are.

    >>> first_few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
