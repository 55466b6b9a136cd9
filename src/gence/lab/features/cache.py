"""Features on disk: each image embedded once per encoder, resumable, verified when read, mapped into memory.

A file holds the float16 features (n, D) of one set of images under one view, as safetensors: a header, then the rows.
It is written in parts of whole rows, in place, under the name ``....partial``; beside it a journal gets one line per
finished part, with the part's SHA-256, after the part has reached the disk. So an interrupted embedding keeps all
finished parts, and the next one resumes after them. A finished file gets its name; its journal stays and is what
reading verifies. The name holds a hash of all that features depend on: the images' checksum, the encoder's name,
weights and preprocessing, and the view.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from gence.lab.store import StoreError

FORMAT = 1  # raise it when what is stored, or how features are computed, changes
PART_ROWS = 512
_log = logging.getLogger("gence.lab.features")


@dataclass(frozen=True)
class FeatureFile:
    """Where the features of one set of images under one view belong, and what they must be.

    Attributes:
        path: of the finished file.
        rows: n, the number of images.
        width: D, the number of features.
        identity: all that the features depend on.
    """

    path: Path
    rows: int
    width: int
    identity: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, title: str, rows: int, width: int, identity: Mapping[str, Any]) -> FeatureFile:
        """The file in a cache folder for this identity; `title` makes its name readable."""
        # As JSON has it, in which it is compared: lists for tuples.
        full = json.loads(json.dumps({"format": FORMAT, "rows": rows, "width": width, **identity}))
        digest = hashlib.sha256(json.dumps(full, sort_keys=True).encode()).hexdigest()
        readable = "".join(c if c.isalnum() or c in "-_" else "_" for c in title)[:60]
        return cls(folder / "features" / f"{readable}-{digest[:20]}.safetensors", rows, width, full)

    @property
    def journal(self) -> Path:
        """One JSON line for the identity, then one per finished part."""
        return self.path.with_suffix(".parts.jsonl")

    @property
    def partial(self) -> Path:
        """The file while it is being written."""
        return self.path.with_suffix(".safetensors.partial")

    def parts(self) -> Iterator[tuple[int, int]]:
        """First row, and row after the last one, of each part."""
        return ((start, min(start + PART_ROWS, self.rows)) for start in range(0, self.rows, PART_ROWS))

    def header(self) -> bytes:
        """The bytes before the first row."""
        about = {
            "__metadata__": {"gence": json.dumps(self.identity, sort_keys=True)},
            "features": {
                "dtype": "F16",
                "shape": [self.rows, self.width],
                "data_offsets": [0, 2 * self.rows * self.width],
            },
        }
        text = json.dumps(about).encode()
        text += b" " * (-len(text) % 64)
        return len(text).to_bytes(8, "little") + text


def read_features(file: FeatureFile) -> Tensor | None:
    """The verified features (n, D), float16, mapped into memory; None if they are not complete.

    Parts that differ from their checksums are taken out of the journal, and the file becomes a partial one again: then
    they alone are embedded again.
    """
    if not file.path.is_file():
        return None
    good = _verified_parts(file, file.path)
    if len(good) == len(list(file.parts())):
        return _mapped(file, file.path)
    _log.warning("the features in %s are damaged; the damaged parts are embedded again", file.path)
    file.path.replace(file.partial)
    _rewrite_journal(file, good)
    return None


class FeatureWriter:
    """Writes the missing parts of a file; use it as a context manager.

    Attributes:
        missing: the parts that have still to be embedded: first row, and row after the last one.

    Raises:
        StoreError: the place cannot be written, or there is too little space: said before anything is embedded.
    """

    def __init__(self, file: FeatureFile) -> None:
        self.file = file
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            self._done = _verified_parts(file, file.partial) if file.partial.is_file() else {}
            self._start = len(file.header())
            self._rows = self._opened()
            _rewrite_journal(file, self._done)
            self._journal = file.journal.open("ab")
        except OSError as error:
            raise self._explained(error) from error
        self.missing = [part for part in file.parts() if part[0] not in self._done]

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._rows.close()
        self._journal.close()

    def write(self, start: int, features: Tensor) -> None:
        """Write one part, (rows, D); it is in the journal once it is on the disk.

        Raises:
            StoreError: no space, or no right to write. What was written before stays.
            ValueError: features that are NaN, infinite, or beyond float16.
        """
        rows = features.to(torch.float16).contiguous()
        if not bool(rows.isfinite().all()):
            broken = int((~rows.isfinite()).any(1).nonzero()[0]) + start
            raise ValueError(
                f"features: the encoder {self.file.identity.get('encoder')} gives NaN, infinite or too large numbers "
                f"for image {broken}; check its weights and that image. Earlier parts are kept"
            )
        data = rows.numpy().tobytes()
        try:
            self._rows.seek(self._start + 2 * start * self.file.width)
            self._rows.write(data)
            self._rows.flush()
            os.fsync(self._rows.fileno())
            digest = hashlib.sha256(data).hexdigest()
            _append(self._journal, {"start": start, "rows": len(rows), "sha256": digest})
        except OSError as error:
            raise self._explained(error) from error
        self._done[start] = digest

    def finish(self) -> Tensor:
        """Give the complete file its name, and return its features, mapped into memory."""
        if len(self._done) != len(list(self.file.parts())):
            raise StoreError(f"{self.file.partial} is not complete; embed the images again: finished parts are kept")
        self.__exit__()
        try:
            self.file.partial.replace(self.file.path)
        except OSError as error:
            raise self._explained(error) from error
        return _mapped(self.file, self.file.path)

    def _opened(self) -> BinaryIO:
        """The partial file with its header and all the space it will need."""
        file = self.file
        rows = file.partial.open("r+b" if file.partial.is_file() else "w+b")
        try:
            size = self._start + 2 * file.rows * file.width
            if hasattr(os, "posix_fallocate"):  # a full disk is found now, not after an hour
                os.posix_fallocate(rows.fileno(), 0, size)
            rows.truncate(size)
            rows.write(file.header())
            rows.flush()
        except BaseException:
            rows.close()
            raise
        return rows

    def _explained(self, error: OSError) -> StoreError:
        needed = 2 * self.file.rows * self.file.width / 2**20
        return StoreError(
            f"cannot write {needed:.0f} MiB of features to {self.file.path.parent}: {error.strerror or error}; free "
            "some space, or set GENCE_CACHE to a folder that can be written. Finished parts are kept, and the same "
            "command resumes after them"
        )


def _verified_parts(file: FeatureFile, path: Path) -> dict[int, str]:
    """First rows and digests of the parts in the journal whose bytes in `path` are as they were written."""
    expected = dict(file.parts())
    found: dict[int, str] = {}
    try:
        lines = file.journal.read_bytes().splitlines()
        with path.open("rb") as data:
            header = file.header()
            if data.read(len(header)) != header or not lines or json.loads(lines[0]) != dict(file.identity):
                return {}
            for line in lines[1:]:
                try:
                    part = json.loads(line)
                    start, digest = part["start"], part["sha256"]
                except (ValueError, KeyError, TypeError):  # cut short by a crash
                    continue
                if expected.get(start) != start + part["rows"]:
                    continue
                data.seek(len(header) + 2 * start * file.width)
                if hashlib.sha256(data.read(2 * part["rows"] * file.width)).hexdigest() == digest:
                    found[start] = digest
    except (OSError, ValueError) as error:
        _log.debug("no parts of %s can be used: %s", path, error)
    return found


def _rewrite_journal(file: FeatureFile, done: Mapping[int, str]) -> None:
    """Make the journal hold these parts alone; a crash leaves the old journal or the new one."""
    lines: list[Mapping[str, Any]] = [file.identity]
    last = dict(file.parts())
    lines += [{"start": start, "rows": last[start] - start, "sha256": digest} for start, digest in sorted(done.items())]
    temporary = file.journal.with_suffix(".writing")
    with temporary.open("wb") as journal:
        for line in lines:
            _append(journal, line, durable=False)
        os.fsync(journal.fileno())
    temporary.replace(file.journal)


def _append(journal: BinaryIO, line: Mapping[str, Any], *, durable: bool = True) -> None:
    journal.write(json.dumps(line, sort_keys=True).encode() + b"\n")
    journal.flush()
    if durable:
        os.fsync(journal.fileno())


def _mapped(file: FeatureFile, path: Path) -> Tensor:
    """The rows as a tensor over the file itself: what is not read is not loaded."""
    shape, offset = (file.rows, file.width), len(file.header())
    # Copy-on-write, so that the tensor may be written to as PyTorch expects, and the file is not.
    return torch.from_numpy(np.memmap(path, dtype=np.float16, mode="c", offset=offset, shape=shape))
