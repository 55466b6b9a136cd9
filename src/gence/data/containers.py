"""What folders and archives have in common: a checked list of names, and verified bytes behind each."""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from pathlib import Path

from gence.data.images import DataError

SUMS_NAME = "SHA256SUMS"
MAX_FILE_BYTES = 256 * 2**20  # one file, unpacked

_CORRUPT = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, struct.error, EOFError)
# What Python's readers raise for damaged fields besides their own errors: unknown compression, a set encryption
# bit, names in no encoding, offsets before the start or beyond any file.
DAMAGED = (*_CORRUPT, NotImplementedError, RuntimeError, ValueError, OverflowError, OSError, KeyError, IndexError)


class Container(ABC):
    """Files below one root. Names use "/" and are relative; `read` may be called from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[str, int] = {}  # name -> size in bytes
        self.folders: set[str] = set()
        self._sums: dict[str, str] = {}

    @abstractmethod
    def _bytes(self, name: str) -> bytes:
        """The file's bytes, unverified."""

    def close(self) -> None:  # noqa: B027 - a folder has nothing to close
        """Let go of open files."""

    def where(self, name: str) -> str:
        """How messages call the file."""
        return f"{self.path}: {name}"

    def read(self, name: str) -> bytes:
        """The file's bytes, verified by whatever checksum there is."""
        try:
            data = self._bytes(name)
        except DataError:
            raise
        except DAMAGED as error:
            raise DataError(f"{self.where(name)} cannot be read: {error}; the file is damaged, get it again") from error
        expected = self._sums.get(name)
        if expected is not None and hashlib.sha256(data).hexdigest() != expected:
            raise DataError(f"{self.where(name)} does not match its line in {SUMS_NAME}; get the file again")
        return data

    def _add(self, raw_name: str, size: int, is_folder: bool) -> str:
        name = checked_name(raw_name, self.path)
        if is_folder:
            self.folders.add(name)
            return name
        if name in self.files:
            raise DataError(f"{self.where(name)} is there twice; an archive may hold each name once")
        if size > MAX_FILE_BYTES:
            raise DataError(
                f"{self.where(name)} would unpack to {size} bytes; the limit for one file is {MAX_FILE_BYTES}"
            )
        self.files[name] = size
        return name

    def load_sums(self) -> None:
        """Take over the checksum files there are; each must list exactly the files below it."""
        for sums in [name for name in self.files if name.rpartition("/")[2] == SUMS_NAME]:
            prefix = sums[: -len(SUMS_NAME)]
            listed = _parse_sums(self.read(sums), self.where(sums))
            present = {
                name[len(prefix) :]
                for name in self.files
                if name.startswith(prefix) and not is_ignored(name) and name.rpartition("/")[2] != SUMS_NAME
            }
            for name in sorted(present ^ set(listed)):
                problem = "is not listed in" if name in present else "is missing, but listed in"
                raise DataError(f"{self.where(prefix + name)} {problem} {sums}")
            self._sums.update({prefix + name: digest for name, digest in listed.items()})


def cannot_be_read(what: str, error: OSError) -> DataError:
    """What to raise where the operating system refuses: the file may be sound, so nobody is sent to get it again."""
    if isinstance(error, PermissionError):
        way_out = "give yourself permission to read it, or move it out of the data"
    elif isinstance(error, FileNotFoundError):
        way_out = "if it is a link to a file that is gone, restore the file or remove the link"
    else:
        way_out = "check the disk or the network drive that it lies on"
    return DataError(f"{what} cannot be read: {error.strerror or error}; {way_out}")


def checked_name(name: str, path: Path) -> str:
    """A member's name without "." parts; refused if it could point outside the folder it is unpacked to."""
    if "\0" in name or "\\" in name or name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
        raise DataError(f"{path}: unsafe name {name!r}; names must be relative, with '/' and without '..'")
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def is_ignored(name: str) -> bool:
    """Whether the file is a leftover of a file manager: hidden, Thumbs.db, desktop.ini or below __MACOSX."""
    parts = name.split("/")
    return "__MACOSX" in parts or parts[-1].lower() in ("thumbs.db", "desktop.ini") or any(p[:1] == "." for p in parts)


def _parse_sums(data: bytes, where: str) -> dict[str, str]:
    sums: dict[str, str] = {}
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), start=1):
        match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)
        if match is None:
            raise DataError(f"{where}, line {number}: expected 64 hexadecimal digits, two blanks and a name")
        sums[match[2]] = match[1].lower()
    return sums
