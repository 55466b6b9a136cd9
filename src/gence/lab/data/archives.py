"""Folders, .zip and .tar(.gz) archives as one thing: a checked list of names, and the bytes behind each.

What protects against damage: a zip stores every name twice (here both are compared) and a CRC-32 of every file; a
.tar.gz has a CRC-32 over the whole (here read to the end before anything is used). A plain .tar checks its headers
only: a flipped byte inside a JPEG, or inside an extended header that holds a long name, goes unnoticed. For those,
and for folders, put a file `SHA256SUMS` (the output of `sha256sum`) beside the class folders: where there is one,
it must list every file below it, and every file is verified against it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import struct
import tarfile
import tempfile
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from gence.lab.data.errors import DataError

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
        self.skipped: list[str] = []  # names of what is not a regular file: a pipe, a device, a socket
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
            raise DataError(f"{self.where(name)} appears twice; an archive must hold each name once")
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
        raise DataError(f"{path}: unsafe name {name!r}; rename it: relative, with '/', and without '\\' and '..'")
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


ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
MAX_UNPACK_RATIO, MIN_UNPACK_LIMIT = 100, 2**30  # a .tar.gz may unpack to the larger of 100 times its size and 1 GiB


def is_archive(path: Path) -> bool:
    """Whether the file's name says that it is an archive that can be read here."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def archive_stem(path: Path) -> str:
    """The file's name without its archive suffix: "cifar10-test" for "cifar10-test.tar.gz"."""
    for suffix in sorted(ARCHIVE_SUFFIXES, key=len, reverse=True):
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)]
    return path.name


def walk_folder(path: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Folder by folder: the folder, its subfolders and its files, sorted.

    What `is_ignored` names is skipped without a look: an editor's hidden lock file is a dangling link.
    Links are followed, as people link class folders together. A folder that is reached twice would give its images
    twice, or go round for ever, so it is an error. So is a folder that cannot be listed: its images would be missing
    without a word.
    """
    seen = {os.path.realpath(path)}
    for root, folders, names in os.walk(path, followlinks=True, onerror=_refuse_folder):
        folders[:] = sorted(folder for folder in folders if not is_ignored(f"{folder}/"))
        for folder in folders:
            target = os.path.realpath(Path(root, folder))
            if target in seen:
                raise DataError(
                    f"{Path(root, folder)} links to {target}, which is part of {path} already; remove the link"
                )
            seen.add(target)
        yield Path(root), list(folders), sorted(name for name in names if not is_ignored(name))


def _refuse_folder(error: OSError) -> NoReturn:
    raise cannot_be_read(f"the folder {error.filename}", error) from error


class _Folder(Container):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        for root, folders, names in walk_folder(path):
            relative = root.relative_to(path)
            for folder in folders:
                self._add((relative / folder).as_posix(), 0, True)
            for name in names:
                status = (root / name).stat()
                if stat.S_ISREG(status.st_mode):
                    self._add((relative / name).as_posix(), status.st_size, False)
                else:  # to open a pipe waits for ever, and a device never ends
                    self.skipped.append((relative / name).as_posix())

    def _bytes(self, name: str) -> bytes:
        try:
            data = _read_regular(self.path / name)
        except OSError as error:
            raise cannot_be_read(self.where(name), error) from error
        if len(data) > MAX_FILE_BYTES:
            raise DataError(f"{self.where(name)} has grown beyond {MAX_FILE_BYTES} bytes, the limit for one file")
        return data

    def where(self, name: str) -> str:
        return str(self.path / name)


def _read_regular(path: Path) -> bytes:
    """The bytes of a file, one more than the limit at most; a pipe that took its place keeps nobody waiting."""
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DataError(f"{path} is not a regular file any more; remove it")
        return file.read(MAX_FILE_BYTES + 1)


class _Zip(Container):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = path.open("rb")
        self._lock = threading.Lock()
        self._members: dict[str, zipfile.ZipInfo] = {}
        try:
            self._zip = zipfile.ZipFile(self._file)
            members = self._zip.infolist()
            expected = _zip_entry_count(self._file)
            if len(members) != expected:
                raise DataError(f"{path}: the directory lists {len(members)} files, its end record says {expected}")
            for member in members:
                # `orig_filename`, not `filename`: the latter may come from an extra field that nothing protects.
                self._check_local_header(member)
                shown = _zip_name(member)
                if stat.S_ISLNK(member.external_attr >> 16):
                    raise DataError(f"{path}: {shown} is a link; an archive of images may not hold links")
                name = self._add(shown, member.file_size, shown.endswith("/"))
                self._members[name] = member
        except BaseException:
            self.close()
            raise

    def _check_local_header(self, member: zipfile.ZipInfo) -> None:
        """The copy of the name before the file's bytes must equal the one in the directory: either may be damaged."""
        self._file.seek(member.header_offset)
        header = self._file.read(30)
        magic, _, flags, *_, name_length, _ = struct.unpack("<4s5H3L2H", header)
        utf8 = member.flag_bits & 0x800
        name = member.orig_filename.encode("utf-8" if utf8 else "cp437")
        if magic != b"PK\x03\x04" or self._file.read(name_length) != name or (flags & 0x800) != utf8:
            raise DataError(f"{self.path}: {member.orig_filename} has another name in its own header: damaged archive")

    def _bytes(self, name: str) -> bytes:
        member = self._members[name]
        with self._lock, self._zip.open(member) as file:
            data = file.read(member.file_size + 1)
        if len(data) != member.file_size:
            raise DataError(f"{self.where(name)} has {len(data)} bytes, the archive says {member.file_size}")
        return data

    def close(self) -> None:
        self._file.close()


class _Tar(Container):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = threading.Lock()
        self._members: dict[str, tuple[int, int]] = {}
        self._file: IO[bytes] = path.open("rb") if path.name.lower().endswith(".tar") else _unpacked(path)
        try:
            end = 0
            with tarfile.open(fileobj=self._file, mode="r:") as tar:
                for member in tar:
                    if not (member.isfile() or member.isdir()) or member.issparse():
                        raise DataError(
                            f"{path}: {member.name} is a link or a special file; only regular files are allowed"
                        )
                    name = self._add(member.name, member.size, member.isdir())
                    self._members[name] = (member.offset_data, member.size)
                    end = member.offset_data + -(-member.size // 512) * 512
            # tarfile takes a damaged header or a cut-off file for the end of the archive. The true end is zeros.
            self._file.seek(end)
            if self._file.read(1024) != bytes(1024):
                raise DataError(f"{path} is cut off or damaged at byte {end}: no end mark there; get the file again")
        except BaseException:
            self.close()
            raise

    def _bytes(self, name: str) -> bytes:
        offset, size = self._members[name]
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size)

    def close(self) -> None:
        self._file.close()


@contextmanager
def open_container(path: Path) -> Iterator[Container]:
    """Open a folder or an archive, with every name checked before the first is handed out."""
    try:
        if path.is_dir():
            container: Container = _Folder(path)
        elif not is_archive(path):
            raise DataError(f"{path} is neither a folder nor an archive ({', '.join(ARCHIVE_SUFFIXES)})")
        else:
            container = _Zip(path) if path.name.lower().endswith(".zip") else _Tar(path)
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{error.filename} does not exist") from error
    except PermissionError as error:
        raise cannot_be_read(str(error.filename or path), error) from error
    except DAMAGED as error:
        raise DataError(f"{path} cannot be read: {error}; if it is damaged, get it again") from error
    try:
        container.load_sums()
        yield container
    finally:
        container.close()


def _zip_name(member: zipfile.ZipInfo) -> str:
    """The name of a member: in UTF-8 if it can be, as Unix programs write it without saying so, else in cp437."""
    if member.flag_bits & 0x800:
        return member.orig_filename
    try:
        return member.orig_filename.encode("cp437").decode("utf-8")
    except UnicodeDecodeError:
        return member.orig_filename


def _zip_entry_count(file: IO[bytes]) -> int:
    """How many files the end record announces; zipfile itself does not compare it with what it finds."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - 22 - 65535)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0:
        raise zipfile.BadZipFile("no end record: the archive is cut off")
    count = int(struct.unpack("<H", tail[at + 10 : at + 12])[0])
    if count != 0xFFFF:
        return count
    locator = tail[at - 20 : at]
    if locator[:4] != b"PK\x06\x07":
        return count
    file.seek(struct.unpack("<Q", locator[8:16])[0])
    record = file.read(40)
    return int(struct.unpack("<Q", record[32:40])[0])


def _unpacked(path: Path) -> IO[bytes]:
    """The .gz's contents in a temporary file, read to the end so that its CRC is checked before anything is used."""
    limit = max(MIN_UNPACK_LIMIT, MAX_UNPACK_RATIO * path.stat().st_size)
    target = tempfile.SpooledTemporaryFile(max_size=256 * 2**20)  # noqa: SIM115 - closed by the container
    try:
        with gzip.open(path) as source:
            while piece := source.read(2**20):
                target.write(piece)
                if target.tell() > limit:
                    raise DataError(
                        f"{path} unpacks to more than {limit} bytes: refused; unpack it yourself if it is sound"
                    )
    except BaseException:
        target.close()
        raise
    target.seek(0)
    return target
