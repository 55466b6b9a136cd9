"""Selective prediction: answer only where confidence is high, and see how the error falls.

Rows of equal confidence have no order. Wherever a coverage cuts through them, the risk is its mean over all their
orders (errors spread evenly), so the curve does not depend on the order in which the rows come; a stable sort, as in
most code, would make a constant confidence look good or bad by luck.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gence.metrics._checks import as_correct, as_scores


@dataclass(frozen=True)
class RiskCoverage:
    """The curve of error rate against the share of rows answered, most confident first.

    Attributes:
        coverage: (n,) float64, 1/n, 2/n, ..., 1.
        risk: (n,) float64, the error rate among the rows answered.
    """

    coverage: Tensor
    risk: Tensor


def risk_coverage_curve(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Error rate among the k most confident rows, for k = 1 .. n.

    Args:
        confidence: (n,), higher = answered earlier; any score does.
        correct: (n,) bool, whether the prediction is right.

    Example:
        >>> import torch
        >>> curve = risk_coverage_curve(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False]))
        >>> [round(risk, 4) for risk in curve.risk.tolist()]  # the two ties share their one error
        [0.0, 0.25, 0.3333]
    """
    values = as_scores(confidence, "confidence")
    return curve_of(values, as_correct(correct, values))


def area_under_risk_coverage(confidence: Tensor, correct: Tensor) -> Tensor:
    """AURC: mean over k = 1 .. n of the error rate among the k most confident rows; lower is better.

    Constant confidence gives the error rate itself.

    Args:
        confidence: (n,), higher = answered earlier.
        correct: (n,) bool.

    Example:
        >>> import torch
        >>> area_under_risk_coverage(torch.tensor([0.9, 0.1]), torch.tensor([True, False])).item()
        0.25
    """
    return risk_coverage_curve(confidence, correct).risk.mean()


def excess_area_under_risk_coverage(confidence: Tensor, correct: Tensor) -> Tensor:
    """AURC minus that of a perfect confidence for the same predictions, which puts all errors last; at least 0.

    Takes the accuracy out of the AURC: what is left is the ranking. The perfect curve is summed, not approximated.

    Args:
        confidence: (n,), higher = answered earlier.
        correct: (n,) bool.

    Example:
        >>> import torch
        >>> excess_area_under_risk_coverage(torch.tensor([0.9, 0.1]), torch.tensor([True, False])).item()
        0.0
        >>> excess_area_under_risk_coverage(torch.tensor([0.1, 0.9]), torch.tensor([True, False])).item()
        0.5
    """
    values = as_scores(confidence, "confidence")
    flags = as_correct(correct, values)
    # The flags themselves are the perfect confidence: right before wrong.
    return curve_of(values, flags).risk.mean() - curve_of(flags.double(), flags).risk.mean()


def curve_of(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """The curve from checked input."""
    n = len(confidence)
    order = confidence.argsort(descending=True)
    ascending = confidence.sort().values
    ranked = confidence[order]
    before = n - torch.searchsorted(ascending, ranked, right=True)  # rows above the ties
    through = n - torch.searchsorted(ascending, ranked)  # rows above or among them
    wrong = torch.cat([correct.new_zeros(1, dtype=torch.int64), (~correct[order]).cumsum(0)])  # (n + 1,), exact
    answered = torch.arange(1, n + 1, device=confidence.device)
    share = (answered - before).double() / (through - before)
    errors = wrong[before] + share * (wrong[through] - wrong[before])
    return RiskCoverage(coverage=answered.double() / n, risk=errors / answered)
