"""A linear classifier on all rows: solved by L-BFGS, its weight decay chosen by cross-validation.

Rows of the same input and label are one row of their summed weight, in sorted order: so repeated rows and weights, and
any order of the rows, give the same folds and the same classifier to the last digit.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from gence.integrations.inputs import weighted_loss

DECAYS = tuple(10.0**e for e in range(-1, -8, -1))
"""Tried from the strongest on, for inputs whose mean squared norm is 1."""

FOLDS = 5


@dataclass(frozen=True, eq=False)
class Solution:
    """Weights (D + 1, K), the bias last, and the loss after each iteration."""

    weights: np.ndarray
    losses: list[float]


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """Rows that a linear classifier is fitted to.

    Attributes:
        inputs: (n, D), centred and scaled.
        codes: class indices (n,).
        weights: how often each row counts (n,).
        num_classes: K.
        mean, factor: inputs are ``(X - mean) * factor``.
    """

    inputs: Tensor
    codes: Tensor
    weights: Tensor
    num_classes: int
    mean: Tensor
    factor: float

    @classmethod
    def scaled(
        cls, X: np.ndarray, codes: np.ndarray, weights: np.ndarray, num_classes: int, dtype: torch.dtype, device: str
    ) -> LinearProblem:
        """Centre the inputs, and scale them to a mean squared norm of 1."""
        mean = np.average(X, axis=0, weights=weights)
        centred = X - mean
        spread = float(np.average(np.square(centred).sum(1), weights=weights))
        factor = spread**-0.5 if spread > 0 else 1.0
        return cls(
            torch.tensor(centred * factor, dtype=dtype, device=device),
            torch.tensor(codes, device=device),
            torch.tensor(weights, dtype=dtype, device=device),
            num_classes,
            torch.tensor(mean, dtype=dtype, device=device),
            factor,
        )

    def part(self, rows: np.ndarray) -> LinearProblem:
        """Some of the rows, scaled as all are."""
        which = torch.tensor(rows, device=self.inputs.device)
        kept = self.inputs[which], self.codes[which], self.weights[which]
        return LinearProblem(*kept, self.num_classes, self.mean, self.factor)

    def logits(self, weights: Tensor) -> Tensor:
        """(n, K)."""
        return torch.addmm(weights[-1], self.inputs, weights[:-1])

    def solve(
        self, criterion: nn.CrossEntropyLoss, weight_decay: float, most: int, begin: np.ndarray | None = None
    ) -> Solution:
        """Minimise the mean loss + weight_decay / 2 * the sum of squared weights (without the bias)."""
        shape = (self.inputs.shape[1] + 1, self.num_classes)
        seen = {}  # the loss where L-BFGS has just been: it ends an iteration there
        # Rows that count alike need no sums by hand, and losses have faster ways then.
        alike = bool((self.weights == self.weights[0]).all())
        mean = copy.copy(criterion)
        mean.reduction = "mean"

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            weights = self.inputs.new_tensor(flat).view(shape).requires_grad_()
            logits = self.logits(weights)
            loss = mean(logits, self.codes) if alike else weighted_loss(criterion, logits, self.codes, self.weights)
            whole = loss + weight_decay / 2 * weights[:-1].square().sum()
            (gradient,) = torch.autograd.grad(whole, weights)
            seen["loss"] = float(loss.detach())
            return float(whole.detach()), gradient.flatten().double().cpu().numpy()

        losses: list[float] = []
        found: Any = minimize(
            value_and_gradient,
            np.zeros(shape).ravel() if begin is None else begin.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: losses.append(seen["loss"]),
            options={"maxiter": most, "gtol": 1e-5, "ftol": 1e-9},
        )
        return Solution(found.x.reshape(shape), losses or [seen["loss"]])

    def log_loss(self, weights: np.ndarray) -> float:
        """The sum of the rows' log losses, by their weights."""
        losses = nn.functional.cross_entropy(self.logits(self.inputs.new_tensor(weights)), self.codes, reduction="none")
        return float((losses * self.weights).sum())

    def unscaled(self, weights: np.ndarray) -> tuple[Tensor, Tensor]:
        """Weight (K, D) and bias (K,) of an ``nn.Linear`` on inputs as they came."""
        found = self.inputs.new_tensor(weights)
        weight = found[:-1].mT * self.factor
        return weight, found[-1] - weight @ self.mean


def distinct_rows(X: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows that count, each once: inputs, class indices and summed weights.

    >>> distinct_rows(np.array([[2.0], [1.0], [2.0]]), np.array([0, 1, 0]), np.ones(3))
    (array([[1.],
           [2.]]), array([1, 0]), array([1., 2.]))
    """
    counted = weights > 0
    labelled, place = np.unique(np.column_stack([X, codes])[counted], axis=0, return_inverse=True)
    return labelled[:, :-1], labelled[:, -1].astype(np.int64), np.bincount(place.ravel(), weights[counted])


def chosen_decay(
    problem: LinearProblem, criterion: nn.CrossEntropyLoss, most: int, draws: np.random.RandomState
) -> tuple[float, dict[float, float]]:
    """The weight decay with the lowest held-out log loss, and the log loss of all that were tried.

    Where no class has two rows, nothing can be held out: then it is the middle one of `DECAYS`.
    """
    fold_of = _folds(problem.codes.cpu().numpy(), draws)
    folds = [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(FOLDS)]
    parts = [(problem.part(kept), problem.part(held)) for kept, held in folds if len(held)]
    total = sum(float(held.weights.sum()) for _, held in parts)
    if not parts:
        return DECAYS[len(DECAYS) // 2], {}
    found: dict[float, float] = {}
    weights: list[np.ndarray | None] = [None] * len(parts)
    for decay in DECAYS:
        cost = 0.0
        for i, (kept, held) in enumerate(parts):
            solved = kept.solve(criterion, decay, most, weights[i]).weights
            cost += held.log_loss(solved)
            weights[i] = solved  # where the next, weaker one begins
        found[decay] = cost / total
        if found[decay] > min(found.values()):
            break  # weaker ones would be worse still
    return min(found, key=found.__getitem__), found


def _folds(codes: np.ndarray, draws: np.random.RandomState) -> np.ndarray:
    """The fold of each row, every class spread over the folds; -1, always trained on, for the only row of a class."""
    fold_of, first = np.full(len(codes), -1), 0
    for k in np.unique(codes):
        members = draws.permutation(np.flatnonzero(codes == k))
        if len(members) > 1:
            fold_of[members] = (np.arange(len(members)) + first) % FOLDS
            first += len(members)
    return fold_of
