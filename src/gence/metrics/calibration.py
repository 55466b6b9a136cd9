"""Calibration: does a confidence of 80 % mean right in 80 % of the cases?

Confidence is the highest probability of a row, accuracy whether its class is the target. Bins are equal-width and
half-open, (lo, hi], the first also holding 0 and the last holding 1. Edges are m / bins, correctly rounded in float64,
and a confidence is compared with them at its exact value: a float32 that rounds 1/15 upwards lies in the second bin,
because it is larger than 1/15. Confidences above 1 by rounding count as 1.

Sums over bins are masked reductions, not scatter-adds: on a GPU those would add in a different order every time, and
the same predictions must give the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gence.metrics._checks import as_correct, as_probs, as_scores, as_target, check_bins
from gence.metrics.classification import residual_of


@dataclass(frozen=True)
class ReliabilityBins:
    """A reliability diagram as numbers; tensors on the device of the input.

    Attributes:
        edges: (bins + 1,) float64, from 0 to 1.
        count: (bins,) int64, rows in the bin.
        confidence: (bins,) float64, their mean confidence; NaN where the bin is empty.
        accuracy: (bins,) float64, the share of them that is right; NaN where the bin is empty.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gap(self) -> Tensor:
        """|accuracy - confidence| of each bin; 0 where the bin is empty."""
        return (self.accuracy - self.confidence).abs().nan_to_num(0.0)

    @property
    def expected_error(self) -> Tensor:
        """Mean gap, weighted by the rows in the bins (ECE)."""
        return (self.count * self.gap).sum() / self.count.sum()

    @property
    def maximum_error(self) -> Tensor:
        """Largest gap (MCE)."""
        return self.gap.amax()

    def to_lists(self) -> dict[str, list[float | None]]:
        """Plain lists for a JSON record; None where a bin is empty, since JSON has no NaN."""
        fields = {"edges": self.edges, "count": self.count, "confidence": self.confidence, "accuracy": self.accuracy}
        return {name: [None if x != x else x for x in values.tolist()] for name, values in fields.items()}


def reliability_bins(probs: Tensor, target: Tensor, bins: int = 15) -> ReliabilityBins:
    """Count, mean confidence and accuracy in equal-width bins of the confidence.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.
        bins: how many bins between 0 and 1.

    Example:
        >>> import torch
        >>> found = reliability_bins(torch.tensor([[0.9, 0.1], [1.0, 0.0]]), torch.tensor([0, 1]), bins=2)
        >>> found.count.tolist(), found.accuracy.tolist()
        ([0, 2], [nan, 0.5])
    """
    confidence, correct = _top_label(probs, target)
    return bins_of(confidence, correct, check_bins(bins))


def confidence_bins(confidence: Tensor, correct: Tensor, bins: int = 15) -> ReliabilityBins:
    """`reliability_bins` where confidences are available, and the probabilities of all classes are not.

    Args:
        confidence: (n,), between 0 and 1.
        correct: (n,) bool, whether the prediction is right.
        bins: how many bins between 0 and 1.

    Example:
        >>> import torch
        >>> confidence_bins(torch.tensor([0.9, 1.0]), torch.tensor([True, False]), bins=2).count.tolist()
        [0, 2]
    """
    values = as_scores(confidence, "confidence")
    return bins_of(values.clamp(max=1.0), as_correct(correct, values), check_bins(bins))


def expected_calibration_error(probs: Tensor, target: Tensor, bins: int = 15) -> Tensor:
    """ECE: sum over bins of (rows in the bin / n) |accuracy - confidence|, between 0 and 1.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.
        bins: how many equal-width bins (lo, hi] between 0 and 1; the paper's number is 15.

    Example:
        >>> import torch
        >>> sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> expected_calibration_error(sure, torch.tensor([0, 1])).item()  # confidence 1.0, accuracy 0.5
        0.5
    """
    return reliability_bins(probs, target, bins).expected_error


def maximum_calibration_error(probs: Tensor, target: Tensor, bins: int = 15) -> Tensor:
    """MCE: the largest |accuracy - confidence| over the bins that hold a row.

    A bin with a single row counts as much as any other, so this is noisy; read it beside `reliability_bins`.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.
        bins: how many equal-width bins.

    Example:
        >>> import torch
        >>> sure = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
        >>> maximum_calibration_error(sure, torch.tensor([0, 0])).item()
        0.5
    """
    return reliability_bins(probs, target, bins).maximum_error


def adaptive_calibration_error(probs: Tensor, target: Tensor, bins: int = 15) -> Tensor:
    """ECE of the top label with bins of equal mass: rows sorted by confidence and cut into equal parts.

    Sizes differ by at most one row; with fewer rows than bins, each row is its own bin. Rows of equal confidence have
    no order of their own, so where an edge of two bins cuts through them each takes the mean accuracy of its ties:
    the result does not depend on the order in which the rows come.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.
        bins: how many bins.

    Example:
        >>> import torch
        >>> sure = torch.tensor([[1.0, 0.0]]).expand(4, 2)
        >>> adaptive_calibration_error(sure, torch.tensor([0, 0, 0, 1]), bins=2).item()
        0.25
    """
    confidence, correct = _top_label(probs, target)
    return adaptive_error_of(confidence, correct, check_bins(bins))


def classwise_calibration_error(probs: Tensor, target: Tensor, bins: int = 15) -> Tensor:
    """Mean over the classes k of the ECE of p_k as the probability of "the target is k", with equal-width bins.

    Every class counts alike and every probability takes part, so with many classes the nearly empty probabilities
    near 0 dominate and the value is small: compare it between methods, not between numbers of classes.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.
        bins: how many equal-width bins (lo, hi].

    Example:
        >>> import torch
        >>> classwise_calibration_error(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])).item()
        0.5
    """
    values = as_probs(probs)
    return classwise_error_of(values, as_target(target, values), check_bins(bins))


def debiased_calibration_error(probs: Tensor, target: Tensor, bins: int = 15) -> Tensor:
    """Root mean square gap of the top label over bins of equal mass, without what chance alone would add to it.

    A bin's squared gap is expected to be accuracy (1 - accuracy) / rows too large, so that is subtracted with rows - 1
    in the denominator (Kumar, Liang and Ma, 2019). A perfectly calibrated model has 0 on average, where the plain error
    is positive; a sum below 0 counts as 0. Bins with one row say nothing and are skipped.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.
        bins: how many bins of equal mass.

    Example:
        >>> import torch
        >>> half = torch.tensor([[0.5, 0.5]]).expand(100, 2)
        >>> debiased_calibration_error(half, torch.arange(100) % 2, bins=5).item()  # as right as it says
        0.0
    """
    confidence, correct = _top_label(probs, target)
    return debiased_error_of(confidence, correct, check_bins(bins))


def ks_calibration_error(probs: Tensor, target: Tensor) -> Tensor:
    """KS error: the largest |sum of (right - confidence)| / n over all rows up to some confidence; needs no bins.

    It compares the running shares of confidence and of right predictions, as a Kolmogorov-Smirnov test does (Gupta et
    al., 2021). Rows of equal confidence count together.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> sure = torch.tensor([[1.0, 0.0]]).expand(4, 2)
        >>> ks_calibration_error(sure, torch.tensor([0, 0, 0, 1])).item()
        0.25
    """
    return ks_error_of(*_top_label(probs, target))


# What follows takes checked float64 input and is shared with `summary`, which checks once for all metrics.


def bins_of(confidence: Tensor, correct: Tensor, bins: int) -> ReliabilityBins:
    """Reliability bins of (n,) confidences and (n,) bool."""
    edges = _edges(bins, confidence.device)
    member = torch.searchsorted(edges[1:-1], confidence) == torch.arange(bins, device=confidence.device)[:, None]
    count = member.sum(dim=1)  # (bins,)
    return ReliabilityBins(
        edges=edges,
        count=count,
        confidence=(member * confidence).sum(dim=1) / count,  # 0/0 is NaN on purpose
        accuracy=(member & correct).sum(dim=1).double() / count,
    )


def adaptive_error_of(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """ECE with bins of equal mass."""
    n = len(confidence)
    right, ascending = _right_by_confidence(confidence, correct)
    gap, bins = right - ascending, min(bins, n)
    cuts = [n * m // bins for m in range(bins + 1)]
    return torch.stack([gap[lo:hi].sum().abs() for lo, hi in pairwise(cuts)]).sum() / n


def debiased_error_of(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """Debiased root mean square gap; ties keep the mean accuracy that all of them have, as in `adaptive_error_of`."""
    n = len(confidence)
    right, ascending = _right_by_confidence(confidence, correct)
    bins, total = min(bins, n), confidence.new_zeros(())
    cuts = [n * m // bins for m in range(bins + 1)]
    for lo, hi in pairwise(cuts):
        rows = hi - lo
        if rows > 1:
            accuracy = right[lo:hi].mean()
            chance = accuracy * (1 - accuracy) / (rows - 1)
            total = total + rows * ((accuracy - ascending[lo:hi].mean()).square() - chance)
    return (total / n).clamp_min(0).sqrt()


def ks_error_of(confidence: Tensor, correct: Tensor) -> Tensor:
    """Largest difference of the running sums, over n."""
    order = confidence.argsort()
    ascending, running = confidence[order], (correct[order].double() - confidence[order]).cumsum(0)
    ends = torch.searchsorted(ascending, ascending, right=True) - 1  # of the ties
    return running[ends].abs().amax() / len(confidence)


def classwise_error_of(probs: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Mean over the classes of their ECE: mean_k (1/n) sum_m |sum of (1[y = k] - p_k) over the rows in bin m|."""
    return classwise_sums_of(probs, residual_of(probs, labels), bins).abs().sum(dim=0).mean() / len(labels)


def classwise_sums_of(probs: Tensor, error: Tensor, bins: int) -> Tensor:
    """The sums of p_k - 1[y = k] over the rows whose p_k is in a bin (bins, K), to be added over blocks of rows.

    Few of many probabilities lie beyond the first bin (at most `bins` of a row), so those are summed one by one.
    """
    inner = _edges(bins, probs.device)[1:-1]
    if probs.device.type != "cpu":  # where adding one by one has no order
        index = torch.searchsorted(inner, probs.contiguous())  # (n, K)
        return torch.stack([(error * (index == m)).sum(dim=0) for m in range(bins)])
    sums = probs.new_zeros(bins, probs.shape[1])
    if bins == 1:
        return error.sum(dim=0, keepdim=True)
    beyond = probs > inner[0]  # (n, K)
    sums[0] = error.masked_fill(beyond, 0.0).sum(dim=0)
    place = torch.searchsorted(inner, probs[beyond]) * probs.shape[1] + beyond.nonzero()[:, 1]
    sums.view(-1).index_add_(0, place, error[beyond])
    return sums


def _top_label(probs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    values = as_probs(probs)
    confidence, predicted = values.max(dim=1)
    return confidence.clamp(max=1.0), predicted == as_target(target, values)


def _right_by_confidence(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """How often rows are right, and their confidence, both (n,) in its ascending order; ties share their accuracy."""
    order = confidence.argsort()
    ascending = confidence[order]
    hits = torch.cat([correct.new_zeros(1, dtype=torch.int64), correct[order].cumsum(0)])  # (n + 1,), exact
    first = torch.searchsorted(ascending, ascending)
    last = torch.searchsorted(ascending, ascending, right=True)
    return (hits[last] - hits[first]).double() / (last - first), ascending


def _edges(bins: int, device: torch.device) -> Tensor:
    # A division rounds correctly; linspace multiplies by a rounded step and misses some m / bins by an ulp.
    return torch.arange(bins + 1, dtype=torch.float64, device=device) / bins
