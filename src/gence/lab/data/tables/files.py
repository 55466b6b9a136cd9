"""Files of tables, read whole: CSV and TSV as texts, Parquet and Arrow with their own types, NumPy's .npz as arrays.

Nothing is guessed from the contents of a cell here: a CSV's cells stay as they are written. What is damaged is an
error that names the line.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gence.lab.data.archives import open_container
from gence.lab.data.download import hub_tables
from gence.lab.data.errors import DataError
from gence.lab.data.names import HUB_PREFIX
from gence.lab.data.tables.address import parts_of

Part = pd.DataFrame | Mapping[str, np.ndarray]
"""What one file holds: a table, or the arrays of an .npz file."""

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def read_files(path: Path, notes: list[str]) -> dict[str, Part]:
    """The tables of a source by part: {"all"}, or "train" and whatever there is of "test" and "val".

    Args:
        path: a file, a folder or zip, or a file inside one of these.
        notes: takes what a user should know of how a file was read.
    """
    if str(path).startswith(HUB_PREFIX):
        kept = hub_tables(str(path).removeprefix(HUB_PREFIX))
        return {part: read_one(file.read_bytes(), f"{path}/{file.name}", notes) for part, file in kept.items()}
    inside = _inside(path)
    if inside is not None:
        container, name = inside
        with open_container(container) as files:
            if name not in files.files:
                raise DataError(f"{container} has no file {name}; it has {', '.join(sorted(files.files)[:5])}")
            return {"all": read_one(files.read(name), files.where(name), notes)}
    if path.is_dir() or path.suffix.lower() == ".zip":
        with open_container(path) as files:
            parts = parts_of(list(files.files), str(path))
            return {part: read_one(files.read(name), files.where(name), notes) for part, name in parts.items()}
    try:
        return {"all": read_one(path.read_bytes(), str(path), notes)}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _inside(path: Path) -> tuple[Path, str] | None:
    """The zip, and the name in it, of a path such as archive.zip/file.csv; None for a file or folder."""
    if path.exists():
        return None
    for parent in path.parents:
        if parent.suffix.lower() == ".zip" and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    raise DataError(f"there is no file {path}")


def read_one(data: bytes, where: str, notes: list[str]) -> Part:
    """The table in a file's bytes; `where` is how messages call it, and says by its ending what it is."""
    ending = where.rpartition(".")[2].lower()
    if not data:
        raise DataError(f"{where} is empty")
    if ending in ("csv", "tsv"):
        found: Part = _read_csv(data, where, notes)
    elif ending == "npz":
        found = _read_npz(data, where)
    else:
        found = _read_arrow(data, where, ending)
    if isinstance(found, pd.DataFrame):
        if not len(found):
            raise DataError(f"{where} has a header and no rows")
        _check_names(list(found.columns), where)
    return found


def _check_names(names: list[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has the column {twice[0]!r} twice; rename one of them")


def _decoded(data: bytes, where: str) -> str:
    """The text of a CSV: UTF-8 with or without its mark, or UTF-16 with it."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{where} is not UTF-8: line {line} has the byte 0x{data[error.start]:02X}, as files in Latin-1 or "
            f"Windows-1252 do; convert it: iconv -f WINDOWS-1252 -t UTF-8 {Path(where).name} > new.csv, or save it as "
            '"CSV UTF-8"'
        ) from error


def _read_csv(data: bytes, where: str, notes: list[str]) -> pd.DataFrame:
    from pyarrow import ArrowInvalid, csv as reader, string

    text = _decoded(data, where)
    delimiter, header = _delimiter(text, where, notes)
    _check_names(header, where)
    try:
        table = reader.read_csv(
            io.BytesIO(text.encode()),
            # One thread: only then errors name the row, and reading is far from what takes long.
            read_options=reader.ReadOptions(use_threads=False, block_size=max(2**20, len(data) + 1)),
            parse_options=reader.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=reader.ConvertOptions(
                column_types=dict.fromkeys(header, string()), strings_can_be_null=False
            ),
        )
    except ArrowInvalid as error:
        raise DataError(f"{where} cannot be read: {_csv_error(str(error))}") from error
    except UnicodeError as error:
        raise DataError(f"{where} cannot be read: {error}") from error
    frame: pd.DataFrame = table.to_pandas()
    if text.count('"') % 2:
        raise DataError(
            f"{where} has an odd number of double quotes, so where a cell ends is unclear; close the quotes, and "
            'write a quote inside a cell twice ("")'
        )
    return frame


def _csv_error(text: str) -> str:
    """What pyarrow says of a ragged line, in a user's words."""
    found = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", text, re.DOTALL)
    if found is None:
        return text[:200]
    row, expected, got, line = found.groups()
    return (
        f"row {row} has {got} cells and the header {expected}: {line[:80]!r}; put quotes around cells that contain the "
        "delimiter"
    )


def _delimiter(text: str, where: str, notes: list[str]) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns: commas in .csv and tabs in .tsv, unless the header has others."""
    usual = "\t" if where.lower().endswith(".tsv") else ","
    names: dict[str, list[str]] = {}
    for delimiter in _DELIMITERS:
        try:
            names[delimiter] = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error as error:
            raise DataError(f"{where} cannot be read: its header is not valid CSV ({error})") from error
    if len(names[usual]) < 2:
        other = max(names, key=lambda one: len(names[one]))
        if len(names[other]) > 1:
            notes.append(f"{Path(where).name} is separated by {_DELIMITERS[other]}")
            usual = other
    return usual, names[usual]


def _read_arrow(data: bytes, where: str, ending: str) -> pd.DataFrame:
    from pyarrow import BufferReader, feather, ipc, parquet

    source = BufferReader(data)
    try:
        if ending == "parquet":
            table = parquet.read_table(source)
        elif data[:6] == b"ARROW1":
            table = feather.read_table(source)
        else:
            table = ipc.open_stream(source).read_all()
        frame: pd.DataFrame = table.to_pandas()
    except Exception as error:  # Arrow's own; and of damaged notes that pandas left in the file, nearly any
        raise DataError(f"{where} cannot be read as {ending}: {str(error)[:200]}; get the file again") from error
    return frame.rename(columns=str)


def _read_npz(data: bytes, where: str) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # NumPy and zipfile raise nearly every built-in exception on damaged files
        if "pickle" in str(error).lower():
            raise DataError(
                f"{where} holds Python objects, which can run code when they are read, and is refused; save X as "
                "numbers and y as numbers or texts: np.savez(file, X=X.astype('float32'), y=y.astype('str'))"
            ) from error
        raise DataError(f"{where} cannot be read as .npz: {str(error)[:200]}; get the file again") from error
