"""The most confident mistakes of each loss, as small pictures or rows from the data set itself."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gence.lab.data import DataError, ImageSet, RowSet, is_table, load, load_rows
from gence.lab.report.figures import printable
from gence.lab.report.frame import Predictions, SettingRecords
from gence.lab.store import Record, Store, changed_parts

SHOWN = 8
_SIDE = 64
_NAME_LENGTH = 60


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One test sample that a loss got wrong with confidence.

    Attributes:
        png: the image, as base64; None for a row of a table.
        text: the row as a text, cut and without control characters; None for an image.
        true: the class on its label.
        predicted: the class it was taken for.
        confidence: the largest over the seeds that got it wrong.
        seeds: how many seeds got it wrong.
    """

    png: str | None
    text: str | None = None
    true: str
    predicted: str
    confidence: float
    seeds: int


def images_at_hand(record: Record, cache_dir: Path | None = None) -> ImageSet | RowSet | None:
    """Return the test images, or rows, of a run; None where they are not available, or have changed.

    Nothing is downloaded, whatever a record names as its data.
    """
    spec = record.spec
    try:
        if is_table(spec.data):
            rows = load_rows(spec.data, download=False).test
            return None if changed_parts(record.result.data, {"test": rows.checksum}) else rows
        splits = load(spec.data, image_size=spec.image_size, cache_dir=cache_dir, download=False)
    except (DataError, OSError):
        return None
    return None if changed_parts(record.result.data, {"test": splits.test.checksum}) else splits.test


def read_predictions(store: Store, gathered: SettingRecords) -> Predictions:
    """Return what a setting's runs predicted, as far as the store keeps it."""
    found = {
        loss: [p for record in gathered.records[loss] if (p := store.predictions(record)) is not None]
        for loss in gathered.losses
    }
    return {loss: runs for loss, runs in found.items() if runs}


def short_name(name: str) -> str:
    """Return a class's name for a page: without control characters, and cut where nobody would read on.

    >>> len(short_name("x" * 10_000)), short_name("card arrival")
    (61, 'card arrival')
    """
    shown = printable(name)
    return shown if len(shown) <= _NAME_LENGTH else f"{shown[:_NAME_LENGTH]}…"


def confident_mistakes(predictions: Predictions, images: ImageSet | RowSet) -> dict[str, list[Mistake]]:
    """Return the most confident mistakes of each loss, each sample once."""
    found = {}
    for loss, runs in predictions.items():
        worst = _worst(runs)
        if runs:
            found[loss] = [
                Mistake(
                    png=thumbnail(images, index) if isinstance(images, ImageSet) else None,
                    text=printable(images.shown(index)) if isinstance(images, RowSet) else None,
                    true=short_name(images.classes[true]),
                    predicted=short_name(images.classes[predicted]),
                    confidence=confidence,
                    seeds=seeds,
                )
                for index, true, predicted, confidence, seeds in worst
                # A store may outlive the data it was made from.
                if index < len(images) and max(true, predicted) < images.num_classes
            ]
    return found


def thumbnail(images: ImageSet, index: int) -> str:
    """Return one image as a base64 PNG, small ones enlarged without smoothing."""
    from PIL import Image

    pixels = images.images[index].permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))
    if max(picture.size) > _SIDE:
        picture.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def _worst(runs: Sequence[Mapping[str, np.ndarray]]) -> list[tuple[int, int, int, float, int]]:
    """Return (index, true, predicted, confidence, seeds) of the most confident mistakes over runs."""
    best: dict[int, tuple[float, int, int]] = {}
    times: dict[int, int] = {}
    for run in runs:
        wrong = np.flatnonzero(run["label"] != run["predicted"])
        for row in wrong:
            index = int(run["index"][row])
            times[index] = times.get(index, 0) + 1
            entry = (float(run["confidence"][row]), int(run["label"][row]), int(run["predicted"][row]))
            best[index] = max(best.get(index, entry), entry)
    order = sorted(best, key=lambda index: (-best[index][0], index))[:SHOWN]
    return [(i, best[i][1], best[i][2], best[i][0], times[i]) for i in order]
