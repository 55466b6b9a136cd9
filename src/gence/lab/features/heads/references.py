"""References that are no loss: what scikit-learn makes of the same features, chosen on the same folds.

Their outputs are logits too: the logarithms of their probabilities, so that everything that judges a network judges
them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gence.lab.features.heads.problem import HeadProblem

REFERENCES = ("logistic", "centroid", "knn")
"""logistic: logistic regression (L-BFGS), L2 strength by cross-validation; centroid: nearest class mean, with logits
that fall with the squared distance, in units of the training rows' own; knn: k nearest neighbours by cosine, k by
cross-validation."""

STRENGTHS = tuple(float(f"{10**e:.4g}") for e in np.linspace(-1, 5, 13))
"""C of scikit-learn's logistic regression, for features whose root mean square norm is 1."""

NEIGHBOURS = (1, 3, 5, 10, 20)

BOOSTING = "boosting"
"""The reference for tables: scikit-learn's gradient-boosted trees with their own settings."""

_MOST_WORK = 250_000_000  # rows x features x classes, beyond which choosing C takes many minutes
_MOST_ROWS = 20_000  # beyond which distances between all rows do
_MOST_TREES = 500_000  # rows x classes


def affordable_references(problem: HeadProblem, kind: str) -> tuple[str, ...]:
    """The references for the rows of a table that take no longer than its heads: the others are left out.

    Args:
        problem: the training rows.
        kind: "text", "columns" or "features".
    """
    n, K = len(problem), problem.num_classes
    found = ["centroid"]
    if n * problem.width * K <= _MOST_WORK:
        found.insert(0, "logistic")
    if n <= _MOST_ROWS:
        found.append("knn")
    if kind == "columns" and n * K <= _MOST_TREES:
        found.append(BOOSTING)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Reference:
    """A fitted reference.

    Attributes:
        name: one of `REFERENCES`.
        chosen: what cross-validation chose, by name; empty where nothing is chosen.
        logits: features (m, D), as the encoder gives them, -> float32 (m, K).
        wall_s: seconds to choose and fit.
    """

    name: str
    chosen: dict[str, float]
    logits: Callable[[Tensor], Tensor]
    wall_s: float


def fit_references(problem: HeadProblem, fold_of: Tensor, names: Sequence[str] = REFERENCES) -> list[Reference]:
    """Fit references on a problem's rows; `fold_of` (n,) is what `stratified_folds` gives."""
    every = torch.arange(len(problem))
    rows, labels = problem.scaling(problem.rows(every)).double(), problem.labels.numpy()
    # Logistic regression with an L2 penalty stays in the rows' span: fewer dimensions, the same classifier.
    basis = torch.linalg.qr(rows.mT)[0] if len(rows) < rows.shape[1] else None
    small = (rows if basis is None else rows @ basis).numpy()
    folds = [((fold_of != fold).numpy(), (fold_of == fold).numpy()) for fold in range(int(fold_of.max()) + 1)]
    found = []
    for name, values, make in (
        ("logistic", STRENGTHS, _logistic),
        ("centroid", (), _centroid),
        ("knn", tuple(k for k in NEIGHBOURS if k <= min(int(kept.sum()) for kept, _ in folds)), _knn),
        (BOOSTING, (), _boosting),
    ):
        if name not in names:
            continue
        began = time.perf_counter()
        x = small if name == "logistic" else rows.numpy()
        right = [
            sum(int((make(value).fit(x[kept], labels[kept]).predict(x[held]) == labels[held]).sum())
                for kept, held in folds)
            for value in values
        ]  # fmt: skip
        best = values[int(np.argmax(right))] if values else None
        model = make(best).fit(x, labels)
        turn = basis if name == "logistic" else None
        chosen = {} if best is None else {"C" if name == "logistic" else "k": float(best)}
        found.append(
            Reference(name, chosen, _as_logits(model, problem, turn, int(best or 0)), time.perf_counter() - began)
        )
    return found


def _as_logits(model: Any, problem: HeadProblem, basis: Tensor | None, neighbours: int) -> Callable[[Tensor], Tensor]:
    scaling, K = problem.scaling, problem.num_classes
    spread = 1.0
    if hasattr(model, "centroids_"):
        rows = scaling(problem.rows(torch.arange(len(problem)))).double()
        nearest = torch.cdist(rows, torch.as_tensor(model.centroids_)).min(1).values
        spread = max(float(nearest.square().mean()), 1e-12)

    def logits(features: Tensor) -> Tensor:
        rows = scaling(features).double()
        found = torch.full((len(rows), K), -30.0)  # for classes that training has none of
        there = torch.as_tensor(model.classes_)
        if hasattr(model, "centroids_"):
            # Its own probabilities divide by the spread of each feature, and may name another class than it does.
            distances = torch.cdist(rows, torch.as_tensor(model.centroids_)).square()
            found[:, there] = (-distances / (2 * spread)).log_softmax(1).float()
            return found
        p = model.predict_proba((rows if basis is None else rows @ basis).numpy())
        if hasattr(model, "n_neighbors"):  # a class without a neighbour is unlikely, not impossible
            p = (p * neighbours + 1 / K) / (neighbours + 1)
        found[:, there] = torch.tensor(np.log(np.maximum(p, 1e-13)), dtype=torch.float32)
        return found

    return logits


def _logistic(strength: float | None) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=1000)


def _centroid(_: float | None) -> Any:
    from sklearn.neighbors import NearestCentroid

    class Centroid(NearestCentroid):
        def fit(self, x: Any, labels: Any) -> Any:
            with warnings.catch_warnings():  # of features that do not vary, which distances do not mind
                warnings.filterwarnings("ignore", message=".*zero standard deviation.*")
                return super().fit(x, labels)

    return Centroid()


def _boosting(_: float | None) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0)


def _knn(neighbours: float | None) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(int(neighbours or 1), metric="cosine", algorithm="brute")
