"""The text that names a source: one spelling for each folder, and whether two texts mean one."""

from __future__ import annotations

import os
from pathlib import Path

from gence.data.known import KNOWN

HUB_PREFIX = "hf:"


def plain_source(source: str | os.PathLike[str]) -> str:
    """The one spelling of a source: a path without "./" in front, "/" behind and "//" inside; names stay as they are.

    A text may be a name; a path object is always a path.

    >>> plain_source("photos/"), plain_source("./photos"), plain_source("cifar10")
    ('photos', 'photos', 'cifar10')
    >>> plain_source("./digits/")  # a folder that has the name of a data set
    './digits'
    """
    if isinstance(source, str) and (not source or _is_name(source)):
        return source
    plain = str(Path(source))
    return f".{os.sep}{plain}" if _is_name(plain) else plain


def same_source(one: str, other: str) -> bool:
    """Whether two texts name one source, however the path to it is written.

    >>> same_source("photos", "other/../photos/"), same_source("digits", "./digits")
    (True, False)
    """
    if _is_name(one) or _is_name(other):
        return one == other
    return os.path.realpath(Path(one).expanduser()) == os.path.realpath(Path(other).expanduser())


def _is_name(source: str) -> bool:
    return source in KNOWN or source.startswith(HUB_PREFIX)
