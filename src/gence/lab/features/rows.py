"""Rows of a table as features: texts by a frozen text encoder, columns by their preprocessing, ready ones as they are.

`row_encoder` chooses by the name in a model, as ``linear@all_minilm_l6_v2``, ``linear@columns`` or ``linear@features``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gence.lab.data import DataError, RowSet, RowSplits
from gence.lab.features.columns import COLUMNS, ColumnEncoder
from gence.lab.features.embedding import FeatureSet, ImageSource, embed
from gence.lab.features.encoders import EncoderError
from gence.lab.features.texts import TEXT_ENCODER, TextEncoder, is_text_encoder, load_text_encoder

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

READY = "features"


@dataclass(frozen=True, eq=False)
class ReadyFeatures:
    """Features that somebody else computed: nothing is done to them.

    Attributes:
        width: D, the number of features.
    """

    width: int
    name = READY
    weights = READY

    def __call__(self, features: Tensor) -> Tensor:
        """The same features."""
        if features.shape[1] != self.width:
            raise DataError(f"features: rows of {self.width} features were expected, got {features.shape[1]}")
        return features

    def identity(self) -> dict[str, Any]:
        """What features depend on, beyond the rows: JSON-ready."""
        return {"encoder": self.name, "weights": self.weights, "width": self.width}


RowEncoder = TextEncoder | ColumnEncoder | ReadyFeatures
"""What turns rows into features."""

_KINDS = {"text": "texts", "columns": "columns of numbers and categories", "features": "ready features"}


def is_row_encoder(name: str) -> bool:
    """Whether an encoder's name is one of an encoder of rows, not of images."""
    return name in (READY, COLUMNS) or is_text_encoder(name)


def default_row_encoder(kind: str) -> str:
    """The name of the encoder for a kind of rows.

    >>> default_row_encoder("text"), default_row_encoder("columns"), default_row_encoder("features")
    ('all_minilm_l6_v2', 'columns', 'features')
    """
    return TEXT_ENCODER if kind == "text" else kind


def row_encoder(name: str, splits: RowSplits) -> RowEncoder:
    """The encoder of this name for these rows; one of columns is fitted on the training part.

    Raises:
        EncoderError: it is not to be had, or takes other rows.
    """
    train = splits.train
    fits = name == train.kind if train.kind != "text" else is_text_encoder(name)
    if not fits:
        usual = f"linear@{default_row_encoder(train.kind)}"
        raise EncoderError(
            f"model: the encoder {name!r} does not take {_KINDS[train.kind]}, but {train.name} has them; use {usual}"
        )
    if isinstance(train.content, Tensor):
        return ReadyFeatures(train.content.shape[1])
    if train.kind == "columns":
        assert splits.columns is not None  # a table has some
        return ColumnEncoder.fitted(train.content, splits.columns.numbers, splits.columns.categories)  # type: ignore[arg-type]
    return text_encoder(name)


@functools.lru_cache(maxsize=2)
def text_encoder(name: str) -> TextEncoder:
    """A text encoder, kept in memory; it is shared, and not to be changed."""
    return load_text_encoder(name)


def embed_rows(
    rows: RowSet,
    encoder: RowEncoder,
    *,
    cache_dir: Path | None = None,
    progress: bool = False,
    console: Console | None = None,
) -> FeatureSet:
    """Features of rows; those of texts are kept in the cache as those of images are."""
    if isinstance(encoder, TextEncoder):
        source = text_source(rows.texts, rows.name)
        return embed(source, encoder, cache_dir=cache_dir, progress=progress, console=console)
    began = time.perf_counter()
    found = encoder(rows.content)  # type: ignore[arg-type]
    seconds = time.perf_counter() - began if isinstance(encoder, ColumnEncoder) else 0.0
    return FeatureSet({"plain": found}, {**encoder.identity(), "data": rows.checksum}, seconds, 0)


def text_source(texts: Sequence[str], name: str) -> ImageSource:
    """Texts as what `embed` reads."""
    digest = hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
    return ImageSource(name, digest, len(texts), lambda start, stop: texts[start:stop], "texts")


def saved_encoder(identity: dict[str, Any]) -> RowEncoder:
    """The encoder that a model's file names, with what was fitted.

    Raises:
        EncoderError: its weights are not to be had here, or are not those that the head was trained on.
    """
    name = identity["encoder"]
    if name == READY:
        return ReadyFeatures(int(identity["width"]))
    found: RowEncoder = ColumnEncoder.from_dict(identity) if name == COLUMNS else text_encoder(name)
    if found.weights != identity["weights"]:
        raise EncoderError(
            f"the head was trained on features of {name} with weights {identity['weights'][:16]}..., but the weights "
            f"found now are {found.weights[:16]}...; get the same model"
        )
    return found


def new_features(encoder: RowEncoder, content: Sequence[str] | pd.DataFrame | Tensor) -> Tensor:
    """Features of rows that are seen once, such as those to predict: nothing is kept on disk."""
    if isinstance(encoder, TextEncoder):
        return embed(text_source(content, "texts"), encoder, cache=False).rows()  # type: ignore[arg-type]
    return encoder(content)  # type: ignore[arg-type]
