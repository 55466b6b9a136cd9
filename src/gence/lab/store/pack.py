"""Many records in one file of JSON lines, as a repository keeps them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from gence.lab.store import files, record


class Pack:
    """The file of packed records; where each one stands is found in one pass, again only after the file changed.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._signature: tuple[int, int, int] | None = None
        self._places: dict[str, tuple[int, int]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._places_now()

    def __iter__(self) -> Iterator[str]:
        return iter(self._places_now())

    def line(self, key: str) -> bytes | None:
        """Return a packed record as it is stored, without the newline; None if it is not here."""
        with self._opened() as file:
            place = self._scanned(file).get(key)
            if file is None or place is None:
                return None
            file.seek(place[0])
            return file.read(place[1]).rstrip(b"\n")

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield keys and records in one pass over the file; lines that are no record are passed over."""
        with self._opened() as file:
            for line in file or ():
                key = record.key_of_line(line)
                if key is not None:
                    yield key, line

    def write(self, lines: Mapping[str, bytes]) -> None:
        """Replace the file by these records, in the order of their keys. Hold `locked()` meanwhile."""
        self.ensure_only_records()
        files.replace_file(self.path, b"".join(lines[key] + b"\n" for key in sorted(lines)))
        self._signature = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that keeps two processes from packing at once, which could lose records."""
        lock = FileLock(self.path.parent / "claims" / "pack.lock")
        try:
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            held = lock.acquire()
        except OSError as error:
            raise files.explain(error, self.path) from error
        with held:
            yield

    def ensure_only_records(self) -> None:
        """Raise `StoreError` if whoever rewrites the file would lose a line: one of two, or what is left of one."""
        if strangers := self.strangers():
            raise files.StoreError(
                f"{'; '.join(strangers)}. Restore the file, or remove the line to have its run redone; "
                "nothing was changed"
            )
        if conflicts := self.conflicts():
            raise files.StoreError(f"{'; '.join(conflicts)}. Nothing was changed")

    def strangers(self) -> list[str]:
        """Return a sentence for each line that is no record."""
        with self._opened() as file:
            return [
                f"{self.path}:{number} is not a record: it was cut short or reformatted"
                for number, line in enumerate(file or (), start=1)
                if record.key_of_line(line) is None
            ]

    def conflicts(self) -> list[str]:
        """Return a sentence for each key whose lines differ."""
        return [
            f"{self.path}, lines {_listed(numbers)}: different records of the run {key}, of which the last is read; "
            "remove all but one"
            for key, numbers, same in self._on_many_lines()
            if not same
        ]

    def repeated(self) -> list[str]:
        """Return a sentence for each key whose line is there more than once: nothing is lost, whichever is read."""
        return [
            f"{self.path}, lines {_listed(numbers)}: the same record of the run {key}; harmless, and packing the store "
            "leaves one"
            for key, numbers, same in self._on_many_lines()
            if same
        ]

    def _on_many_lines(self) -> Iterator[tuple[str, list[int], bool]]:
        """Yield the keys that are on more than one line, the lines' numbers, and whether they are alike."""
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        texts: defaultdict[str, set[bytes]] = defaultdict(set)
        with self._opened() as file:
            for number, line in enumerate(file or (), start=1):
                key = record.key_of_line(line)
                if key is not None:
                    numbers[key].append(number)
                    texts[key].add(hashlib.sha256(line.rstrip(b"\n")).digest())  # the lines themselves may be many MB
        for key, places in numbers.items():
            if len(places) > 1:
                yield key, places, len(texts[key]) == 1

    def _places_now(self) -> dict[str, tuple[int, int]]:
        with self._opened() as file:
            return self._scanned(file)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO | None]:
        """Open the file, or give None if there is none.

        Another process may replace the file at any moment. What was opened stays as it was, so that places found in it
        are good as long as it is open, and only in it.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            yield None
            return
        with file:
            yield file

    def _scanned(self, file: BinaryIO | None) -> dict[str, tuple[int, int]]:
        """Return where each record begins in the opened file and how long it is."""
        if file is None:
            return {}
        stat = os.fstat(file.fileno())
        signature = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._signature != signature:
            places: dict[str, tuple[int, int]] = {}
            offset = 0
            for line in file:
                key = record.key_of_line(line)
                if key is not None:
                    places[key] = (offset, len(line))
                offset += len(line)
            self._signature, self._places = signature, places
        return self._places


def _listed(numbers: list[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
