"""Numbers and categories of a table as features: fitted by scikit-learn on training rows, kept as plain numbers.

Numbers: the median where a cell is missing, then centred and divided by their standard deviation. Categories: one
column of 0 and 1 each; a missing cell is a category of its own where training rows have some, a category that
training rows do not have is all zeros, and of more than `MOST_CATEGORIES` the rare ones share a column. What was fitted
is a few lists of numbers and texts: it travels inside a model's file, and reading it runs no code.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gence.lab.spec import canonical_json

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = "columns"
MOST_CATEGORIES = 50


@dataclass(frozen=True, eq=False)
class ColumnEncoder:
    """What turns the columns of a table into features.

    Attributes:
        numbers: per column its name, and what fills a missing cell, is subtracted, and divides.
        categories: per column its name, the place of each category that was seen, and how many places there are.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": [20.0, 40.0, float("nan")], "port": ["S", "C", "S"]})
    >>> encoder = ColumnEncoder.fitted(table, ["age"], ["port"])
    >>> encoder(pd.DataFrame({"age": [40.0], "port": ["S"]}))
    tensor([[1.2247, 0.0000, 1.0000]])
    """

    numbers: tuple[tuple[str, float, float, float], ...]
    categories: tuple[tuple[str, dict[str, int], int], ...]

    name = COLUMNS

    @classmethod
    def fitted(cls, table: pd.DataFrame, numbers: Any, categories: Any) -> ColumnEncoder:
        """Fit on training rows: float64 columns of numbers, and columns of words."""
        made = transformer(list(numbers), list(categories)).fit(table)
        of_numbers, of_categories = [], []
        if numbers:
            steps = made.named_transformers_["numbers"].named_steps
            values = (steps["imputer"].statistics_, steps["scaler"].mean_, steps["scaler"].scale_)
            of_numbers = [
                (name, *(float(value[i]) for value in values)) for i, name in enumerate(numbers)
            ]  # fmt: skip
        if categories:
            encoder = made.named_transformers_["categories"]
            for i, name in enumerate(categories):
                seen, rare = list(encoder.categories_[i]), encoder.infrequent_categories_[i]
                kept = [word for word in seen if rare is None or word not in set(rare)]
                place = {str(word): at for at, word in enumerate(kept)}
                place |= {} if rare is None else {str(word): len(kept) for word in rare}
                of_categories.append((str(name), place, len(kept) + (rare is not None)))
        return cls(tuple(of_numbers), tuple(of_categories))

    def __call__(self, table: pd.DataFrame) -> Tensor:
        """Float32 features (n, D)."""
        parts: list[np.ndarray] = []
        for name, fill, mean, scale in self.numbers:
            values = table[name].to_numpy(dtype=np.float64)
            parts.append(((np.where(np.isnan(values), fill, values) - mean) / scale)[:, None])
        for name, places, width in self.categories:
            hot = np.zeros((len(table), width))
            at = np.array([places.get(word, -1) for word in table[name].tolist()], dtype=np.int64)
            rows = np.flatnonzero(at >= 0)
            hot[rows, at[rows]] = 1.0
            parts.append(hot)
        return torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32))

    @property
    def width(self) -> int:
        """D, the number of features."""
        return len(self.numbers) + sum(width for *_, width in self.categories)

    @property
    def weights(self) -> str:
        """SHA-256 of what was fitted."""
        return hashlib.sha256(canonical_json(self.to_dict()).encode()).hexdigest()

    def identity(self) -> dict[str, Any]:
        """What features depend on, beyond the rows: JSON-ready, and all that `from_dict` needs."""
        return {"encoder": self.name, "weights": self.weights, **self.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        """What was fitted, JSON-ready."""
        return {"numbers": [list(one) for one in self.numbers], "categories": [list(one) for one in self.categories]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ColumnEncoder:
        """Read what `to_dict` returned."""
        return cls(
            tuple((str(name), float(fill), float(mean), float(scale)) for name, fill, mean, scale in values["numbers"]),
            tuple(
                (str(name), {str(word): int(at) for word, at in places.items()}, int(width))
                for name, places, width in values["categories"]
            ),
        )


def transformer(numbers: list[str], categories: list[str]) -> Any:
    """The same preprocessing as a scikit-learn transformer, not fitted."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    scaled = Pipeline(
        [("imputer", SimpleImputer(strategy="median", keep_empty_features=True)), ("scaler", StandardScaler())]
    )
    hot = OneHotEncoder(handle_unknown="ignore", max_categories=MOST_CATEGORIES, sparse_output=False)
    return ColumnTransformer([("numbers", scaled, numbers), ("categories", hot, categories)])
