"""References other than losses: what scikit-learn makes of the same features, chosen on the same folds.

Their outputs are logits too: the logarithms of their probabilities, so that everything that judges a network judges
them.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gence.lab.features.heads.problem import HeadProblem
from gence.lab.features.heads.tuning import SPACES, TRIALS, Trial, choose_trial, points
from gence.metrics import best_temperature

REFERENCES = ("majority", "logistic", "svm", "centroid", "knn")
"""majority: the share of each class in the training labels; logistic: logistic regression (L-BFGS), L2 strength by
cross-validation; svm: RBF support vector machine, C and width by cross-validation, its decisions made logits by the
temperature that fits the rows held out; centroid: nearest class mean, with logits that fall with the squared distance,
in units of the training rows' own; knn: k nearest neighbours by cosine, k by cross-validation. What cross-validation
tries is chosen from as the losses' trials are, by `choose_trial`; the machine, whose decisions are no probabilities, by
accuracy."""

PIXELS = "pixels"
"""What `affordable_references` is told of raw pixels: distances to class means say little there."""

STRENGTHS = tuple(sorted((point["weight_decay"] for point in points(SPACES["lbfgs"], TRIALS)), reverse=True))
"""Weight decays of logistic regression, those that a head on the full batch tries: C is 1 / (decay x rows)."""

NEIGHBOURS = (1, 3, 5, 10, 20)

BOOSTING = "boosting"
"""The reference for tables: scikit-learn's gradient-boosted trees with their own settings."""

MARGINS = tuple((C, gamma) for C in (1.0, 10.0, 100.0) for gamma in (0.3, 1.0, 3.0))
"""C and gamma of the support vector machine, for features whose root mean square norm is 1."""

_MOST_WORK = 500_000_000  # rows x features x classes, beyond which choosing C takes minutes
_MOST_KERNEL = 2_500  # rows, beyond which the support vector machine does
_MOST_ROWS = 20_000  # beyond which distances between all rows do
_MOST_TREES = 500_000  # rows x classes


def affordable_references(problem: HeadProblem, kind: str) -> tuple[str, ...]:
    """The references for rows that take no longer than what is trained on them: the others are skipped.

    Args:
        problem: the training rows.
        kind: of a table "text", "columns" or "features"; of images "features" or "pixels".
    """
    n, K = len(problem), problem.num_classes
    found = ["majority"]
    if n * min(n, problem.width) * K <= (_MOST_WORK if kind != PIXELS else _MOST_WORK // 10):
        found.append("logistic")
    if n <= _MOST_KERNEL and n * K <= 10 * _MOST_KERNEL:
        found.append("svm")
    if kind == PIXELS:
        return tuple(found)
    found.append("centroid")
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


_REMARKS = (
    "failed to converge",  # of a strength that is hardly any, and is not chosen
    "number of unique classes",  # of one or two rows per class
    "zero standard deviation",  # of features that do not vary, which distances to centroids do not mind
    "invalid value",  # of one row per class
)


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Keep to itself what scikit-learn remarks on few rows, which is no news to anybody with few labels."""
    with warnings.catch_warnings():
        for remark in _REMARKS:
            warnings.filterwarnings("ignore", message=f".*{remark}")
        yield


@_without_remarks()
def fit_references(
    problem: HeadProblem,
    fold_of: Tensor,
    names: Sequence[str] = REFERENCES,
    *,
    chosen: Mapping[str, float] | None = None,
) -> list[Reference]:
    """Fit references on a problem's rows.

    Args:
        problem: the rows.
        fold_of: (n,), what `stratified_folds` gives.
        names: which references.
        chosen: "weight_decay" or "k" where it has been chosen already, on other rows; the folds are then not used.
    """
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    every = torch.arange(len(problem))
    rows, labels = problem.scaling(problem.rows(every)).double(), problem.labels.numpy()
    # Logistic regression with an L2 penalty stays in the rows' span: fewer dimensions, the same classifier.
    basis = torch.linalg.qr(rows.mT)[0] if len(rows) < rows.shape[1] else None
    small = (rows if basis is None else rows @ basis).numpy()
    folds = [((fold_of != fold).numpy(), (fold_of == fold).numpy()) for fold in range(int(fold_of.max()) + 1)]
    found: list[Reference] = []
    if "majority" in names:
        shares = ((problem.prior + 1e-13) / (problem.prior + 1e-13).sum()).log()
        found.append(Reference("majority", {}, lambda features: shares.expand(len(features), -1).clone(), 0.0))
    if "svm" in names:
        began = time.perf_counter()
        margin, machine = _support_vectors(problem, rows, folds)
        found.append(Reference("svm", margin, machine, time.perf_counter() - began))
    for name, values, make, attempts in (
        ("logistic", STRENGTHS, _logistic, _strengths),
        ("centroid", (), _centroid, None),
        ("knn", tuple(k for k in NEIGHBOURS if k <= min(int(kept.sum()) for kept, _ in folds)), _knn, _neighbourhoods),
        (BOOSTING, (), _boosting, None),
    ):
        if name not in names:
            continue
        what = "weight_decay" if name == "logistic" else "k"
        if chosen and values:
            values = (type(values[0])(chosen[what]),)
        began = time.perf_counter()
        x = small if name == "logistic" else rows.numpy()
        best = values[0] if values else None
        with threadpool_limits(1, user_api="blas"):  # threads wait for one another far longer than such products take
            if attempts is not None and len(values) > 1:
                tried = _tried(values, attempts, x, labels, folds, problem.num_classes)
                best = values[tried.index(choose_trial(tried, len(labels)))]
            model = make(best, len(x)).fit(x, labels)
        turn = basis if name == "logistic" else None
        settled = {} if best is None else {what: float(best)}
        found.append(Reference(name, settled, _as_logits(model, problem, turn, best or 0), time.perf_counter() - began))
    return sorted(found, key=lambda one: (*REFERENCES, BOOSTING).index(one.name))


def _tried(
    values: Sequence[float],
    attempts: Callable[[Sequence[float], np.ndarray, np.ndarray], Iterator[Any]],
    x: np.ndarray,
    labels: np.ndarray,
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
    K: int,
) -> list[Trial]:
    """What each value is worth on the rows held out."""
    right, nll = np.zeros(len(values)), np.zeros(len(values))
    for kept, held in folds:
        for i, (value, model) in enumerate(zip(values, attempts(values, x[kept], labels[kept]), strict=True)):
            log_p = _log_probabilities(model, x[held], K, value)
            right[i] += (log_p.argmax(1) == labels[held]).sum()
            nll[i] -= log_p[np.arange(len(log_p)), labels[held]].sum()
    found = zip(values, right / len(labels), nll / len(labels), strict=True)
    return [Trial(0.0, float(value), float(share), float(cost)) for value, share, cost in found]


def _log_probabilities(model: Any, x: np.ndarray, K: int, neighbours: float) -> np.ndarray:
    """Log-probabilities (n, K) of a fitted model; a class that training has none of is all but impossible."""
    p = model.predict_proba(x)
    if hasattr(model, "n_neighbors"):  # a class without a neighbour is unlikely, not impossible
        p = (p * neighbours + 1 / K) / (neighbours + 1)
    found = np.full((len(x), K), -30.0)
    found[:, model.classes_] = np.log(np.maximum(p, 1e-13))
    return found


def _support_vectors(
    problem: HeadProblem, rows: Tensor, folds: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[dict[str, float], Callable[[Tensor], Tensor]]:
    """A machine with the C and gamma that are right most often on held-out rows, and a temperature that fits them."""
    from sklearn.svm import SVC

    K, labels = problem.num_classes, problem.labels.numpy()
    apart = torch.cdist(rows, rows).square().numpy()  # once for every gamma and fold

    def fitted(C: float, gamma: float, kept: np.ndarray) -> Any:
        return SVC(C=C, kernel="precomputed", break_ties=True).fit(
            np.exp(-gamma * apart[np.ix_(kept, kept)]), labels[kept]
        )

    def held_out(C: float, gamma: float) -> Tensor:
        decided = torch.empty(len(rows), K, dtype=torch.float64)
        for kept, held in folds:
            model = fitted(C, gamma, np.flatnonzero(kept))
            decided[torch.from_numpy(held)] = _decisions(model, np.exp(-gamma * apart[np.ix_(held, kept)]), K)
        return decided

    tried = {margin: held_out(*margin) for margin in MARGINS}
    best = max(tried, key=lambda margin: int((tried[margin].argmax(1) == problem.labels).sum()))
    temperature = best_temperature(tried[best], problem.labels)
    model = fitted(*best, np.arange(len(rows)))

    def logits(features: Tensor) -> Tensor:
        kernel = (-best[1] * torch.cdist(problem.scaling(features).double(), rows).square()).exp()
        return (_decisions(model, kernel.numpy(), K) / temperature).log_softmax(1).float()

    return {"C": best[0], "gamma": best[1]}, logits


def _decisions(model: Any, kernel: np.ndarray, num_classes: int) -> Tensor:
    """A machine's decisions (n, K) from kernels (n, m); a class that training has none of is beyond all others."""
    decided = torch.as_tensor(model.decision_function(kernel))
    if decided.dim() == 1:  # two classes: the sign says which
        decided = torch.stack([-decided, decided], 1) / 2
    found = torch.full((len(decided), num_classes), float(decided.min()) - 1, dtype=torch.float64)
    found[:, torch.as_tensor(model.classes_)] = decided
    return found


def _as_logits(model: Any, problem: HeadProblem, basis: Tensor | None, neighbours: float) -> Callable[[Tensor], Tensor]:
    scaling, K = problem.scaling, problem.num_classes
    spread = 1.0
    if hasattr(model, "centroids_"):
        rows = scaling(problem.rows(torch.arange(len(problem)))).double()
        nearest = torch.cdist(rows, torch.as_tensor(model.centroids_)).min(1).values
        found_spread = float(nearest.square().mean())
        spread = found_spread if found_spread > 1e-6 else 1.0  # one row per class is its own mean

    def logits(features: Tensor) -> Tensor:
        rows = scaling(features).double()
        if hasattr(model, "centroids_"):
            # Its own probabilities divide by the spread of each feature, and may name another class than it does.
            found = torch.full((len(rows), K), -30.0)  # for classes that training has none of
            distances = torch.cdist(rows, torch.as_tensor(model.centroids_)).square()
            found[:, torch.as_tensor(model.classes_)] = (-distances / (2 * spread)).log_softmax(1).float()
            return found
        x = (rows if basis is None else rows @ basis).numpy()
        return torch.from_numpy(_log_probabilities(model, x, K, neighbours)).float()

    return logits


def _strengths(decays: Sequence[float], x: np.ndarray, labels: np.ndarray) -> Iterator[Any]:
    """A logistic regression at each strength, from strong to weak: the one model, moved on.

    It begins where the line through its last two minima leads, which is close by, and is only so exact as telling the
    strengths apart takes: in float32, and the weaker the penalty, the less a gradient may be left over.
    """
    x = x.astype(np.float32)
    model = _logistic(decays[0], len(x)).set_params(warm_start=True)
    before = after = np.empty(0)
    for i, decay in enumerate(decays):
        if i > 1:
            ahead = math.log(decay / decays[i - 1]) / math.log(decays[i - 1] / decays[i - 2])
            begin = after + ahead * (after - before)
            model.coef_, model.intercept_ = begin[:, :-1], begin[:, -1]
        yield model.set_params(C=1 / (decay * len(x)), tol=min(1e-5, decay)).fit(x, labels)
        before, after = after, np.c_[model.coef_, model.intercept_]


def _neighbourhoods(counts: Sequence[float], x: np.ndarray, labels: np.ndarray) -> Iterator[Any]:
    return (_knn(count).fit(x, labels) for count in counts)


def _logistic(decay: float | None, rows: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    # With its usual tolerance it stops well before the minimum where the penalty is weak.
    return LogisticRegression(C=1 / ((decay or 1.0) * rows), tol=1e-7, max_iter=1000)


def _centroid(*_: Any) -> Any:
    from sklearn.neighbors import NearestCentroid

    return NearestCentroid()


def _boosting(*_: Any) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0)


def _knn(neighbours: float | None, *_: Any) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(int(neighbours or 1), metric="cosine", algorithm="brute")
