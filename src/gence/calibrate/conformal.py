"""Conformal prediction sets: for each sample the classes that it may be, the right one among them as often as promised.

A score says how badly a class fits a sample; the threshold is a quantile of the right classes' scores on samples that
the model was not trained on, and a set holds the classes whose score is no higher. If these samples and those to come
are exchangeable, a set of level 0.9 holds the right class with probability 0.9 or a little more (n + 1 in the
denominator), whatever the model.

    lac   1 - p_k                                     the smallest sets on average
    aps   sum of the probabilities down to class k    larger sets for hard samples, so that these are covered too

A set may be empty: at an accuracy above the level no class needs to be given to the samples that look strangest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gence.calibrate._checks import as_labels, check_probs

SCORES = ("lac", "aps")
LEVELS = (0.9, 0.95)
"""The levels that records have."""


@dataclass(frozen=True)
class PredictionSets:
    """Prediction sets with a fitted threshold; call it with probabilities (n, K) for the sets, bool (n, K).

    Attributes:
        score: "lac" or "aps".
        level: the share of sets that should hold the right class.
        threshold: the highest score that a class of a set may have; infinite (sets of all classes) if there were too
            few samples to promise the level.
    """

    score: str
    level: float
    threshold: float

    def __call__(self, probs: Tensor) -> Tensor:
        """The sets, bool (n, K)."""
        return conformal_scores(probs, self.score) <= self.threshold


def conformal_scores(probs: Tensor, score: str = "lac") -> Tensor:
    """The score (n, K), float64, of every class for every sample: low for classes that fit.

    Args:
        probs: (n, K), rows summing to 1.
        score: "lac" or "aps".

    >>> import torch
    >>> conformal_scores(torch.tensor([[0.5, 0.25, 0.25]]), "lac").tolist()
    [[0.5, 0.75, 0.75]]
    >>> conformal_scores(torch.tensor([[0.25, 0.5, 0.25]]), "aps").tolist()  # of equal probabilities both count
    [[1.0, 0.5, 1.0]]
    """
    check_probs(probs)
    p = probs.detach().double()
    if score == "lac":
        return 1 - p
    if score != "aps":
        raise ValueError(f"score: {score!r} was given, expected one of {', '.join(SCORES)}")
    ordered, order = p.sort(1, descending=True)
    total = ordered.cumsum(1).contiguous()
    # Ties share the last place among them: otherwise the number of a class would decide.
    last = torch.searchsorted(-ordered.contiguous(), -ordered.contiguous(), right=True) - 1
    return torch.empty_like(p).scatter_(1, order, total.gather(1, last))


def fit_sets(probs: Tensor, labels: Tensor, *, score: str = "lac", level: float = 0.9) -> PredictionSets:
    """Fit the threshold on samples that the model was not trained on (split conformal prediction).

    Args:
        probs: (n, K) of these samples; calibrated or not, the promise is kept.
        labels: (n,) their class indices.
        score: "lac" or "aps".
        level: the share of sets that should hold the right class, between 0 and 1.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.4, 0.6]])
    >>> sets = fit_sets(probs, torch.tensor([0, 0, 0, 0]), level=0.6)  # the 3rd of 4 scores
    >>> round(sets.threshold, 2), sets(torch.tensor([[0.75, 0.25], [0.6, 0.4]])).tolist()
    (0.3, [[True, False], [False, False]])
    """
    own = conformal_scores(probs, score).gather(1, as_labels(labels, probs)[:, None]).squeeze(1)
    return PredictionSets(score, level, _threshold(own, level))


def cross_conformal_sets(
    scores: Tensor, fold_of: Tensor, new_scores: Sequence[Tensor], *, level: float = 0.9
) -> Tensor:
    """Sets of new samples from the models of all folds (cross-conformal prediction), bool (m, K).

    No sample is lost to calibration: each was held out by one fold's model, and is compared with what the same model
    says of the new sample. A class stays out of a set if less than 1 - level of the samples score as badly; the sets
    hold the right class with at least 2 level - 1, in practice with about the level.

    Args:
        scores: (n,) of the right classes, each by the model that did not see the sample.
        fold_of: (n,) which model that was, from 0.
        new_scores: per model (m, K), the scores of new samples.
        level: the share of sets that should hold the right class.
    """
    _check_level(level)
    worse = torch.ones_like(new_scores[0])
    for fold, found in enumerate(new_scores):
        own = scores[fold_of == fold].sort().values
        worse += len(own) - torch.searchsorted(own, found.contiguous())  # those at least as high
    return worse > (1 - level) * (len(scores) + 1) * (1 + 1e-12)


def sets_metrics(held_probs: Tensor, held_labels: Tensor, probs: Tensor, labels: Tensor) -> dict[str, float]:
    """Coverage and mean size of the sets of both scores at 90 and 95 %, under flat names for a record.

    Args:
        held_probs: (n, K) of samples that the model was not trained on: the thresholds come from them.
        held_labels: (n,).
        probs: (m, K) of the samples that are judged.
        labels: (m,).

    >>> import torch
    >>> p = torch.full((40, 2), 0.5)
    >>> found = sets_metrics(p, torch.zeros(40, dtype=torch.long), p, torch.ones(40, dtype=torch.long))
    >>> found["coverage/lac90"], found["set_size/lac90"]
    (1.0, 2.0)
    """
    found: dict[str, float] = {}
    held_labels, labels = as_labels(held_labels, held_probs, "held_labels"), as_labels(labels, probs)
    for score in SCORES:
        of_held = conformal_scores(held_probs, score).gather(1, held_labels[:, None]).squeeze(1)
        of_judged = conformal_scores(probs, score)
        own = of_judged.gather(1, labels[:, None]).squeeze(1)
        for level in LEVELS:
            threshold = _threshold(of_held, level)
            name = f"{score}{round(100 * level)}"
            found[f"coverage/{name}"] = float((own <= threshold).double().mean())
            found[f"set_size/{name}"] = float((of_judged <= threshold).sum(1).double().mean())
    return found


def _threshold(scores: Tensor, level: float) -> float:
    """The ceil((n + 1) level)-th smallest score; infinite where there is none."""
    _check_level(level)
    rank = math.ceil((len(scores) + 1) * level * (1 - 1e-12))  # 0.9 * 10 is 9, and not a hair above
    return float(scores.kthvalue(rank).values) if rank <= len(scores) else math.inf


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level: {level} was given, a number between 0 and 1 expected, as 0.9")
