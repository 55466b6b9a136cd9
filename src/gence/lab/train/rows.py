"""Heads on the rows of a table in use: read one back, evaluate it on labelled rows, predict new ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gence.lab.data import (
    Columns,
    DataError,
    RowSet,
    TableAddress,
    judged_rows,
    load_ood_rows,
    load_rows,
    read_new_rows,
    same_source,
)
from gence.lab.features import EncoderError, Head, RowEncoder, new_features, saved_encoder
from gence.lab.spec import RunSpec, check_ood_names, ood_name
from gence.lab.train.checkpoint import read_tensors
from gence.lab.train.evaluate import score
from gence.lab.train.frozen import read_head
from gence.lab.train.predict import write_probabilities

_CHUNK = 1000  # rows predicted at a time


@dataclass(frozen=True, eq=False)
class RowModel:
    """A head on rows with all that prediction needs.

    Attributes:
        encoder: what turns rows into features, as it was fitted.
        head: the trained head.
        spec: the run that trained it.
        classes: class names in the order of the logits.
        columns: which column of a table is what; None for ready features.
        offset: the class offsets (K,) that put the marginal of its training logits back, or None.
        data: checksums of the rows it was trained and judged on.
    """

    encoder: RowEncoder
    head: Head
    spec: RunSpec
    classes: tuple[str, ...]
    columns: Columns | None
    offset: Tensor | None
    data: dict[str, str]

    def logits(self, content: Any) -> Tensor:
        """Float32 logits (n, K) of rows: texts, a frame of the training columns, or features (n, D)."""
        return self.head.logits(new_features(self.encoder, content))

    def probabilities(self, content: Any, *, offset: bool = False) -> Tensor:
        """Softmax of the logits, (n, K); with ``offset``, of the logits plus the class offsets."""
        logits = self.logits(content)
        return (logits + self.required_offset() if offset else logits).softmax(1)

    def required_offset(self) -> Tensor:
        """The class offsets, or an error where there are none."""
        if self.offset is None:
            raise ValueError(
                "this model has no offset: its training predictions were too sharp for one; predict without --offset"
            )
        return self.offset


def is_row_model(path: str | Path) -> bool:
    """Whether a file is a head on rows that ``gence train --save`` wrote; whoever reads it says what is wrong."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(Path(path).expanduser()), "pt") as file:
            return "rows" in (file.metadata() or {})
    except (SafetensorError, OSError, UnicodeDecodeError):
        return False


def load_row_model(path: str | Path) -> RowModel:
    """Read a head on rows that ``gence train --save`` wrote; nothing in the file is run.

    Raises:
        ValueError: the file is not one, or is damaged.
        EncoderError: the text encoder is not to be had here, or has other weights.
    """
    tensors, notes = read_tensors(Path(path).expanduser())
    try:
        spec = RunSpec.from_json(notes["spec"])
        classes = tuple(json.loads(notes["classes"]))
        read: dict[str, Any] | None = json.loads(notes["columns"])
        encoder = saved_encoder(json.loads(notes["encoder"]))
        head, offset = read_head(tensors, notes), tensors.get("offset")
        columns = None
        if read is not None:
            plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in read.items()}
            columns = Columns(**plain)
        offset = None if offset is None else offset.reshape(len(classes))
    except EncoderError:  # which says what to do
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{path} is damaged, or was not written by gence train --save ({type(error).__name__}: {error}); get the "
            "file again, or train the model anew"
        ) from error
    return RowModel(encoder, head, spec, classes, columns, offset, json.loads(notes["data"]))


def rows_to_judge(model: RowModel, data: str | None = None) -> RowSet:
    """The rows that a model may be judged on: the test part of its data, or a new source's test part or all of it.

    Raises:
        DataError: the source cannot be read; or it has changed since training, and has no test part of its own.
    """
    own = TableAddress.parse(model.spec.data)
    if data is not None and not same_source(TableAddress.parse(data).path, own.path):
        return judged_rows(data, model.columns, model.classes, model.data.get("train"))
    splits = load_rows(model.spec.data, download=data is not None)
    changed = splits.train.checksum != model.data["train"] and splits.test.checksum != model.data["test"]
    if changed and any("no test part" in note for note in splits.notes):
        raise DataError(
            f"{own.path} has changed since the model was trained, and rows that are split off for testing may have "
            "been trained on; train again, or name a file of new rows with --data"
        )
    if splits.test.classes != model.classes:
        raise DataError(f"{own.path} has other classes than the model; train again, or name another file with --data")
    return splits.test


def evaluate_row_model(model: RowModel, rows: RowSet, ood: Sequence[str] = ()) -> dict[str, float]:
    """Metrics of a head on rows, raw and, under "offset/...", after the class offsets.

    Args:
        model: the head.
        rows: what `rows_to_judge` returned.
        ood: tables of out-of-distribution rows, with the columns of the training data.
    """
    check_ood_names(ood)
    logits, width = model.logits(rows.content), model.encoder.width
    outside = {ood_name(name): model.logits(load_ood_rows(name, model.columns, width).content) for name in ood}
    metrics = score(logits, rows.labels, outside)
    if model.offset is not None:
        shifted = {name: values + model.offset for name, values in outside.items()}
        found = score(logits + model.offset, rows.labels, shifted)
        metrics |= {f"offset/{name}": value for name, value in found.items()}
    return metrics


def write_row_predictions(model: RowModel, source: str | Path, out: Path, *, offset: bool = False) -> int:
    """Write a CSV with a line per row of a table: its number from 1, predicted class, and probabilities.

    Returns:
        The number of rows.
    """
    rows = read_new_rows(source, model.columns, model.encoder.width)
    count = len(rows)

    def predicted() -> Any:
        for start in range(0, count, _CHUNK):
            some = torch.arange(start, min(start + _CHUNK, count))
            yield [str(row + 1) for row in some.tolist()], model.probabilities(rows.at(some), offset=offset)

    return write_probabilities(out, "row", model.classes, predicted())
