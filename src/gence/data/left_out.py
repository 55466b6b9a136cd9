"""Folders of images that no reader looks into, because their names say that they are no classes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gence.data.archives import open_container, walk_folder
from gence.data.containers import is_ignored
from gence.data.images import DataError
from gence.data.layout import IMAGE_SUFFIXES
from gence.data.sources import container_paths

_SHOWN = 5  # folders named in full


def left_out_notes(source: str | Path, data_dir: str | Path | None = None) -> list[str]:
    """A sentence for each folder or archive of a source in which folders of images are passed over.

    A folder whose name begins with a dot, and `__MACOSX`, are taken for leftovers of a file manager; a class of that
    name would be missed without a word. A source that cannot be read has no notes: `load` says what is wrong with it.

    Args:
        source: as for `load`.
        data_dir: as for `load`.

    >>> left_out_notes("digits")
    []
    """
    notes = []
    try:
        for path in container_paths(source, None if data_dir is None else Path(data_dir).expanduser()).values():
            folders = sorted({folder for name in _image_names(path) if (folder := _ignored_folder(name))})
            if folders:
                more = f" and {len(folders) - _SHOWN} more" if len(folders) > _SHOWN else ""
                notes.append(
                    f"{path}: left out {', '.join(folders[:_SHOWN])}{more}: hidden folders (a dot in front) and "
                    "__MACOSX are no classes; rename a folder that is one"
                )
    except (DataError, OSError):
        return []
    return notes


def _image_names(path: Path) -> list[str]:
    """Names of image files, relative; of a plain folder only those in hidden folders and `__MACOSX`."""
    if path.is_dir():
        names = list(_hidden_names(path))
    else:
        with open_container(path) as archive:
            names = list(archive.files)
    return [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]


def _hidden_names(path: Path) -> Iterator[str]:
    for root, _, _ in walk_folder(path):
        for entry in os.scandir(root):
            if entry.is_dir() and is_ignored(entry.name):
                for inner, _, files in os.walk(entry.path):
                    yield from ((Path(inner) / file).relative_to(path).as_posix() for file in files)


def _ignored_folder(name: str) -> str:
    """The uppermost folder on the way to a file that is passed over; "" if there is none."""
    parts = name.split("/")[:-1]
    at = next((i for i, part in enumerate(parts) if is_ignored(part)), None)
    return "" if at is None else "/".join(parts[: at + 1])
