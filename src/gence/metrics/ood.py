"""Telling inputs of the training distribution (ID) from others (OOD) by a score.

One orientation throughout: HIGHER means more in-distribution, and ID is the positive class. Whoever has a score that
grows with strangeness (an entropy, say) passes its negative. `aupr_out` alone asks about OOD as positive, and turns
the scores round itself.

Scores are compared in float64, so equal numbers stay equal; ties count one half in the AUROC and are never broken by
the order of the rows. The OOD images must have been normalised with the ID statistics before the network saw them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from gence.metrics._checks import as_logits, as_scores, check_bins


def negative_entropy(logits: Tensor) -> Tensor:
    """sum_k p_k log p_k in nats, p = softmax(logits), (n,): 0 for a sure prediction, -log K for a uniform one.

    Args:
        logits: (n, K).

    Example:
        >>> import torch
        >>> [round(score, 4) for score in negative_entropy(torch.tensor([[0.0, 0.0], [3.0, 0.0]])).tolist()]
        [-0.6931, -0.1909]
    """
    return negative_entropy_of(as_logits(logits).softmax(dim=1))


def max_probability(logits: Tensor) -> Tensor:
    """max_k p_k, p = softmax(logits), (n,): the confidence. Reaches 1.0, and ties, where the logits' gap exceeds 37.

    Args:
        logits: (n, K).

    Example:
        >>> import torch
        >>> max_probability(torch.tensor([[0.0, 0.0], [50.0, 0.0]])).tolist()
        [0.5, 1.0]
    """
    return as_logits(logits).softmax(dim=1).amax(dim=1)


def negative_energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """T log sum_k exp(z_k / T), (n,): the negative of the free energy.

    Unlike entropy and confidence it sees a constant added to a row of logits. No loss here, cross-entropy included,
    determines that constant; it is whatever the network happened to learn.

    Args:
        logits: (n, K).
        temperature: T > 0.

    Example:
        >>> import torch
        >>> round(negative_energy(torch.zeros(1, 10)).item(), 4)  # log 10
        2.3026
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature: {temperature!r} was given, a finite number above 0 expected.")
    return temperature * (as_logits(logits) / temperature).logsumexp(dim=1)


def max_logit(logits: Tensor) -> Tensor:
    """max_k z_k, (n,): the largest logit, before the softmax divides its size away (Hendrycks et al., ICML 2022).

    Like the energy it sees a constant added to a row of logits.

    Args:
        logits: (n, K).

    Example:
        >>> import torch
        >>> max_logit(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist()
        [3.0, 0.0]
    """
    return as_logits(logits).amax(dim=1)


def auroc(id_scores: Tensor, ood_scores: Tensor) -> Tensor:
    """P(score of an ID row > score of an OOD row) + P(equal) / 2, over all pairs: the area under the ROC curve, exact.

    Args:
        id_scores: (n,), higher = more in-distribution.
        ood_scores: (m,).

    Example:
        >>> import torch
        >>> auroc(torch.tensor([0.9, 0.8]), torch.tensor([0.8, 0.1])).item()
        0.875
    """
    positive, negative = _pair(id_scores, ood_scores)
    negative = negative.sort().values
    below = torch.searchsorted(negative, positive)
    not_above = torch.searchsorted(negative, positive, right=True)
    # Whole numbers until the division: a pair won counts 2, a tie 1.
    return (below + not_above).sum().double() / (2 * len(positive) * len(negative))


def fpr_at_tpr(id_scores: Tensor, ood_scores: Tensor, tpr: float = 0.95) -> Tensor:
    """Share of the OOD rows taken for ID at the highest threshold that keeps at least `tpr` of the ID rows.

    A row is taken for ID if its score reaches the threshold, ties included, so the true positive rate is never below
    the one asked for and nothing is interpolated.

    Args:
        id_scores: (n,), higher = more in-distribution.
        ood_scores: (m,).
        tpr: the true positive rate to keep, 0 < tpr <= 1.

    Example:
        >>> import torch
        >>> fpr_at_tpr(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0.8, 0.1]), tpr=0.6).item()
        0.5
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr: {tpr!r} was given, a share above 0 and up to 1 expected.")
    positive, negative = _pair(id_scores, ood_scores)
    # The float 0.9 is a little above 9/10: read as a ratio of small whole numbers, 90 % of 100 rows are 90, not 91.
    keep = math.ceil(Fraction(tpr).limit_denominator(1_000_000) * len(positive))
    threshold = positive.sort(descending=True).values[max(keep, 1) - 1]
    return (negative >= threshold).double().mean()


def aupr_in(id_scores: Tensor, ood_scores: Tensor) -> Tensor:
    """Area under the precision-recall curve with ID as positive, as average precision (no interpolation).

    It depends on the numbers of ID and OOD rows; by chance it is n / (n + m).

    Args:
        id_scores: (n,), higher = more in-distribution.
        ood_scores: (m,).

    Example:
        >>> import torch
        >>> aupr_in(torch.tensor([0.5]), torch.tensor([0.5, 0.5, 0.5])).item()
        0.25
    """
    return _average_precision(*_pair(id_scores, ood_scores))


def aupr_out(id_scores: Tensor, ood_scores: Tensor) -> Tensor:
    """Area under the precision-recall curve with OOD as positive and the scores turned round.

    Args:
        id_scores: (n,), higher = more in-distribution, as everywhere here.
        ood_scores: (m,).

    Example:
        >>> import torch
        >>> aupr_out(torch.tensor([0.5]), torch.tensor([0.5, 0.5, 0.5])).item()
        0.75
    """
    positive, negative = _pair(id_scores, ood_scores)
    return _average_precision(-negative, -positive)


@dataclass(frozen=True)
class ScoreHistograms:
    """Counts of ID and OOD scores in the same bins, the last of which is closed.

    Attributes:
        edges: (bins + 1,) float64, from the smallest to the largest score of both.
        id_count: (bins,) int64.
        ood_count: (bins,) int64.
    """

    edges: Tensor
    id_count: Tensor
    ood_count: Tensor

    def to_lists(self) -> dict[str, list[float]]:
        """Plain lists for a JSON record."""
        return {
            "edges": self.edges.tolist(),
            "id_count": self.id_count.tolist(),
            "ood_count": self.ood_count.tolist(),
        }


def score_histograms(id_scores: Tensor, ood_scores: Tensor, bins: int = 50) -> ScoreHistograms:
    """Histograms of both groups over their common range, for a figure; every score is in a bin.

    Args:
        id_scores: (n,) finite scores.
        ood_scores: (m,) finite scores.
        bins: how many equal-width bins; scores that are all equal lie in the middle of a range of width 1.

    Example:
        >>> import torch
        >>> score_histograms(torch.tensor([1.0, 0.9]), torch.tensor([0.0]), bins=2).to_lists()
        {'edges': [0.0, 0.5, 1.0], 'id_count': [0, 2], 'ood_count': [1, 0]}
    """
    positive, negative = _pair(id_scores, ood_scores)
    both = torch.cat([positive, negative])
    low, high = torch.stack(both.aminmax()).tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"id_scores, ood_scores: range from {low} to {high}; a histogram needs finite scores.")
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = torch.linspace(low, high, check_bins(bins) + 1, dtype=torch.float64, device=both.device)
    counts = [
        torch.bincount(torch.searchsorted(edges[1:-1], scores, right=True), minlength=bins)
        for scores in (positive, negative)
    ]
    return ScoreHistograms(edges, *counts)


def negative_entropy_of(probs: Tensor) -> Tensor:
    """sum_k p_k log p_k with 0 log 0 = 0, from checked float64 probabilities."""
    return torch.xlogy(probs, probs).sum(dim=1)


def _pair(id_scores: Tensor, ood_scores: Tensor) -> tuple[Tensor, Tensor]:
    positive, negative = as_scores(id_scores, "id_scores"), as_scores(ood_scores, "ood_scores")
    if positive.device != negative.device:
        raise ValueError(f"ood_scores: is on {negative.device}, id_scores on {positive.device}; move one to the other.")
    return positive, negative


def _average_precision(positive: Tensor, negative: Tensor) -> Tensor:
    # Average precision is the mean, over the positives, of the precision at each one's own score as threshold.
    hits = len(positive) - torch.searchsorted(positive.sort().values, positive)
    alarms = len(negative) - torch.searchsorted(negative.sort().values, positive)
    return (hits.double() / (hits + alarms)).mean()
