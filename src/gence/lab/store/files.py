"""Files that appear whole or not at all, on local and network file systems.

Data goes to a temporary file in the same folder, is flushed to the disk, and only then gets its name. A process killed
at any moment leaves at worst a temporary file, which no reader looks at and `Store.check` reports.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.store.environment import MACHINE, is_alive, process_identity

if TYPE_CHECKING:
    import pandas as pd

TEMPORARY_PREFIX = ".writing-"
"""Names of files that are not there yet."""

_OWNER = re.compile(rf"{re.escape(TEMPORARY_PREFIX)}(?P<machine>[0-9a-f]{{8}})-(?P<pid>\d+)-(?P<started>\w+)-")
_ABANDONED_AFTER_S = 3600.0
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_COMPUTED = ("=", "+", "-", "@", "\t", "\r")
_FULL = {errno.ENOSPC, errno.EDQUOT}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class StoreError(RuntimeError):
    """The store cannot be written, or holds something it should not; the message says what to do."""


class NewerVersionError(StoreError):
    """A record was written by a newer version of gence, which alone can read it."""


def temporary_path(path: Path) -> Path:
    """Return a new name beside `path` for a file that is not finished; it says which process is writing it.

    The end of the name is kept, because libraries read a file's kind from it.
    """
    me = process_identity()
    owner = f"{_machine(me)}-{me['pid']}-{me['started']}"
    return path.parent / f"{TEMPORARY_PREFIX}{owner}-{uuid.uuid4().hex[:8]}-{path.name[-100:]}"


def is_abandoned(path: Path) -> bool:
    """Return whether nobody writes an unfinished file any more.

    Its process is dead; or, of one on another machine, the file has not changed for an hour.
    """
    try:
        age = time.time() - path.stat().st_mtime
    except OSError:
        return False  # finished or removed meanwhile
    owner, me = _OWNER.match(path.name), process_identity()
    if owner is not None and owner["machine"] == _machine(me):
        alive = is_alive({**me, "pid": int(owner["pid"]), "started": owner["started"]})
        return not alive
    return abs(age) > _ABANDONED_AFTER_S  # abs: clocks differ, and a date ahead would otherwise never pass


def create_file(path: Path, data: bytes, *, durable: bool = True) -> bool:
    """Write `data` to `path` unless it is there; return whether it was written. Nothing is ever overwritten.

    What need not survive a power cut (`durable=False`) is not flushed to the disk.
    """
    temporary = _written_beside(path, data, durable=durable)
    try:
        return _named_once(temporary, path, durable=durable)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write `data`, whole or piece by piece, to `path`; whoever reads meanwhile sees the old file or the new one."""
    temporary = _written_beside(path, data)
    try:
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise explain(error, path) from error
        raise  # Ctrl-C
    _flush_folder(path.parent)


def read_file(path: str) -> bytes:
    """Return what is in a file; without a `Path` and a buffer, because of 100,000 files that saves seconds."""
    with os.fdopen(os.open(path, os.O_RDONLY), "rb", buffering=0) as file:
        return file.read()


@contextlib.contextmanager
def writing_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file's path, for libraries that write files themselves; `path` is its name in the end.

    After an error, `path` is as it was before. Who may read the file is for the umask to say, not for the library,
    some of which keep their files to the user.
    """
    temporary, begun = temporary_path(path), False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as empty:
            mode = stat.S_IMODE(os.fstat(empty.fileno()).st_mode)
        begun = True
        yield temporary
        if stat.S_IMODE(temporary.stat().st_mode) != mode:
            temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        if not begun or error.filename in (None, str(temporary), temporary):
            raise explain(error, path) from error
        raise  # another file's error: what is written is read from somewhere
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def spreadsheet_text(text: str) -> str:
    """Return a text as a cell of a CSV file: an apostrophe goes before what a spreadsheet would compute.

    >>> spreadsheet_text("=HYPERLINK(A1)"), spreadsheet_text("cat"), spreadsheet_text("-0.5")
    ("'=HYPERLINK(A1)", 'cat', '-0.5')
    """
    if not text.startswith(_COMPUTED):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


class _Lines(io.StringIO):
    """Takes rows that end in CR LF, and has them with LF."""

    def write(self, row: str) -> int:
        return super().write(row.removesuffix("\r\n") + "\n")


def frame_as_csv(frame: pd.DataFrame) -> str:
    r"""Return a table as CSV, with lines that end in \n; texts, columns' names too, are those of `spreadsheet_text`."""
    texts = frame.rename(columns=lambda name: spreadsheet_text(str(name)))
    for at, kind in enumerate(texts.dtypes):
        if str(kind).startswith(("object", "str")):
            safe = [spreadsheet_text(cell) if isinstance(cell, str) else cell for cell in texts.iloc[:, at]]
            texts.isetitem(at, safe)
    # Only with both characters in the line end is a text quoted that has either; "\n" alone ends our lines.
    lines = _Lines()
    texts.to_csv(lines, index=False, lineterminator="\r\n")
    return lines.getvalue()


def remove(path: Path) -> None:
    """Delete a file if it is there."""
    try:
        if path.exists():  # asked first: a read-only disk refuses to delete even what is not there
            path.unlink(missing_ok=True)
    except OSError as error:
        raise explain(error, path) from error


def _written_beside(path: Path, data: bytes | Iterable[bytes], *, durable: bool = True) -> Path:
    """Write `data` to a temporary file in the folder of `path`, flushed to the disk if it must last."""
    temporary = temporary_path(path.with_name(f"{path.name}.part"))  # no reader's pattern fits such an ending
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise explain(error, path) from error
        raise  # of whoever makes the pieces
    return temporary


def _named_once(temporary: Path, path: Path, *, durable: bool) -> bool:
    """Give a finished file its name unless the name is taken; return whether it got it."""
    try:
        # A hard link is the one call that names a whole file and fails if the name is taken, on NFS too.
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if path.exists():
            return False
        temporary.replace(path)
    if durable:
        _flush_folder(path.parent)
    return True


def _flush_folder(folder: Path) -> None:
    """Ask the disk to keep a new name; some network file systems cannot, and then the name is theirs to keep."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _machine(process: Mapping[str, Any]) -> str:
    """Return a short name of a machine, its boot and its process space."""
    return hashlib.sha256(json.dumps([process[name] for name in MACHINE]).encode()).hexdigest()[:8]


def unreadable(error: OSError, path: Path) -> StoreError:
    """Return the error of a file that is there and cannot be read: no permission, a folder or a link in its place."""
    return StoreError(f"{path} cannot be read: {error.strerror or error}; restore it, or remove it")


def explain(error: OSError, path: Path) -> StoreError:
    """Return the error as a sentence that says what is wrong with the place and what to do."""
    if error.errno in _FULL:
        return StoreError(
            f"no space left to write {path}: free some or write to another place; nothing was overwritten, "
            "and a rerun does only what is missing"
        )
    if error.errno in _READ_ONLY:
        return StoreError(
            f"{path} cannot be written: {error.strerror}; give write access or write to another place "
            "(reading, checking and merging from a store here still work)"
        )
    return StoreError(f"writing {path} failed: {error}")
