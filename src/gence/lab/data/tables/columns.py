"""Which column is the text, which the label, and which hold numbers or categories.

What is unmistakable is recognised and said; everything else is an error that shows the columns. Which columns hold
numbers is decided on the training part alone; `content_of` then reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gence.lab.data.errors import DataError, first_few
from gence.lab.data.tables.address import TableAddress

TEXT_NAMES = ("text", "texts", "sentence", "utterance", "message", "review", "query", "question")
LABEL_NAMES = ("label", "labels", "class", "target", "category", "intent", "y")
MISSING = ("", "na", "n/a", "nan", "null", "none", "<na>", "-nan", "#n/a")
"""Cells of a CSV that stand for no value, in small letters."""
_TEXT_WORDS = 4
_IDENTIFIER_SHARE = 0.9
_IDENTIFIER_ROWS = 20


@dataclass(frozen=True)
class Columns:
    """The columns of a table by what they are used for.

    Attributes:
        label: the labels.
        text: the texts; None for a table of numbers and categories.
        numbers: columns of numbers.
        categories: columns of words.
        unused: columns that are skipped.
    """

    label: str
    text: str | None = None
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are read but the label."""
        return (self.text,) if self.text is not None else (*self.numbers, *self.categories)

    def in_words(self) -> str:
        """Return what was recognised, in a sentence without its full stop.

        >>> Columns("team", text="message", unused=("id",)).in_words()
        "Texts from the column 'message', labels from 'team'; not used: 'id'"
        """
        if self.text is not None:
            found = f"Texts from the column {self.text!r}"
        else:
            kinds = (("numbers", self.numbers), ("categories", self.categories))
            each = [
                f"{len(names)} column{'s' if len(names) > 1 else ''} of {kind} ({listed(names)})"
                for kind, names in kinds
                if names
            ]
            found = " and ".join(each)
        unused = f"; not used: {listed(self.unused)}" if self.unused else ""
        return f"{found}, labels from {self.label!r}{unused}"


def find_columns(address: TableAddress, frame: pd.DataFrame, where: str) -> Columns:
    """The columns of a training part, named by the address or recognised.

    Raises:
        DataError: a column that is not there, or that cannot be told without being named.
    """
    names = [str(name) for name in frame.columns]
    for asked, option in (*((name, "features") for name in address.features), (address.text, "text"),
                          (address.label, "label")):  # fmt: skip
        if asked is not None and asked not in names:
            raise DataError(f"{option}: {where} has no column {asked!r}; it has {listed(names, 30)}")
    label = address.label or _recognised(names, LABEL_NAMES, "label", where)
    if label == address.text or label in address.features:
        use = "text" if label == address.text else "a feature"
        raise DataError(f"label: the column {label!r} is also named as {use}")
    others = [name for name in names if name != label]
    if not others:
        raise DataError(f"{where} has no column besides the labels {label!r}; expected texts or features beside them")
    text = address.text
    if text is None and not address.features:
        found = [name for name in others if name.lower() in TEXT_NAMES and numbers_of(frame[name]) is None]
        if len(found) > 1:
            raise DataError(f"text: {where} has the columns {listed(found)}; name the one to read with --text")
        text = found[0] if found else None
    if text is not None:
        return Columns(label, text=text, unused=tuple(name for name in others if name != text))
    return _sorted_out(address, frame, label, others, where)


def _sorted_out(address: TableAddress, frame: pd.DataFrame, label: str, others: Sequence[str], where: str) -> Columns:
    """Numbers, categories and what is neither, of a table without texts."""
    numbers, categories, unused = [], [], []
    for name in address.features or others:
        column = frame[name]
        if numbers_of(column) is not None:
            numbers.append(name)
        elif pd.api.types.is_datetime64_any_dtype(column) or _is_identifier(column):
            if name in address.features:
                raise DataError(
                    f"features: the column {name!r} of {where} has a different value in nearly every row, or dates; "
                    "turn it into numbers or categories, or remove it"
                )
            if _looks_like_text(column):
                raise DataError(
                    f"{where}: the column {name!r} looks like texts; read them with --text {_quoted(name)}, or "
                    f"name the columns to use with --features. Columns: {listed(others, 30)}"
                )
            unused.append(name)
        else:
            categories.append(name)
    if address.features:
        unused = [name for name in others if name not in address.features]
    if not numbers and not categories:
        raise DataError(f"{where} has no column of numbers or categories; beside {label!r} it has {listed(others, 30)}")
    return Columns(label, None, tuple(numbers), tuple(categories), tuple(unused))


def numbers_of(column: pd.Series) -> np.ndarray | None:
    """A column as float64 with NaN where a cell is missing; None if a cell is not a number, or all are missing."""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_numeric_dtype(column):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if pd.api.types.is_datetime64_any_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return None
    cells = column.astype("string").str.strip()
    missing = cells.isna() | cells.str.lower().isin(MISSING)
    if bool(missing.all()):
        return None
    found = pd.to_numeric(cells.mask(missing), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return None if bool(np.isnan(found[~missing.to_numpy(dtype=bool)]).any()) else found


def words_of(column: pd.Series) -> list[str]:
    """A column as texts without space around them; "" where a cell is missing."""
    cells = column.astype("string").str.strip().fillna("")
    return ["" if cell.lower() in MISSING else cell for cell in cells.tolist()]


def labels_of(column: pd.Series) -> list[str]:
    """Labels as texts: whole numbers without a decimal point, "" where there is none; "none" and "NA" are labels."""
    if pd.api.types.is_float_dtype(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        if bool((np.isnan(values) | (values == np.round(values))).all()):
            return ["" if value != value else str(int(value)) for value in values.tolist()]
    return [str(cell) for cell in column.astype("string").str.strip().fillna("").tolist()]


def _recognised(names: Sequence[str], known: Sequence[str], option: str, where: str) -> str:
    found = [name for name in names if name.lower() in known]
    if len(found) == 1:
        return found[0]
    which = f"the columns {listed(found)} could be it" if found else f"none is called {', '.join(known[:3])}"
    raise DataError(
        f"{option}: which column of {where} has the {option}s is unclear: {which}; name it with --{option} COLUMN. "
        f"Columns: {listed(names, 30)}"
    )


def _is_identifier(column: pd.Series) -> bool:
    words = [word for word in words_of(column) if word]
    return len(words) >= _IDENTIFIER_ROWS and len(set(words)) >= _IDENTIFIER_SHARE * len(words)


def _looks_like_text(column: pd.Series) -> bool:
    words = [word for word in words_of(column) if word]
    return bool(words) and sum(len(word.split()) for word in words) / len(words) >= _TEXT_WORDS


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in quotes, the first of many."""
    return first_few([repr(name) for name in names], most)


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def content_of(table: pd.DataFrame, columns: Columns, where: str) -> list[str] | pd.DataFrame:
    """The texts, or the numbers and categories, of a table with the columns of a training part."""
    for name in columns.used:
        if name not in table.columns:
            raise DataError(
                f"{where} has no column {name!r}, which the training part has; it has "
                f"{listed(list(map(str, table.columns)), 30)}"
            )
    if columns.text is not None:
        return [str(cell) for cell in table[columns.text].astype("string").fillna("").str.strip().tolist()]
    found: dict[str, Any] = {}
    for name in columns.numbers:
        values = numbers_of(table[name])
        if values is None:
            words = words_of(table[name])
            row = next((i for i, word in enumerate(words) if word and not _is_number(word)), None)
            if row is not None:
                raise DataError(
                    f"{where}: row {row + 1} of the column {name!r} is {words[row][:40]!r}; expected a number"
                )
            values = np.full(len(table), np.nan)
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            raise DataError(
                f"{where}: row {infinite[0] + 1} of the column {name!r} is infinite; leave the cell empty if the value "
                "is missing"
            )
        found[name] = values
    for name in columns.categories:
        found[name] = np.array(words_of(table[name]), dtype=object)
    return pd.DataFrame(found)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
