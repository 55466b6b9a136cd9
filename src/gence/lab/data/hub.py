"""Data sets of the Hugging Face hub, by the `datasets` library (extra `hub`).

The image column is the first of type Image, the label column the first of type ClassLabel; another name can be
given after "#": `hf:owner/name#fine_label`. The test part is the split "test", else "validation"; without either, a
fifth of each class is split off as for folders. A folder that `datasets.load_dataset` can read may stand in for
owner/name, for work without a network.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gence.lab.data.cache import ReadOptions
from gence.lab.data.decode import decode_all, decode_image
from gence.lab.data.folders import WHOLE
from gence.lab.data.images import DataError, ImageSet, NotAtHandError

_TEST_SPLITS = ("test", "validation", "valid", "val")


def read_hub(identifier: str, wanted: tuple[str, ...], options: ReadOptions) -> dict[str, ImageSet]:
    """The wanted splits, or {"all"} where the data set has no test part."""
    repository, _, label = identifier.partition("#")
    if not options.download:
        return _read_cached(repository, label, wanted, options)
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            "data sets of the Hugging Face hub need the library `datasets`: pip install 'gence[hub]'"
        ) from error
    try:
        parts = datasets.load_dataset(repository)
    except Exception as error:
        # The library passes on errors of a dozen others (network, parquet, fsspec ...): the cause is in the text.
        raise DataError(f"hf:{repository} cannot be loaded: {error}") from error
    test = next((split for split in _TEST_SPLITS if split in parts), None)
    if "train" in parts and test is not None:
        chosen = {split: parts[split if split == "train" else test] for split in wanted}
    elif len(parts) == 1:
        chosen = {WHOLE: next(iter(parts.values()))}
    else:
        raise DataError(f"hf:{repository} has the splits {list(parts)}; expected train and test, or only one")
    splits: dict[str, ImageSet] = {}
    for split, part in chosen.items():
        build = partial(_decode, part, repository, split, label, options)
        splits |= options.cached(f"{repository}-{split}", _identity(repository, label, part._fingerprint), build)
        if options.cache:
            note = _note_path(options, repository, label, split)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(part._fingerprint, encoding="utf-8")
    return splits


def _read_cached(repository: str, label: str, wanted: tuple[str, ...], options: ReadOptions) -> dict[str, ImageSet]:
    """What was decoded before, as the notes of fingerprints have it: the library would ask the hub for them."""

    def refuse() -> dict[str, ImageSet]:
        raise NotAtHandError(f"hf:{repository} is not in {options.folder}, and nothing may be downloaded")

    parts = (WHOLE,) if _note_path(options, repository, label, WHOLE).is_file() else wanted
    splits: dict[str, ImageSet] = {}
    for split in parts:
        note = _note_path(options, repository, label, split)
        if not note.is_file():
            refuse()
        identity = _identity(repository, label, note.read_text(encoding="utf-8"))
        splits |= options.cached(f"{repository}-{split}", identity, refuse)
    return splits


def _identity(repository: str, label: str, fingerprint: str) -> dict[str, str]:
    return {"hub": repository, "label": label, "fingerprint": fingerprint}


def _note_path(options: ReadOptions, repository: str, label: str, split: str) -> Path:
    """Where the fingerprint is kept that a part of a data set had when it was decoded last."""
    name = hashlib.sha256(json.dumps([repository, label, split]).encode()).hexdigest()[:20]
    return options.folder / "hub" / f"{name}.txt"


def row_names(part_name: str, count: int) -> list[str]:
    """How messages call the images of a part."""
    return [f"hf:{part_name} row {i}" for i in range(count)]


def _decode(part: Any, repository: str, split: str, label: str, options: ReadOptions) -> dict[str, ImageSet]:
    import datasets

    name = f"{repository}/{split}"
    image_column = _column(part, name, datasets.Image, "")
    label_column = _column(part, name, datasets.ClassLabel, label)
    raw = part.cast_column(image_column, datasets.Image(decode=False))
    positions = {row: i for i, row in enumerate(row_names(name, len(raw)))}

    def decode(row: str) -> np.ndarray:
        stored = raw[positions[row]][image_column]
        if stored is None or (stored["bytes"] is None and not stored["path"]):
            raise DataError(f"{row} has no image")
        data = stored["bytes"]
        if data is None:
            data = Path(stored["path"]).read_bytes()
        return decode_image(data, row, options.image_size, options.digests)

    pixels = decode_all(list(positions), decode, source=name, progress=name if options.progress else None)
    labels = np.asarray(part.with_format("numpy")[label_column][:], dtype=np.int64)
    return {split: ImageSet.from_arrays(pixels, labels, part.features[label_column].names, name, layout="NCHW")}


def _column(part: Any, name: str, kind: type, asked: str) -> str:
    fitting = [column for column, feature in part.features.items() if isinstance(feature, kind)]
    if asked and asked not in fitting:
        raise DataError(f"hf:{name} has no {kind.__name__} column {asked!r}; there are {fitting or 'none'}")
    if not fitting:
        raise DataError(f"hf:{name} has no {kind.__name__} column, only {list(part.features)}")
    return asked or fitting[0]
