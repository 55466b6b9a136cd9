"""What lies beside the records: many of them in one file of JSON lines, as a repository keeps them, and predictions.

The predictions of a run are one compressed file of arrays, whose checksum stands in its record.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from filelock import FileLock

from gence.lab.store import files, record
from gence.lab.store.files import StoreError

if TYPE_CHECKING:
    import numpy as np


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
        """Yield keys and records in one pass over the file; lines that are not records are skipped."""
        with self._opened() as file:
            for line in file or ():
                key = record.key_of_line(line)
                if key is not None:
                    yield key, line

    def write(self, lines: Iterable[bytes]) -> None:
        """Replace the file by these records. Hold `locked()` meanwhile. One record is in memory at a time."""
        self.ensure_only_records()
        files.replace_file(self.path, (line + b"\n" for line in lines))
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
                f"{'; '.join(strangers)}. Restore the file, or remove the line to train its run again; "
                "nothing was changed"
            )
        if conflicts := self.conflicts():
            raise files.StoreError(f"{'; '.join(conflicts)}. Nothing was changed")

    def strangers(self) -> list[str]:
        """Return a sentence for each line that is not a record."""
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
        except OSError as error:
            raise files.unreadable(error, self.path) from error
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


class Predictions:
    """The prediction files of a store.

    Args:
        folder: where they are; it need not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exist(self, key: str) -> bool:
        """Return whether a run's predictions were kept."""
        return self._path(key).exists()

    def put(self, key: str, arrays: Mapping[str, np.ndarray] | None) -> str | None:
        """Write a run's predictions, or make sure that there are none; return the checksum for the record."""
        return self._put(key, None if arrays is None else _compressed(arrays))

    def take(self, key: str, other: Predictions | None) -> None:
        """Have the predictions that another store has of a run: none if it has none, or none that can be used."""
        self._put(key, other._path(key).read_bytes() if other is not None and other.exist(key) else None)

    def read(self, key: str, checksum: str | None) -> dict[str, np.ndarray]:
        """Return a run's predictions; raise `StoreError` if they are not those its record has the checksum of."""
        import numpy as np

        with np.load(io.BytesIO(self._verified(key, checksum)), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    def check(self, key: str, checksum: str | None) -> None:
        """Raise `StoreError` if there are predictions and they are not those of the run.

        A packed store in a repository leaves predictions out.
        """
        if self.exist(key):
            self._verified(key, checksum)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.npz"

    def _put(self, key: str, data: bytes | None) -> str | None:
        if data is None:
            files.remove(self._path(key))
            return None
        files.replace_file(self._path(key), data)
        return hashlib.sha256(data).hexdigest()

    def _verified(self, key: str, checksum: str | None) -> bytes:
        try:
            data = self._path(key).read_bytes()
        except OSError as error:
            raise files.unreadable(error, self._path(key)) from error
        if hashlib.sha256(data).hexdigest() != checksum:
            raise StoreError(f"{self._path(key)} is not what was recorded with the run; remove it or restore it")
        return data


def _compressed(arrays: Mapping[str, np.ndarray]) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
