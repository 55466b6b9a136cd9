"""The predictions beside the records: one compressed file of arrays a run, whose checksum stands in its record."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gence.lab.store import files
from gence.lab.store.files import StoreError

if TYPE_CHECKING:
    import numpy as np


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

    def take(self, key: str, other: Predictions) -> None:
        """Have the predictions that another store has of a run: none if it has none."""
        self._put(key, other._path(key).read_bytes() if other.exist(key) else None)

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
        data = self._path(key).read_bytes()
        if hashlib.sha256(data).hexdigest() != checksum:
            raise StoreError(f"{self._path(key)} is not what was recorded with the run; remove it or restore it")
        return data


def _compressed(arrays: Mapping[str, np.ndarray]) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()
