"""Generative cross-entropy as a double loop over rows and classes in plain Python floats: the oracle.

Slow and literal on purpose. Nothing of ``gence`` is used, nothing is vectorised, targets are lists of probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NaiveProblem:
    """Rows as lists. ``targets[i]`` is None for an ignored row; ``row_weights[i]`` is what "mean" adds up for it."""

    logits: Sequence[Sequence[float]]
    targets: Sequence[Sequence[float] | None]
    weight: Sequence[float]
    row_weights: Sequence[float]
    label_smoothing: float = 0.0
    anchor: float = 0.0
    prior: Sequence[float] | None = None
    context: Sequence[Sequence[float]] = ()


def softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    exps = [math.exp(z - top) for z in row]
    return [e / math.fsum(exps) for e in exps]


def losses(problem: NaiveProblem) -> list[float]:
    """The unreduced losses l_i, 0 for ignored rows."""
    K = len(problem.logits[0])
    eps = problem.label_smoothing
    used = [i for i, target in enumerate(problem.targets) if target is not None]
    p = {i: softmax(problem.logits[i]) for i in used}
    t = {i: [(1 - eps) * share + eps / K for share in problem.targets[i] or ()] for i in used}

    marginal = []
    for k in range(K):
        column = [p[i][k] for i in used] + [softmax(row)[k] for row in problem.context]
        marginal.append(math.fsum(column))

    result = [0.0] * len(problem.targets)
    for i in used:
        for k in range(K):
            if t[i][k] != 0.0:
                result[i] += problem.weight[k] * t[i][k] * (-math.log(p[i][k]) + math.log(marginal[k]))

    if problem.anchor and used:
        mass = [problem.weight[k] * math.fsum(t[i][k] for i in used) for k in range(K)]
        prior = problem.prior or [m / math.fsum(mass) for m in mass]
        rows = len(used) + len(problem.context)
        divergence = math.fsum(prior[k] * math.log(prior[k] / (marginal[k] / rows)) for k in range(K) if prior[k] > 0)
        for i in used:
            tau = math.fsum(problem.weight[k] * t[i][k] for k in range(K))
            result[i] += problem.anchor * tau * divergence
    return result


def reduced(problem: NaiveProblem, reduction: str) -> float:
    """The "sum" or "mean" of the losses."""
    total = math.fsum(losses(problem))
    if reduction == "sum":
        return total
    return total / math.fsum(w for w, target in zip(problem.row_weights, problem.targets, strict=True) if target)
