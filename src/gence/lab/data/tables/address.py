"""A table and its columns as one text: ``tickets.csv#label=team&text=message``.

So a run on a table is named by a text like any other run, and its key says which columns it was made with. A file
inside a zip or a folder is ``archive.zip/file.csv``.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import uuid
import zipfile
from dataclasses import dataclass, fields, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from gence.lab.data.cache import default_cache_dir
from gence.lab.data.errors import DataError
from gence.lab.data.names import HUB_PREFIX

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npz")
PARTS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "valid", "validation", "dev"),
}
"""How the files of a folder or zip are called, without their ending."""
_NAMED = ("label", "text", "features", "without", "only")


@dataclass(frozen=True, kw_only=True)
class TableAddress:
    """Where a table is, and which of its columns and rows are meant.

    Attributes:
        path: a file, a folder or zip with the files train and test, a file inside one of these, or hf:OWNER/NAME.
        text: the column of texts.
        label: the column of labels.
        features: the columns that are used; all but the label by default.
        without: a label whose rows are skipped, because they stand for inputs of no class.
        only: the label whose rows alone are meant.

    >>> TableAddress.parse("tickets.csv#label=team&text=message").text
    'message'
    >>> str(TableAddress(path="a.csv", label="y", features=("x 1", "x 2")))
    'a.csv#label=y&features=x%201&features=x%202'
    """

    path: str
    text: str | None = None
    label: str | None = None
    features: tuple[str, ...] = ()
    without: str | None = None
    only: str | None = None

    @classmethod
    def parse(cls, source: str | os.PathLike[str]) -> TableAddress:
        """Read the one text of a source."""
        path, _, rest = str(source).partition("#")
        given: dict[str, list[str]] = {}
        known = [one.name for one in fields(cls) if one.name != "path"]
        for name, value in parse_qsl(rest, keep_blank_values=True):
            if name not in known:
                raise DataError(f"{source}: unknown part {name!r} after #; expected {', '.join(known)}")
            given.setdefault(name, []).append(value)
        for name, values in given.items():
            if name != "features" and len(values) > 1:
                raise DataError(f"{source}: {name} is given {len(values)} times; keep one")
        one = {name: values[0] for name, values in given.items() if name != "features"}
        return cls(path=path, features=tuple(given.get("features", ())), **one)

    def __str__(self) -> str:
        pairs = [
            (name, value)
            for name in _NAMED
            for value in ((getattr(self, name),) if name != "features" else self.features)
            if value is not None
        ]
        return f"{self.path}#{urlencode(pairs, quote_via=quote)}" if pairs else self.path


def is_table(source: object) -> bool:
    """Whether a source is a labelled table, and no set of images.

    >>> is_table("tickets.csv#text=message"), is_table("cifar10"), is_table("features.npz")
    (True, False, True)
    """
    if not isinstance(source, str | os.PathLike):
        return False
    text = str(source)
    if text.startswith(HUB_PREFIX):  # images, unless a column is named
        return any(f"{name}=" in text.partition("#")[2] for name in _NAMED)
    plain = text.partition("#")[0].rstrip("/")
    if plain.lower().endswith(SUFFIXES):
        return True
    path = Path(plain).expanduser()
    try:
        names: list[str] = []
        if path.is_dir():
            names = [f"{entry.name}/" if entry.is_dir() else entry.name for entry in path.iterdir()]
        elif path.suffix.lower() == ".zip" and path.is_file():
            stat = path.stat()
            names = _upper_names(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False  # whoever reads it says what is wrong
    if any(name.partition("/")[0].lower() in PARTS["train"] and "/" in name for name in names):
        return False  # images in folders, and a list of them beside
    return any(_part_of(name) == "train" for name in names) or (
        any(name.lower().endswith(SUFFIXES) for name in names) and not any("/" in name for name in names)
    )


@functools.lru_cache(maxsize=8)
def _upper_names(path: Path, state: tuple[int, int, int]) -> list[str]:
    """The names in a zip down to the first folders; of many thousand files listing them takes its time."""
    del state  # another file under the same name has another
    with zipfile.ZipFile(path) as archive:
        return [name for name in archive.namelist() if name.count("/") <= 1]


def _part_of(name: str) -> str | None:
    """The part that a file's name says it holds, or None."""
    path = PurePosixPath(name)
    if path.suffix.lower() not in SUFFIXES:
        return None
    return next((part for part, words in PARTS.items() if path.stem.lower() in words), None)


def parts_of(names: list[str], where: str) -> dict[str, str]:
    """The files of a folder or zip by part: {"train", "test", "val"}, or {"all"} where there is one file alone.

    Raises:
        DataError: none is called train, two hold one part, or the one file is not among several.
    """
    tables = [name for name in names if name.lower().endswith(SUFFIXES) and name.count("/") <= 1]
    found: dict[str, str] = {}
    for name in sorted(tables):
        part = _part_of(name)
        if part is not None and part in found:
            raise DataError(f"{where}: {found[part]} and {name} both hold the {part} part; keep one")
        if part is not None:
            found[part] = name
    if "train" in found:
        return found
    if len(tables) == 1:
        return {"all": tables[0]}
    raise DataError(
        f"{where} has the tables {', '.join(tables) or 'none'}; expected one, or train and test "
        f"({', '.join(SUFFIXES)}); name one file as {where}/FILE"
    )


def with_columns(
    source: str,
    *,
    text: str | None = None,
    label: str | None = None,
    features: tuple[str, ...] = (),
    without: str | None = None,
) -> str:
    """A source with the columns that options name.

    Raises:
        DataError: columns of something that is not a table, or texts and features at once.

    >>> with_columns("tickets.csv", text="message", label="team")
    'tickets.csv#label=team&text=message'
    """
    given: dict[str, Any] = {"text": text, "label": label, "features": tuple(features) or None, "without": without}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return source
    if not is_table(source) and not source.startswith(HUB_PREFIX):
        named = ", ".join("--ood-label" if name == "without" else f"--{name}" for name in given)
        raise DataError(
            f"data: {named} names columns of a table, but {source} is not a table ({', '.join(SUFFIXES)}, a folder or "
            "zip, or hf:OWNER/NAME)"
        )
    if text is not None and features:
        raise DataError(
            "text and features: a run reads texts, or columns of numbers and categories; name one of the two"
        )
    return str(replace(TableAddress.parse(source), **given))


def frame_source(frame: pd.DataFrame, cache_dir: Path | None = None) -> str:
    """Keep a pandas frame in the cache as Parquet, and return it as a source: runs are named by texts."""
    if len(set(map(str, frame.columns))) != len(frame.columns):
        raise DataError(f"data: columns of the frame have one name ({list(frame.columns)}); rename them")
    buffer = io.BytesIO()
    try:
        frame.rename(columns=str).to_parquet(buffer, index=False)
    except (ValueError, TypeError, OverflowError) as error:  # pyarrow's own errors are among these
        raise DataError(
            f"data: the frame cannot be saved as Parquet ({error}); turn such columns into texts"
        ) from error
    data = buffer.getvalue()
    folder = (default_cache_dir() if cache_dir is None else cache_dir) / "frames"
    path = folder / f"frame-{hashlib.sha256(data).hexdigest()[:16]}.parquet"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
        part.write_bytes(data)
        part.replace(path)
    return str(path)
