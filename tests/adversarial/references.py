"""Every loss as loops over rows and classes in Python's floats: nothing of the package, nothing vectorised."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HUGE = -1e3


@dataclass
class Problem:
    """Rows as lists. ``shares[i]`` is None for an ignored row; ``denominators[i]`` is what "mean" adds up for it."""

    logits: list[list[float]]
    shares: list[list[float] | None]
    weight: list[float]
    denominators: list[float]
    smoothing: float = 0.0
    anchor: float = 0.0
    prior: list[float] | None = None
    context: Sequence[list[float]] = ()

    def targets(self) -> dict[int, list[float]]:
        """w_k t_ik of the rows that take part, smoothing included."""
        K, eps = len(self.weight), self.smoothing
        return {
            i: [w * ((1 - eps) * share + eps / K) for w, share in zip(self.weight, shares, strict=True)]
            for i, shares in enumerate(self.shares)
            if shares is not None
        }


def log_sum_exp(values: Sequence[float]) -> float:
    top = max(values)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(v - top) for v in values))


def generative(problem: Problem) -> tuple[list[float], float]:
    """The rows' losses, and the largest number that a careful computation has to add."""
    targets = problem.targets()
    rows = {i: problem.logits[i] for i in targets}
    everything = [*rows.values(), *problem.context]
    sums = {i: log_sum_exp(row) for i, row in rows.items()}
    context_sums = [log_sum_exp(row) for row in problem.context]  # once, not per class: rows may be long
    losses, largest, divergence = [0.0] * len(problem.logits), 1.0, 0.0
    mass = [math.fsum(t[k] for t in targets.values()) for k in range(len(problem.weight))]
    whole = math.fsum(mass)
    for k in range(len(problem.weight)):
        top = max((row[k] for row in everything), default=-math.inf)
        pi = (mass[k] / whole if whole > 0 else 0.0) if problem.prior is None else problem.prior[k]
        if not math.isfinite(top):
            if pi > 0 and problem.anchor and everything:
                divergence = math.inf
            for i, t in targets.items():
                if t[k]:
                    losses[i] = math.nan  # 0 / 0: neither the row nor its competitors can be in the class
            continue
        # The class's largest logit is taken off first, so that a mask by a huge number swallows no digits.
        of_row = {i: rows[i][k] - top - sums[i] for i in rows}
        of_context = [row[k] - top - own for row, own in zip(problem.context, context_sums, strict=True)]
        log_s = log_sum_exp([*of_row.values(), *of_context])
        buried = log_s + top < HUGE
        for i, t in targets.items():
            if t[k]:
                losses[i] += t[k] * (log_s - of_row[i])
                parts = [log_s, of_row[i]] if buried else [log_s + top, of_row[i] + top]
                largest = max(largest, *(abs(part) for part in parts))
        if pi > 0 and problem.anchor:
            divergence += pi * (math.log(pi) - log_s - top + math.log(len(everything)))
            largest = max(largest, abs(log_s + top))
    if problem.anchor and targets:
        for i, t in targets.items():
            losses[i] += problem.anchor * math.fsum(t) * divergence
    return losses, largest


def of_probabilities(cost: Callable[[float, float], float]) -> Callable[[Problem], tuple[list[float], float]]:
    """A loss that is sum_k w_k t_k cost(p_k, log p_k) + whatever the cost takes of the other classes."""

    def losses(problem: Problem) -> tuple[list[float], float]:
        found, largest = [0.0] * len(problem.logits), 1.0
        for i, t in problem.targets().items():
            row = problem.logits[i]
            total = log_sum_exp(row)
            for k, share in enumerate(t):
                if share:
                    log_p = row[k] - total
                    found[i] += share * cost(math.exp(log_p), log_p)
                    largest = max(largest, abs(log_p))
        return found, largest

    return losses


def brier(problem: Problem) -> tuple[list[float], float]:
    found = [0.0] * len(problem.logits)
    for i, t in problem.targets().items():
        row = problem.logits[i]
        p = [math.exp(v - log_sum_exp(row)) for v in row]
        for k, share in enumerate(t):
            found[i] += share * math.fsum((p[j] - (j == k)) ** 2 for j in range(len(p)))
    return found, 1.0


def cosine(problem: Problem) -> tuple[list[float], float]:
    found = [0.0] * len(problem.logits)
    for i, t in problem.targets().items():
        norm = math.sqrt(math.fsum(v * v for v in problem.logits[i]))
        for k, share in enumerate(t):
            found[i] += share * (1 - problem.logits[i][k] / norm)
    return found, 1.0


def with_penalty(
    penalty: Callable[[Problem, list[float], list[float]], float],
) -> Callable[[Problem], tuple[list[float], float]]:
    """Cross-entropy and a penalty of the row's logits and weighted targets."""

    def losses(problem: Problem) -> tuple[list[float], float]:
        found, largest = LOSSES["ce"](problem)
        for i, t in problem.targets().items():
            added = penalty(problem, problem.logits[i], t)
            found[i] += added
            largest = max(largest, abs(added), *(v * v for v in problem.logits[i]))
        return found, largest

    return losses


def gap(problem: Problem, row: list[float], t: list[float]) -> float:
    """The mean over classes of how far mean confidence and class frequency are apart; the same for every row."""
    K, eps = len(row), problem.smoothing
    taking_part = [(z, shares) for z, shares in zip(problem.logits, problem.shares, strict=True) if shares is not None]
    total = 0.0
    for k in range(K):
        confidence = math.fsum(math.exp(z[k] - log_sum_exp(z)) for z, _ in taking_part)
        frequency = math.fsum((1 - eps) * shares[k] + eps / K for _, shares in taking_part)
        total += abs(confidence - frequency) / len(taking_part)
    return math.fsum(t) * total / K


def others_squared(problem: Problem, row: list[float], t: list[float]) -> float:
    mass = math.fsum(t)
    return math.fsum((mass - share) * v * v for share, v in zip(t, row, strict=True)) / max(len(row) - 1, 1)


def beyond_margin(problem: Problem, row: list[float], t: list[float]) -> float:
    return 0.1 * math.fsum(t) * math.fsum(max(0.0, max(row) - v - 10.0) for v in row)


def of_one_length(problem: Problem) -> tuple[list[float], float]:
    """Cross-entropy of the rows' directions over 0.04."""
    logits = [[v / (0.04 * (math.hypot(*row) or 1.0)) for v in row] for row in problem.logits]
    return LOSSES["ce"](Problem(logits, problem.shares, problem.weight, problem.denominators, problem.smoothing))


def dual_focal(problem: Problem) -> tuple[list[float], float]:
    found, largest = [0.0] * len(problem.logits), 1.0
    for i, t in problem.targets().items():
        row = problem.logits[i]
        log_p = [v - log_sum_exp(row) for v in row]
        for k, share in enumerate(t):
            if share:
                below = max((math.exp(v) for v in log_p if v < log_p[k]), default=0.0)
                found[i] += share * (1 - math.exp(log_p[k]) + below) ** 2 * -log_p[k]
                largest = max(largest, abs(log_p[k]))
    return found, largest


def adjusted(problem: Problem) -> tuple[list[float], float]:
    """Cross-entropy of the logits plus the logarithm of the prior, which is given as one of the anchor."""
    prior = problem.prior or [1.0] * len(problem.weight)
    logits = [[v + math.log(pi) for v, pi in zip(row, prior, strict=True)] for row in problem.logits]
    plain = Problem(logits, problem.shares, problem.weight, problem.denominators, problem.smoothing)
    return LOSSES["ce"](plain)


def contrastive(embeddings: list[list[float]], labels: list[int], temperature: float = 0.1) -> float:
    """Supervised contrastive loss of one view, the mean over rows that have a partner."""
    norms = [math.sqrt(math.fsum(v * v for v in row)) for row in embeddings]
    unit = [[v / norm for v in row] for row, norm in zip(embeddings, norms, strict=True)]
    costs = []
    for i, row in enumerate(unit):
        similar = {j: math.fsum(a * b for a, b in zip(row, o, strict=True)) / temperature
                   for j, o in enumerate(unit) if j != i}  # fmt: skip
        partners = [j for j in similar if labels[j] == labels[i]]
        if partners:
            total = log_sum_exp(list(similar.values()))
            costs.append(math.fsum(total - similar[j] for j in partners) / len(partners))
    return math.fsum(costs) / len(costs)


LOSSES: dict[str, Callable[[Problem], tuple[list[float], float]]] = {
    "gence": generative,
    "ce": of_probabilities(lambda p, log_p: -log_p),
    "mae": of_probabilities(lambda p, log_p: 2 * (1 - p)),
    "brier": brier,
    "generalized_ce": of_probabilities(lambda p, log_p: -math.expm1(0.7 * log_p) / 0.7),
    "focal": of_probabilities(lambda p, log_p: (1 - p) ** 2 * -log_p),
    "logit_adjusted": adjusted,
    "cosine": cosine,
    "mdca": with_penalty(gap),
    "poly1": of_probabilities(lambda p, log_p: -log_p - math.expm1(log_p)),
    "squentropy": with_penalty(others_squared),
    "mbls": with_penalty(beyond_margin),
    "logit_norm": of_one_length,
    "dual_focal": dual_focal,
}


def reduced(losses: list[float], problem: Problem, reduction: str) -> float:
    """The "sum" or "mean" of losses; NaN where the mean is one over nothing."""
    total = math.fsum(losses) if all(map(math.isfinite, losses)) else sum(losses)
    if reduction == "sum":
        return total
    whole = math.fsum(d for d, shares in zip(problem.denominators, problem.shares, strict=True) if shares is not None)
    return total / whole if whole else math.nan
