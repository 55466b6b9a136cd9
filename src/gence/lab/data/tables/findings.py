"""What is wrong with a table, or worth knowing of it, in one go: the part of `gence data check` that reads rows.

Rows are equal where all they are read for is equal. Near copies are texts whose character trigrams nearly agree, or
rows of numbers that agree to a thousandth of each column's standard deviation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from gence.lab.data.errors import DataError, first_few
from gence.lab.data.tables.address import TableAddress
from gence.lab.data.tables.columns import find_columns, labels_of, numbers_of
from gence.lab.data.tables.files import Part, read_files
from gence.lab.data.tables.load import lone_classes, missing_labels, read_rows, unseen_classes
from gence.lab.data.tables.rows import RowSet, RowSplits

HUGE_TEXT = 10_000
"""Characters of a text that no encoder reads to its end."""
_NEAR = 0.95  # cosine of the trigrams of two texts
_COMPARED = 20_000  # training texts; with more, only equal texts are found
_FEW = 20  # rows, below which nothing is reported about a column
_RARE = 5  # rows of a class, below which test results say little
_GARBLED = re.compile("\ufffd|Ã[\u0080-\u00bf]|â€|Â[\u00a0-\u00bf]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class TablePart:
    """What one part of a table holds."""

    name: str
    kind: str
    counts: tuple[int, ...]  # rows per class
    checksum: str

    def in_words(self) -> str:
        """Return a line about it.

        >>> TablePart("tickets/train", "text", (3, 4), "ab" * 32).in_words()
        'tickets/train: 7 texts, 2 classes with 3 to 4 each, SHA-256 abababababababab'
        """
        noun = {"text": "texts", "columns": "rows", "features": "rows of ready features"}[self.kind]
        least, most = min(self.counts), max(self.counts)
        each = str(least) if least == most else f"{least} to {most}"
        return (
            f"{self.name}: {sum(self.counts)} {noun}, {len(self.counts)} classes with {each} each, "
            f"SHA-256 {self.checksum[:16]}"
        )


@dataclass
class TableFindings:
    """What was found: `problems` keep a table from being read, `notes` are worth knowing."""

    parts: list[TablePart] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_rows(source: str) -> TableFindings:
    """Read a table and report all that is wrong with it, rather than the first."""
    found = TableFindings()
    try:
        splits = read_rows(source)
    except DataError as error:
        found.problems.append(str(error))
        found.problems += [problem for problem in _all_problems(source) if problem not in found.problems]
        return found
    for part in (splits.train, splits.test):
        found.parts.append(TablePart(part.name, part.kind, tuple(part.counts().tolist()), part.checksum))
    found.notes += [splits.in_words(), *splits.notes, *splits.concerns]
    found.notes += [*_class_notes(splits), *_copy_notes(splits), *_column_notes(splits.train)]
    found.notes += _text_notes([*_texts(splits.train), *_texts(splits.test)])
    return found


def _texts(part: RowSet) -> Sequence[str]:
    return part.texts if part.kind == "text" else ()


def _all_problems(source: str) -> Iterator[str]:
    """What else is wrong with a table that cannot be read, as far as its columns can be told."""
    address = TableAddress.parse(source)
    try:
        parts = read_files(Path(address.path).expanduser(), [])
        first = parts.get("train", parts.get("all"))
        columns = None if isinstance(first, Mapping) or first is None else find_columns(address, first, address.path)
    except DataError:
        return
    known: tuple[str, ...] = ()
    for name, table in parts.items():
        where = address.path if name == "all" else f"{address.path} ({name})"
        try:
            labels = _labels(table, None if columns is None else columns.label)
        except DataError:  # which reading has said
            continue
        yield from filter(None, (missing_labels(labels, where),))
        if name in ("train", "all"):
            known = tuple(sorted({label for label in labels if label and label != address.without}))
        if isinstance(table, pd.DataFrame) and columns is not None:
            for column in columns.numbers:
                cells = numbers_of(table[column]) if column in table else None
                infinite = 0 if cells is None else int(np.isinf(cells).sum())
                if infinite:
                    yield f"{where}: {infinite} cells of the column {column!r} are infinite; empty them if missing"
        if len(parts) == 1:
            yield from lone_classes([label for label in labels if label != address.without], where)
    if "test" in parts and known:
        test = [label for label in _labels(parts["test"], None if columns is None else columns.label) if label]
        wanted = [label for label in test if label != address.without]
        yield from filter(None, (unseen_classes(wanted, known, f"{address.path} (train)"),))


def _labels(table: Part, column: str | None) -> list[str]:
    if isinstance(table, pd.DataFrame):
        if column not in table:
            raise DataError(f"no column {column!r}")
        return labels_of(table[column])
    return labels_of(pd.Series(table["y"])) if "y" in table else []


def _class_notes(splits: RowSplits) -> Iterator[str]:
    """Classes that are hardly there, and names that may mean one class."""
    train, test = splits.train.counts().tolist(), splits.test.counts().tolist()
    rare = [f"{name!r} ({count})" for name, count in zip(splits.classes, train, strict=True) if count < _RARE]
    if rare:
        yield f"{len(rare)} of {len(train)} classes have fewer than {_RARE} training rows: {first_few(rare)}"
    if max(train) > 10 * max(1, min(train)):
        yield f"classes have {min(train)} to {max(train)} training rows: look at balanced accuracy too"
    absent = [repr(name) for name, count in zip(splits.classes, test, strict=True) if not count]
    if absent:
        yield f"{len(absent)} classes have no test row: {first_few(absent)}"
    alike: dict[str, list[str]] = defaultdict(list)
    for name in splits.classes:
        alike["".join(name.casefold().replace("_", " ").replace("-", " ").split())].append(name)
    for names in alike.values():
        if len(names) > 1 and not all(name.lstrip("-").isdecimal() for name in names):
            yield f"the labels {' and '.join(map(repr, names))} differ in case, spaces or hyphens alone: one class?"


def _copy_notes(splits: RowSplits) -> Iterator[str]:
    """Rows that occur twice where they should not: in training and test, or under two labels."""
    keys = {"train": _keys(splits.train), "test": _keys(splits.test)}
    known = set(keys["train"])
    leaked = [key in known for key in keys["test"]]
    if any(leaked):
        yield (
            f"{sum(leaked)} of {len(leaked)} test rows are also in the training part: this makes every score too good"
        )
    near = _near_copies(splits, np.array(leaked))
    if near:
        yield near
    again = len(keys["train"]) - len(known)
    if again:
        yield f"{again} training {'row is a copy' if again == 1 else 'rows are copies'} of another one"
    seen: dict[Hashable, tuple[str, str]] = {}
    count, example = 0, ""
    for part in (splits.train, splits.test):
        for row, (key, label) in enumerate(zip(keys[part.name.rpartition("/")[2]], part.labels.tolist(), strict=True)):
            name = part.classes[label]
            first, shown = seen.setdefault(key, (name, part.shown(row) if len(seen) < 100_000 else ""))
            if first != name:
                count += 1
                example = example or f"{shown[:80]!r} is {first!r} and {name!r}"
    if count:
        equal = "row equals" if count == 1 else "rows equal"
        yield f"{count} {equal} a row with another label; at least one of the labels is wrong: {example}"


def _keys(part: RowSet) -> list[Hashable]:
    """What tells one row from another."""
    if isinstance(part.content, Tensor):
        return [row.tobytes() for row in part.content.numpy()]
    if isinstance(part.content, pd.DataFrame):
        frame = part.content.astype(object).where(part.content.notna(), None)
        return list(frame.itertuples(index=False, name=None))
    return list(part.texts)


def _near_copies(splits: RowSplits, leaked: np.ndarray) -> str | None:
    """Test rows that nearly equal a training row, copies aside."""
    train, test = splits.train, splits.test
    rest = np.flatnonzero(~leaked)
    if not len(rest):
        return None
    if train.kind != "text":
        of_train, of_test = _rounded(train, test)
        known = set(of_train)
        count = sum(of_test[row] in known for row in rest.tolist())
        return f"{count} more test rows nearly equal a training row, as rounded copies do" if count else None
    if len(train) > _COMPARED:
        return f"near copies were not looked for: there are more than {_COMPARED:,} training texts"
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3), use_idf=False, dtype=np.float32)
    try:
        a = vectors.fit_transform([text[:HUGE_TEXT] for text in train.texts])
    except ValueError:  # no text has a character
        return None
    count, example = 0, ""
    for start in range(0, len(rest), 500):
        some = rest[start : start + 500]
        b = vectors.transform([test.texts[row][:HUGE_TEXT] for row in some.tolist()])
        closest = np.asarray((b @ a.T).max(axis=1).todense()).ravel()
        near = np.flatnonzero(closest >= _NEAR)
        count += len(near)
        if len(near) and not example:
            example = test.texts[some[near[0]]][:80]
    return f"{count} more test texts nearly equal a training text, such as {example!r}" if count else None


def _rounded(train: RowSet, test: RowSet) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Rows of numbers to a thousandth of their standard deviation; words as they are."""
    frames = [
        part.content if isinstance(part.content, pd.DataFrame) else pd.DataFrame(part.content.numpy())  # type: ignore[union-attr]
        for part in (train, test)
    ]
    made = []
    for frame in frames:
        columns = {}
        for name in frame:
            values = frame[name].to_numpy()
            if values.dtype.kind == "f":
                unit = float(np.nanstd(frames[0][name].to_numpy())) / 1000 if len(frames[0]) else 0.0
                values = np.nan_to_num(np.round(values / unit) if unit > 0 else values, nan=np.inf)
            columns[name] = values
        made.append(list(zip(*(column.tolist() for column in columns.values()), strict=True)))
    return made[0], made[1]


def _column_notes(train: RowSet) -> Iterator[str]:
    """Columns that say nothing, that number the rows, or that give the label away."""
    frame, labels = train.content, train.labels.numpy()
    if isinstance(frame, Tensor):
        same = int((frame == frame[:1]).all(0).sum())
        if same:
            yield f"{same} of {frame.shape[1]} features are the same in every training row"
        return
    if not isinstance(frame, pd.DataFrame):
        return
    for name in frame:
        values = frame[name]
        is_number = values.dtype.kind == "f"
        there = values.notna() if is_number else values != ""
        if values[there].nunique() <= 1 and (is_number or there.all() or not there.any()):
            yield f"the column {name!r} is constant in the training part, and says nothing"
            continue
        missing = 1 - float(there.mean())
        if missing > 0.5:
            yield f"the column {name!r} is empty in {missing:.0%} of the training rows"
        if len(values) < _FEW:
            continue
        if is_number and values.nunique() == len(values) and bool((values == values.round()).all()):
            yield (
                f"the column {name!r} has another whole number in every training row, as an identifier has; name the "
                "columns to use with --features"
            )
        elif gives_away(values[there], labels[there.to_numpy()]):
            yield (
                f"the column {name!r} alone tells the label of every training row: is it known before the label is? "
                "Otherwise choose the columns to use with --features"
            )


def gives_away(values: pd.Series, labels: np.ndarray) -> bool:
    """Whether a column determines the label: each word has one, or each class an interval of numbers.

    >>> labels = np.array([0, 0, 1, 1] * 5)
    >>> gives_away(pd.Series([1.0, 2.0, 7.0, 9.0] * 5), labels), gives_away(pd.Series(["a", "a", "a", "b"] * 5), labels)
    (True, False)
    """
    found = np.unique(labels)
    if len(found) < 2 or len(labels) < _FEW:
        return False
    table = pd.DataFrame({"value": values.to_numpy(), "label": labels})
    if (table.groupby("value")["label"].nunique() > 1).any():
        return False
    if values.dtype.kind == "f":
        ordered = table.sort_values("value", kind="stable")["label"].tolist()
        runs: int = 1 + sum(a != b for a, b in pairwise(ordered))
        return runs == len(found)
    return bool(table["value"].nunique() <= len(table) / 2)


def _text_notes(texts: Sequence[str]) -> Iterator[str]:
    """Texts that are damaged, or that nobody reads to the end."""
    huge = [len(text) for text in texts if len(text) > HUGE_TEXT]
    if huge:
        yield (
            f"{len(huge)} texts have more than {HUGE_TEXT:,} characters, the longest {max(huge):,}: an encoder reads "
            "their beginning"
        )
    for many, pattern, what in (
        ("show", _GARBLED, "signs of a wrong encoding, as in"),
        ("have", _CONTROL, "control characters, as"),
    ):
        hit = [text for text in texts if pattern.search(text)]
        if hit:
            yield f"{len(hit)} texts {many} {what} {hit[0][:60]!r}"
