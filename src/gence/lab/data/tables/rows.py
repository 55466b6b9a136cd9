"""Labelled rows of a table: texts, numbers and categories, or features that are ready; and a source's two parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gence.lab.data.tables.columns import Columns

_SHOWN = 400  # characters of a row that a report shows


@dataclass(frozen=True, eq=False)
class RowSet:
    """Rows with one label each.

    Attributes:
        content: texts; a frame with float64 columns of numbers and object columns of words ("" where missing); or
            float32 features (n, D).
        labels: int64 (n,), each in [0, K).
        classes: the K class names, in label order.
        name: where the rows come from, such as "tickets/train".
        checksum: SHA-256 of contents, labels and class names.
    """

    content: Sequence[str] | pd.DataFrame | Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    checksum: str

    @classmethod
    def of(
        cls, content: Sequence[str] | pd.DataFrame | Tensor, labels: Tensor, classes: tuple[str, ...], name: str
    ) -> RowSet:
        """Rows with their checksum."""
        digest = hashlib.sha256(json.dumps(list(classes)).encode() + b"\n")
        digest.update(labels.contiguous().numpy().astype("<i8").tobytes())
        digest.update(content_digest(content))
        return cls(content, labels, classes, name, digest.hexdigest())

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> str:
        """One of "text", "columns" and "features"."""
        if isinstance(self.content, pd.DataFrame):
            return "columns"
        return "features" if isinstance(self.content, Tensor) else "text"

    @property
    def texts(self) -> Sequence[str]:
        """The texts of rows that are some."""
        if isinstance(self.content, pd.DataFrame | Tensor):
            raise TypeError(f"{self.name} has rows of the kind {self.kind!r}, and no texts")
        return self.content

    @property
    def num_classes(self) -> int:
        """K, the number of classes."""
        return len(self.classes)

    def counts(self) -> Tensor:
        """Rows per class: int64, (K,)."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    def subset(self, index: Tensor) -> RowSet:
        """The rows at `index`, in that order."""
        return RowSet.of(taken(self.content, index), self.labels[index], self.classes, self.name)

    def at(self, index: Tensor) -> Any:
        """The contents of some rows."""
        return taken(self.content, index)

    def shown(self, index: int) -> str:
        """One row as a text for a reader, cut: a text itself, or column after column.

        >>> RowSet.of(["Where is it?"], torch.zeros(1, dtype=torch.long), ("lost",), "t").shown(0)
        'Where is it?'
        """
        content = self.content
        if isinstance(content, pd.DataFrame):
            text = "; ".join(f"{name}: {value}" for name, value in content.iloc[index].items())
        elif isinstance(content, Tensor):
            text = f"row {index}"
        else:
            text = content[index]
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ... ({len(text):,} characters)"


def content_digest(content: Sequence[str] | pd.DataFrame | Tensor) -> bytes:
    """SHA-256 of what rows hold, labels aside."""
    digest = hashlib.sha256()
    if isinstance(content, Tensor):
        digest.update(json.dumps(list(content.shape)).encode())
        digest.update(content.contiguous().numpy().data)
    elif isinstance(content, pd.DataFrame):
        for name, column in content.items():
            digest.update(json.dumps(str(name)).encode())
            values = column.to_numpy()
            numeric = values.dtype == np.float64
            digest.update(values.tobytes() if numeric else json.dumps(values.tolist()).encode())
    else:
        digest.update(json.dumps(list(content)).encode())
    return digest.digest()


def taken(content: Any, index: Tensor) -> Any:
    """Some of the rows of a content."""
    if isinstance(content, Tensor):
        return content[index]
    if isinstance(content, pd.DataFrame):
        return content.iloc[index.numpy()].reset_index(drop=True)
    return [content[i] for i in index.tolist()]


@dataclass(frozen=True, eq=False)
class RowSplits:
    """Training and test rows of one source.

    Attributes:
        train: the training part.
        test: the test part.
        columns: which column is what; None for ready features.
        notes: what a user should know of how the source was read.
        concerns: what may be wrong with it.
    """

    train: RowSet
    test: RowSet
    columns: Columns | None
    notes: tuple[str, ...] = ()
    concerns: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in label order."""
        return self.train.classes

    @property
    def width(self) -> int | None:
        """The number of ready features; None for texts and columns."""
        content = self.train.content
        return content.shape[1] if isinstance(content, Tensor) else None

    def in_words(self) -> str:
        """What was recognised, in a sentence without its full stop."""
        if self.columns is not None:
            return self.columns.in_words()
        return f"Ready features: {self.width} per row"
