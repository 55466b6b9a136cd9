"""Heads on the rows of a table in use: read one back, evaluate it on labelled rows, predict new ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gence.calibrate import Calibrator
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
from gence.lab.train.checkpoint import read_calibrator, read_tensors
from gence.lab.train.evaluate import Detected, FeatureDetectors, score_saved
from gence.lab.train.frozen import read_detectors, read_head
from gence.lab.train.saved.network import adjusted, damaged, finite
from gence.lab.train.saved.predict import write_probabilities

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
        calibrator: what makes its probabilities better, or None.
        detectors: fitted on the features it was trained on, or None where the file has none.
    """

    encoder: RowEncoder
    head: Head
    spec: RunSpec
    classes: tuple[str, ...]
    columns: Columns | None
    offset: Tensor | None
    data: dict[str, str]
    calibrator: Calibrator | None = None
    detectors: FeatureDetectors | None = None

    def logits(self, content: Any) -> Tensor:
        """Float32 logits (n, K) of rows: texts, a frame of the training columns, or features (n, D)."""
        return self.head.logits(new_features(self.encoder, content))

    def probabilities(self, content: Any, *, offset: bool = False, calibrated: bool = False) -> Tensor:
        """Softmax (n, K) of the logits; with ``offset``, of the logits plus the class offsets; or calibrated."""
        return adjusted(self, finite(self.logits(content)), offset, calibrated).softmax(1)


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
    from safetensors import SafetensorError

    try:
        tensors, notes = read_tensors(Path(path).expanduser())
        spec = RunSpec.from_json(notes["spec"])
        classes = tuple(json.loads(notes["classes"]))
        if not all(isinstance(name, str) for name in classes):
            raise TypeError("class names are not texts")
        read: dict[str, Any] | None = json.loads(notes["columns"])
        encoder = saved_encoder(json.loads(notes["encoder"]))
        head, offset = read_head(tensors, notes), tensors.get("offset")
        shape = tuple(head.logits(torch.zeros(1, encoder.width)).shape)  # tried, as notes and tensors may not agree
        if shape != (1, len(classes)):
            raise ValueError(f"its head gives logits of shape {shape} for {len(classes)} classes")
        calibrator, columns = read_calibrator(tensors, notes), None
        if read is not None:
            plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in read.items()}
            columns = Columns(**plain)
        offset = None if offset is None else offset.reshape(len(classes))
        data: dict[str, str] = json.loads(notes["data"])
        detectors = read_detectors(tensors)
    except EncoderError:  # which says what to do
        raise
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise damaged(path, error) from error
    return RowModel(encoder, head, spec, classes, columns, offset, data, calibrator, detectors)


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
    """Metrics of a head on rows: raw, "offset/..." with its class offsets, "calibrated/..." with its temperature.

    Args:
        model: the head.
        rows: what `rows_to_judge` returned.
        ood: tables of out-of-distribution rows, with the columns of the training data.
    """
    check_ood_names(ood)
    features = new_features(model.encoder, rows.content)
    logits, far = model.head.logits(features), {}
    for name in ood:
        found = new_features(model.encoder, load_ood_rows(name, model.columns, model.encoder.width).content)
        far[ood_name(name)] = found, model.head.logits(found)
    detected: Detected = {}
    if model.detectors is not None and far:
        detected = model.detectors.detected(features, {name: one for name, (one, _) in far.items()})
        detected = model.detectors.with_vim(detected, model.head, (features, logits), far)
    outside = {name: values for name, (_, values) in far.items()}
    return score_saved(
        logits, rows.labels, outside, offset=model.offset, calibrator=model.calibrator, detected=detected
    )  # fmt: skip


def write_row_predictions(
    model: RowModel, source: str | Path, out: Path, *, offset: bool = False, calibrated: bool = False
) -> int:
    """Write a CSV with a line per row of a table: its number from 1, predicted class, and probabilities.

    Returns:
        The number of rows.
    """
    rows = read_new_rows(source, model.columns, model.encoder.width)
    count = len(rows)

    def predicted() -> Any:
        for start in range(0, count, _CHUNK):
            some = torch.arange(start, min(start + _CHUNK, count))
            found = model.probabilities(rows.at(some), offset=offset, calibrated=calibrated)
            yield [str(row + 1) for row in some.tolist()], found

    return write_probabilities(out, "row", model.classes, predicted())
