"""Rows out of tables: a source's training and test part, rows of no class, new rows, and rows a model is judged on."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gence.lab.data.download import hub_tables
from gence.lab.data.errors import DataError
from gence.lab.data.names import HUB_PREFIX
from gence.lab.data.subsets import SPLIT_SEED, TEST_FRACTION, holdout
from gence.lab.data.tables.address import TableAddress
from gence.lab.data.tables.columns import Columns, content_of, find_columns, labels_of
from gence.lab.data.tables.files import Part, read_files
from gence.lab.data.tables.rows import RowSet, RowSplits, taken


def load_rows(source: str | Path, *, download: bool = True) -> RowSplits:
    """Training and test rows of a source; without a test part a fifth of each class is split off, always the same.

    Args:
        source: see `TableAddress`.
        download: False to read only what is on this machine already.

    Raises:
        DataError: the source cannot be read, or not without doubt about what is in it.
        NotAtHandError: it would have to be downloaded, and `download` is False.
    """
    address = TableAddress.parse(source)
    if address.path.startswith(HUB_PREFIX):
        kept = hub_tables(address.path.removeprefix(HUB_PREFIX), download=download)
        return _loaded(str(source), _state(next(iter(kept.values())).parent))
    return _loaded(str(source), _state(Path(address.path).expanduser()))


def _state(path: Path) -> tuple[Any, ...]:
    """What tells one state of a source from another: names, sizes and times of its files."""
    while not path.exists() and path != path.parent:
        path = path.parent
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return tuple((str(file), status.st_size, status.st_mtime_ns) for file in files if (status := file.stat()))


@functools.lru_cache(maxsize=4)
def _loaded(source: str, state: tuple[Any, ...]) -> RowSplits:
    del state  # part of the key: a file that has changed is read again
    return read_rows(source)


def read_rows(source: str) -> RowSplits:
    """What `load_rows` returns, read again."""
    address = TableAddress.parse(source)
    notes: list[str] = []
    path = Path(address.path).expanduser()
    title = path.stem
    parts = read_files(path, notes)
    if "val" in parts:
        notes.append(
            f"{address.path}: the part val is not used; heads are tuned by cross-validation on the training part"
        )
    where = address.path if "train" not in parts else f"{address.path} (train)"
    first = parts.get("train", parts.get("all"))
    if first is None:
        raise DataError(f"{address.path} has no training part")
    columns: Columns | None = None
    if isinstance(first, Mapping):
        first, parts = _arrays_of(first, parts, address)
    else:
        columns = find_columns(address, first, where)
    read = {
        part: _labelled(table, columns, address, f"{address.path} ({part})" if part != "all" else address.path)
        for part, table in parts.items()
        if part in ("train", "test", "all")
    }
    names = _class_names(read["train"][1] if "train" in read else read["all"][1])
    if len(names) < 2:
        raise DataError(f"{where} has one class, {names[0]!r}; classification needs at least two")
    if "test" in read:
        problem = unseen_classes(read["test"][1], names, where)
        if problem:
            raise DataError(problem)
    numbers = {name: k for k, name in enumerate(names)}
    made = {
        part: RowSet.of(content, torch.tensor([numbers[label] for label in labels]), names, f"{title}/{part}")
        for part, (content, labels) in read.items()
    }
    if "test" in made:
        train, test = made.get("train", made.get("all")), made["test"]
        assert train is not None  # one of the two was read
        train = replace(train, name=f"{title}/train")
    else:
        whole = made.get("all", made.get("train"))
        assert whole is not None
        alone = lone_classes(read["all" if "all" in read else "train"][1], where)
        if alone:
            raise DataError(alone[0])
        kept, held = holdout(whole.labels, TEST_FRACTION, SPLIT_SEED, len(names), classes=names)
        train, test = (
            replace(whole.subset(kept), name=f"{title}/train"),
            replace(whole.subset(held), name=f"{title}/test"),
        )
        notes.append(f"{address.path} has no test part: {len(test)} of {len(whole)} rows, a fifth of each class, test")
    empty = sum(not text for part in (train, test) if part.kind == "text" for text in part.texts)
    concerns = (f"{empty} texts are empty: what is predicted for them says nothing.",) if empty else ()
    return RowSplits(train, test, columns, tuple(notes), concerns)


def _arrays_of(
    first: Mapping[str, np.ndarray], parts: Mapping[str, Part], address: TableAddress
) -> tuple[Mapping[str, np.ndarray], dict[str, Part]]:
    """The parts of .npz files: X_test and y_test of one file are its test part."""
    if address.text is not None or address.features or address.label is not None:
        raise DataError(f"{address.path} holds arrays and no columns; remove --text, --label and --features")
    found = dict(parts)
    if "test" not in found and "X_test" in first:
        found["test"] = _test_arrays(first)
        found["train"] = found.pop("all", first)
    return first, found


def _test_arrays(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """The test part of one .npz file; all of a file that has none."""
    if "X_test" not in arrays:
        return arrays
    return {"X": arrays["X_test"], **({"y": arrays["y_test"]} if "y_test" in arrays else {})}


def _labelled(table: Part, columns: Columns | None, address: TableAddress, where: str) -> tuple[Any, list[str]]:
    """Contents and labels of one part; the label that stands for no class is skipped."""
    if columns is None:
        if not isinstance(table, Mapping):
            raise DataError(f"{where} is a table, and the other part is .npz; use the same format for both")
        content: Any = features_of(table, where)
        if "y" not in table:
            raise DataError(f"{where} has the arrays {', '.join(table)}; expected X and y (and X_test, y_test)")
        y = table["y"]
        if y.shape != (len(content),):
            raise DataError(f"{where}: y has the shape {y.shape}; expected ({len(content)},), one label per row of X")
        labels = labels_of(pd.Series(y))
    else:
        if not isinstance(table, pd.DataFrame):
            raise DataError(f"{where} is .npz, and the other part a table; use the same format for both")
        content = content_of(table, columns, where)
        if columns.label not in table.columns:
            raise DataError(f"{where} has no column {columns.label!r}, which holds the labels in the training part")
        labels = labels_of(table[columns.label])
    problem = missing_labels(labels, where)
    if problem:
        raise DataError(problem)
    if address.without is not None:
        keep = [row for row, label in enumerate(labels) if label != address.without]
        if not keep:
            raise DataError(f"ood-label: every row of {where} has the label {address.without!r}")
        content, labels = taken(content, torch.tensor(keep)), [labels[row] for row in keep]
    return content, labels


def missing_labels(labels: Sequence[str], where: str) -> str | None:
    """What is wrong where rows have no label; None where all have one."""
    missing = [row for row, label in enumerate(labels) if not label]
    if not missing:
        return None
    many = f"{len(missing)} rows have" if len(missing) > 1 else "a row has"
    return f"{where}: {many} no label, first row {missing[0] + 1}; fill it in, or remove the rows"


def lone_classes(labels: Sequence[str], where: str) -> list[str]:
    """What is wrong with each class of which no row can be split off."""
    return [
        f"{where}: class {name[:80]!r} has one row; to split off a test part it needs two. Add a row, remove the "
        "class, or name train and test files"
        for name, count in sorted(Counter(labels).items())
        if name and count < 2
    ]


def features_of(arrays: Mapping[str, np.ndarray], where: str) -> Tensor:
    """Float32 features (n, D) of the array X."""
    if "X" not in arrays:
        raise DataError(f"{where} has the arrays {', '.join(arrays) or 'none'}; expected X and y (and X_test, y_test)")
    x = arrays["X"]
    if x.ndim != 2 or x.dtype.kind not in "fiub" or 0 in x.shape:
        raise DataError(f"{where}: X is {x.dtype} of shape {x.shape}; expected numbers of shape (rows, features)")
    found = x.astype(np.float32, copy=False)
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        raise DataError(
            f"{where}: row {row} of X holds NaN, infinite or too large numbers (rows count from 0); fill or remove it"
        )
    return torch.from_numpy(np.ascontiguousarray(found))


def _class_names(labels: Sequence[str]) -> tuple[str, ...]:
    """The classes in order: whole numbers by their size, everything else as texts."""
    found = sorted(set(labels))
    if all(name.lstrip("-").isdecimal() and name.isascii() for name in found):
        found.sort(key=lambda name: (int(name), name))
    return tuple(found)


def unseen_classes(labels: Sequence[str], names: Sequence[str], where: str) -> str | None:
    """What is wrong where test rows have classes that training rows do not have; None where there are none."""
    known = set(names)
    alien = Counter(label for label in labels if label not in known)
    if not alien:
        return None
    name, count = alien.most_common(1)[0]
    return (
        f"{where}: {len(alien)} classes of the test part are not in the training part, such as {name!r} "
        f"({count} rows); add training rows, remove them, or set them apart with --ood-label"
    )


def load_ood_rows(source: str | Path, columns: Columns | None, width: int | None = None) -> RowSet:
    """Rows of no class: all rows of a source with the columns of the training data; labels are not needed.

    Args:
        source: a table; of one with parts the test part, or all where there is one part or a label is asked for.
        columns: those of the training data; None for ready features.
        width: the number of ready features.
    """
    address = TableAddress.parse(source)
    where = address.path
    parts = read_files(Path(where).expanduser(), [])
    if address.only is not None:
        wanted = [parts[part] for part in parts if part != "val"]
    else:
        wanted = [parts.get("test", next(iter(parts.values())))]
    contents, count = [], 0
    for table in wanted:
        if isinstance(table, Mapping) and address.only is None:
            table = _test_arrays(table)
        content: Any = new_rows(table, columns, where)
        if address.only is not None:
            labels = _plain_labels(table, columns)
            keep = [row for row, label in enumerate(labels) if label == address.only]
            content = taken(content, torch.tensor(keep, dtype=torch.long))
            count += len(keep)
            if not keep:
                continue
        contents.append(content)
    if address.only is not None and not count:
        raise DataError(f"ood-label: no row of {where} has the label {address.only!r}")
    if isinstance(contents[0], Tensor):
        whole: Any = torch.cat(contents)
    elif isinstance(contents[0], pd.DataFrame):
        whole = pd.concat(contents, ignore_index=True)
    else:
        whole = [text for content in contents for text in content]
    _check_width(whole, width, where)
    return RowSet.of(whole, torch.zeros(len(whole), dtype=torch.long), ("unlabelled",), f"{Path(where).stem}/ood")


def read_new_rows(source: str | Path, columns: Columns | None, width: int | None = None) -> RowSet:
    """Rows to predict: all rows of one file, of which no label is read."""
    path = Path(TableAddress.parse(source).path).expanduser()
    parts = read_files(path, [])
    if len(parts) > 1:
        raise DataError(f"{path} has the parts {', '.join(parts)}; name the file with the rows to predict")
    content = new_rows(next(iter(parts.values())), columns, str(path))
    _check_width(content, width, str(path))
    return RowSet.of(content, torch.zeros(len(content), dtype=torch.long), ("unlabelled",), path.stem)


def judged_rows(source: str, columns: Columns | None, classes: Sequence[str], trained_on: str | None) -> RowSet:
    """Labelled rows that a model may be judged on: a source's test part, or all of one that has none.

    Args:
        source: a table with the columns of the training data.
        columns: those columns; None for ready features.
        classes: the model's classes; rows of others are an error.
        trained_on: checksum of the rows that the model was trained on: of these a copy is judged on its test part.
    """
    address = TableAddress.parse(source)
    where = address.path
    if columns is not None and address.label is not None:
        columns = replace(columns, label=address.label)
    elif columns is not None:
        text = columns.text
        features = () if text is not None else columns.used
        address = replace(address, label=columns.label, text=text, features=features)
    try:
        splits = load_rows(str(address))
        if splits.train.checksum == trained_on:
            return splits.test
    except DataError:  # too few rows to be split, and so to have been trained on
        pass
    parts = read_files(Path(where).expanduser(), [])
    whole = parts.get("all")
    table = parts.get("test", whole if whole is not None else next(iter(parts.values())))
    if isinstance(table, Mapping):
        table = _test_arrays(table)
    content, labels = _labelled(table, columns, address, where)
    numbers = {name: k for k, name in enumerate(classes)}
    alien = sorted({label for label in labels if label not in numbers})
    if alien:
        raise DataError(
            f"{where} has the class {alien[0]!r} ({len(alien)} such), which the model does not know; remove its rows"
        )
    numbered = torch.tensor([numbers[label] for label in labels])
    return RowSet.of(content, numbered, tuple(classes), f"{Path(where).stem}/test")


def new_rows(table: Part, columns: Columns | None, where: str) -> list[str] | pd.DataFrame | Tensor:
    """The contents of rows without labels, read as a training part's columns are."""
    if columns is None:
        if not isinstance(table, Mapping):
            raise DataError(f"{where} is a table; expected .npz with the array X, as the training data")
        return features_of(table, where)
    if isinstance(table, Mapping):
        raise DataError(f"{where} is .npz; expected a table with the columns {', '.join(columns.used[:8])}")
    return content_of(table, columns, where)


def _check_width(content: Any, width: int | None, where: str) -> None:
    if isinstance(content, Tensor) and width is not None and content.shape[1] != width:
        raise DataError(f"{where}: X has {content.shape[1]} features; expected {width}, as in training")


def _plain_labels(table: Part, columns: Columns | None) -> list[str]:
    if isinstance(table, Mapping):
        return labels_of(pd.Series(table["y"])) if "y" in table else []
    return labels_of(table[columns.label]) if columns is not None and columns.label in table.columns else []
