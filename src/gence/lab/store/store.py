"""The store: a folder in which each run is one record named by its key.

    records/ab/abcdef0123456789.json   one run
    records.jsonl                      many runs packed into one file (`Store.pack`), as a repository keeps them
    predictions/ab/abcdef0123456789.npz  compact predictions, where they were kept
    failures/, claims/                 what went wrong, and who is doing what now

Records are written once, whole, and never changed, so any number of processes on any number of machines may write and
read at the same time, and stores made on different days combine (`Store.merge`).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.spec import RunSpec
from gence.lab.store import files, record
from gence.lab.store.check import MergeReport, StoreCheck, leftovers
from gence.lab.store.environment import environment_record
from gence.lab.store.files import NewerVersionError, StoreError
from gence.lab.store.pack import Pack, Predictions
from gence.lab.store.record import Record, RunResult

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_log = logging.getLogger("gence.lab.store")


class Store:
    """A folder of records.

    Args:
        path: the folder; it is made when the first record is written.
        must_exist: raise `StoreError` if there is no such folder (for commands that only read).
        remember: keep each record in memory once it is read, for a caller that comes back to the same few.
    """

    def __init__(self, path: str | os.PathLike[str], *, must_exist: bool = False, remember: bool = False) -> None:
        self.root = Path(path)
        self._remember = remember
        self._remembered: dict[str, Record] = {}
        self._images: dict[str, Mapping[str, str]] = {}
        self._pack = Pack(self.root / "records.jsonl")
        self._predictions = Predictions(self.root / "predictions")
        if in_the_way := [place for place in (self.root, *self.root.parents) if place.is_file()]:
            raise StoreError(f"cannot create the store {self.root}: {in_the_way[0]} is a file")
        if must_exist and not self.root.is_dir():
            raise StoreError(f"there is no store at {self.root}; check the path, or make one with `gence run`")

    @classmethod
    def at(cls, store: Store | str | os.PathLike[str], *, must_exist: bool = False) -> Store:
        """Return the store itself, or the one at a path."""
        return store if isinstance(store, Store) else cls(store, must_exist=must_exist)

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r})"

    def write(self, spec: RunSpec, result: RunResult, environment: Mapping[str, Any] | None = None) -> bool:
        """Record a run; return False, and change nothing, if its record is there already."""
        if self.has(spec.key):
            return False
        # Before the record: whoever sees the record finds its predictions. Another's without a record may go.
        checksum = self._predictions.put(spec.key, result.predictions)
        line = record.encode(spec, result, environment_record() if environment is None else environment, checksum)
        return files.create_file(self._record_path(spec.key), line + b"\n")

    def ensure_writable(self) -> None:
        """Raise `StoreError` now, rather than after hours of training, if nothing can be written here."""
        probe = files.temporary_path(self.root / "probe")
        try:
            files.replace_file(probe, b"x" * 4096)
        finally:  # after Ctrl-C too; where nothing can be written, there is nothing to remove
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)

    def has(self, key: str) -> bool:
        """Return whether the run with this key is recorded."""
        return self._record_path(key).exists() or key in self._pack

    def keys(self) -> set[str]:
        """Return the keys of all recorded runs, from names alone: no record is opened."""
        # Loose files before the pack: a record on its way into the pack is then seen at least once.
        return {key for key, _ in self._loose()} | set(self._pack)

    def missing(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """Return the specs that are not recorded, each once, in the order given."""
        present = self.keys()
        wanted = {spec.key: spec for spec in specs}
        return [spec for key, spec in wanted.items() if key not in present]

    def read(self, key: str) -> Record:
        """Return one record; raise `StoreError` if it is absent, was edited, or is of a newer version."""
        if key in self._remembered:
            return self._remembered[key]
        found = record.decode(self.line(key), self._where(key))
        if self._remember:
            self._remembered[key] = found
        return found

    def records(self, keys: Iterable[str] | None = None) -> Iterator[Record]:
        """Yield the records with these keys (all of them by default), in the order of their keys.

        Of all, those of a newer version are skipped and counted in a note.
        """
        newer = 0
        for key in sorted(self.keys() if keys is None else keys):
            try:
                yield self.read(key)
            except NewerVersionError:
                if keys is not None:
                    raise
                newer += 1
        self._note_newer(newer)

    def line(self, key: str) -> bytes:
        """Return a record as it is stored, without the newline."""
        try:
            line = files.read_file(f"{self.root}{os.sep}records{os.sep}{key[:2]}{os.sep}{key}.json").rstrip(b"\n")
        except FileNotFoundError:
            packed = self._pack.line(key)
        except OSError as error:
            raise files.unreadable(error, self._record_path(key)) from error
        else:
            if record.key_of_line(line) not in (key, None):
                raise StoreError(f"{self._where(key)} holds the record of another run; remove it to train this run")
            return line
        if packed is None:
            raise StoreError(f"the store {self.root} has no record {key}")
        return packed

    def images(self, key: str) -> Mapping[str, str]:
        """Return the checksums of a run's images as its record has them; of a row of `frame` without reading again."""
        return self._images[key] if key in self._images else record.recorded_checksums(self.line(key))

    def unreadable(self, keys: Iterable[str]) -> dict[str, str]:
        """Return what is wrong with those of these records that are here and are not as they were written.

        Such a record is neither used nor replaced.
        """
        found: dict[str, str] = {}
        for key in sorted(self.keys().intersection(keys).difference(self._remembered)):
            try:
                self._checked(key, record.verified_run, self.line(key))
            except StoreError as error:
                found[key] = str(error)
        return found

    def _checked(self, key: str, check: Callable[[bytes, str], object], line: bytes) -> None:
        """Check a record; where it stands is looked for only if there is something to say of it."""
        try:
            check(line, key)
        except StoreError:
            check(line, self._where(key))
            raise

    def predictions(self, run: str | Record) -> dict[str, np.ndarray] | None:
        """Return the compact predictions of a run, or None where none were kept; those of another run are an error.

        Args:
            run: its key, or its record, which then need not be read for the checksum.
        """
        key = run if isinstance(run, str) else run.key
        if not self._predictions.exist(key):
            return None
        if isinstance(run, Record):
            return self._predictions.read(key, run.predictions)
        return self._predictions.read(key, record.verified_run(self.line(key), self._where(key))[1]["predictions"])

    def frame(self, keys: Iterable[str] | None = None) -> pd.DataFrame:
        """Return one row per record: the spec's fields, status, device, commit and every metric.

        Nested fields have dotted columns ("recipe.lr", "subset.n", "loss.anchor"); "loss" is the string form, "recipe"
        the recipe's name, or "custom-" and a hash. Metrics stand under their own names.

        Records of a newer version are skipped and counted in a note.

        Args:
            keys: the records to take; all by default.
        """
        import pandas as pd

        rows = sorted(self._rows(keys).values(), key=lambda row: str(row["key"]))
        return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["key", "status"])

    def _rows(self, keys: Iterable[str] | None) -> dict[str, dict[str, Any]]:
        """Return the row of each record; the packed ones from one pass over their file, where all are asked for."""
        rows: dict[str, dict[str, Any]] = {}
        newer = 0
        alike: dict[tuple[Any, ...], Mapping[str, str]] = {}

        def add(key: str, line: bytes) -> None:
            nonlocal newer
            try:
                rows[key], images = record.row_of_line(line, self._called(key))
                self._images[key] = alike.setdefault(tuple(images.items()), images)
            except NewerVersionError:
                newer += 1

        if keys is None:
            keys = {key for key, _ in self._loose()}  # before the pack, as in `keys`
            for key, line in self._pack.lines():
                if key not in keys:
                    add(key, line)
        for key in keys:
            if key in self._remembered:
                rows[key] = self._remembered[key].row()
            else:
                add(key, self.line(key))
        self._note_newer(newer)
        return rows

    def _note_newer(self, count: int) -> None:
        if count:
            _log.warning(
                "%d records in %s were written by a newer version and are skipped: update gence to read them",
                count,
                self.root,
            )

    def _called(self, key: str) -> str:
        """Return the name of a record in messages, where to look for its file would take too long."""
        return f"record {key} in {self.root}"

    def export_parquet(self, path: str | os.PathLike[str]) -> int:
        """Write `frame()` to a Parquet file; return the number of rows."""
        frame = self.frame()
        with files.writing_file(Path(path)) as part:
            frame.to_parquet(part, index=False)
        return len(frame)

    def export_csv(self, path: str | os.PathLike[str]) -> int:
        """Write `frame()` to a CSV file; return the number of rows. No text in it is a formula: see `frame_as_csv`."""
        frame = self.frame()
        with files.writing_file(Path(path)) as part:
            part.write_bytes(files.frame_as_csv(frame).encode("utf-8", "backslashreplace"))
        return len(frame)

    def merge(self, other: Store) -> MergeReport:
        """Take over the records (and predictions) of another store; of two that differ the older is kept.

        Of two that agree, the one whose predictions were kept. Predictions that are not as they were written stay where
        they are; the record comes without them.
        """
        added, same, conflicts, damaged = [], [], [], other.strange_lines()
        mine = self.keys()
        for key in sorted(other.keys()):
            try:
                theirs = other.line(key)
                outcome, created = record.outcome_of(theirs, other._where(key))
                # One of ours that is damaged stays as it is: what is left of a record is never replaced.
                own = record.outcome_of(self.line(key), self._where(key)) if key in mine else None
            except StoreError as error:
                damaged.append(str(error))
                continue
            predictions = other._predictions if other._predictions.exist(key) else None
            if predictions is not None:
                try:
                    predictions.check(key, record.verified_run(theirs, key)[1]["predictions"])
                except StoreError as error:
                    damaged.append(str(error))
                    predictions = None
            if own is None:
                self._take(key, theirs, predictions)
                added.append(key)
                continue
            own_outcome, own_created = own
            if outcome == own_outcome:
                if predictions is not None and not self._predictions.exist(key):
                    self._take_predictions(key, theirs, predictions)
                same.append(key)
                continue
            conflicts.append(key)
            if (created, theirs) < (own_created, self.line(key)):
                self._take(key, theirs, predictions)
        return MergeReport(tuple(added), tuple(same), tuple(conflicts), tuple(damaged))

    def pack(self) -> int:
        """Move all loose records into `records.jsonl`; return how many the file now holds.

        Predictions stay where they are. Others may read and write meanwhile.
        """
        with self._pack.locked():
            loose = dict(self._loose())
            keys = sorted({*loose, *self._pack})

            def sound(key: str) -> bytes:
                line = self.line(key)
                self._checked(key, record.check_unchanged, line)
                if key in loose:
                    self._ensure_one(key, line)
                return line

            self._pack.write(map(sound, keys))
            for path in loose.values():
                Path(path).unlink(missing_ok=True)
        return len(keys)

    def check(self, *, remove_leftovers: bool = False) -> StoreCheck:
        """Read everything; return what is not as it was written. Nothing is changed, but leftovers if asked."""
        problems: list[str] = []
        newer: list[str] = []
        sound = 0
        loose = dict(self.loose_files())
        for key in sorted({*loose, *self._pack}):
            try:
                where = self._where(key)
                line = self.line(key)
                _, run = record.verified_run(line, where)
                record.verified_spec(key, run, where)
                self._ensure_one(key, line)
                self._predictions.check(key, run["predictions"])
                sound += 1
            except NewerVersionError as error:
                newer.append(str(error))
            except StoreError as error:
                problems.append(str(error))
        problems += [f"{path} is not where and named as a record is" for path in self._strangers()]
        problems += [*self._pack.strangers(), *self._pack.conflicts()]
        unused = tuple(leftovers(self.root, {*loose, *self._pack}))
        if remove_leftovers:
            for path in unused:
                path.unlink(missing_ok=True)
        return StoreCheck(
            sound=sound, problems=tuple(problems), notes=(*newer, *self._pack.repeated()), leftovers=unused
        )

    def strange_lines(self) -> list[str]:
        """Return a sentence for each line of the pack that is not a record, and so is not counted."""
        return self._pack.strangers()

    @property
    def pack_path(self) -> Path:
        """The file of packed records."""
        return self._pack.path

    def _record_path(self, key: str) -> Path:
        return self.root / "records" / key[:2] / f"{key}.json"

    def _where(self, key: str) -> str:
        path = self._record_path(key)
        return str(path) if path.exists() else f"{self.pack_path} (record {key})"

    def _ensure_one(self, key: str, line: bytes) -> None:
        """Raise `StoreError` if the pack has another record of a run than the one that is read."""
        if self._pack.line(key) not in (None, line):
            raise StoreError(
                f"{self._where(key)} and {self.pack_path} hold different records of the run {key}, of which the first "
                "is read; remove one of them"
            )

    def loose_files(self) -> Iterator[tuple[str, Path]]:
        """Yield the keys and files of the records that are not packed."""
        for key, path in self._loose():
            yield key, Path(path)

    def _loose(self) -> Iterator[tuple[str, str]]:
        for path in self._record_files():
            folder, _, name = path.rpartition(os.sep)
            key = name.removesuffix(".json")
            if key != name and record.KEY_FORM.fullmatch(key) and folder.endswith(f"{os.sep}{key[:2]}"):
                yield key, path

    def _strangers(self) -> list[Path]:
        known = {path for _, path in self._loose()}
        others = (Path(path) for path in self._record_files() if path not in known)
        return sorted(path for path in others if not path.name.startswith(files.TEMPORARY_PREFIX))

    def _record_files(self) -> Iterator[str]:
        try:
            folders = [entry.path for entry in os.scandir(self.root / "records") if entry.is_dir()]
        except FileNotFoundError:
            return
        for folder in folders:
            with os.scandir(folder) as entries:
                yield from (entry.path for entry in entries)

    def _take(self, key: str, line: bytes, predictions: Predictions | None) -> None:
        """Store another store's record as it is, in place of this store's own where it has one."""
        packed = key in self._pack
        if packed:
            self._pack.ensure_only_records()  # before anything is changed
        self._predictions.take(key, predictions)
        if packed:
            with self._pack.locked():
                self._pack.write(line if own == key else self.line(own) for own in sorted(self._pack))
            self._record_path(key).unlink(missing_ok=True)
        else:
            files.replace_file(self._record_path(key), line + b"\n")

    def _take_predictions(self, key: str, line: bytes, predictions: Predictions) -> None:
        """Have the predictions of another store's record that agrees with this store's own."""
        own, theirs = (record.verified_run(one, key)[1]["predictions"] for one in (self.line(key), line))
        if own == theirs:
            self._predictions.take(key, predictions)
        else:
            self._take(key, line, predictions)  # the record has the checksum of the predictions, so they come with it
