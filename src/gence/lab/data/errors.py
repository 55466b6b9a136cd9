"""What a source that cannot be read raises; free of torch, so that commands that only wait for runs can catch it."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be read, or that would be misread: the message names the file or argument and the way out."""


class NotAtHandError(DataError):
    """The images are not on this machine, and may not be downloaded."""
