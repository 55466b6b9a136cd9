"""How often the prediction is right, how good its probabilities are as a whole, and what they say of the classes.

All results are float64 tensors on the device of the input. The predicted class is the arg max; of equal scores the
lowest class index wins (`torch.argmax`'s rule), so a constant prediction counts as class 0.

Generative cross-entropy leaves the predicted class marginal almost free while predictions are sharp; a model whose
predictions have slid into a few classes shows in its divergence from the prior first, on its own training set.

Selective prediction answers only where confidence is high. Rows of equal confidence have no order: wherever a coverage
cuts through them, the risk is its mean over all their orders (errors spread evenly), so the curve does not depend on
the order in which the rows come; a stable sort, as in most code, would make a constant confidence look good or bad by
luck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gence.metrics._checks import (
    as_class_scores,
    as_correct,
    as_labels,
    as_logits,
    as_probs,
    as_scores,
    as_target,
    blocks,
    checked_logits,
)


def top1_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    """Share of the rows whose highest score is at the target.

    Args:
        scores: (n, K) logits or probabilities; only their order within a row counts.
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> top1_accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])).item()
        0.5
    """
    values = as_class_scores(scores)
    labels = as_target(target, values)
    return (values.argmax(dim=1) == labels).double().mean()


def confusion_matrix(scores: Tensor, target: Tensor) -> Tensor:
    """Counts (K, K), int64: row = target, column = predicted class.

    Args:
        scores: (n, K) logits or probabilities; only their order within a row counts.
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> confusion_matrix(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])).tolist()
        [[1, 1], [0, 0]]
    """
    values = as_class_scores(scores)
    labels = as_target(target, values)
    return confusion_of(values.argmax(dim=1), labels, values.shape[1])


def per_class_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    """Share of each class's rows that are predicted right (recall), (K,); NaN for a class without rows.

    Args:
        scores: (n, K) logits or probabilities; only their order within a row counts.
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> per_class_accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])).tolist()
        [0.5, nan]
    """
    return _recall(scores, target)


def balanced_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    """Mean of the per-class accuracies over the classes that have rows.

    Args:
        scores: (n, K) logits or probabilities; only their order within a row counts.
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]])  # three right of class 0 ...
        >>> round(balanced_accuracy(scores, torch.tensor([0, 0, 1])).item(), 3)  # ... none of class 1
        0.5
    """
    return _recall(scores, target).nanmean()


def negative_log_likelihood(logits: Tensor, target: Tensor) -> Tensor:
    """Mean of -log p_y in nats, p = softmax(logits): cross-entropy as a metric.

    Finite for finite logits, however wrong: nothing is clipped.

    Args:
        logits: (n, K).
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> round(negative_log_likelihood(torch.zeros(3, 10), torch.tensor([0, 4, 9])).item(), 4)  # log 10
        2.3026
    """
    values = as_logits(logits)
    return nll_of(values.log_softmax(dim=1), as_target(target, values))


def brier_score(probs: Tensor, target: Tensor) -> Tensor:
    """Mean of sum_k (p_k - 1[k = y])^2: the sum over the classes, between 0 and 2.

    Some libraries halve it or divide by K; this is the form of the Brier loss among the baselines.

    Args:
        probs: (n, K), rows summing to 1.
        target: (n,) class indices.

    Example:
        >>> import torch
        >>> brier_score(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])).item()
        1.0
    """
    values = as_probs(probs)
    return brier_of(values, as_target(target, values))


# What follows takes checked float64 input and is shared with `summary`, which checks once for all metrics.


def confusion_of(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts (K, K) from checked int64 labels."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def recall_of(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Rows that are right over rows of the class (K,), without their (K, K) counts; 0/0 is NaN on purpose."""
    right = torch.where(predicted == labels, labels, classes)  # no class for those that are wrong
    hits = torch.bincount(right, minlength=classes + 1)[:classes]
    return hits.double() / torch.bincount(labels, minlength=classes)


def _recall(scores: Tensor, target: Tensor) -> Tensor:
    values = checked_logits(scores, "scores")
    return recall_of(values.argmax(dim=1), as_target(target, values), values.shape[1])


def nll_of(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log p_y."""
    return -log_probs.gather(1, labels[:, None]).mean()


def brier_of(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean of sum_k (p_k - 1[k = y])^2, summed as it stands: the expansion 1 - 2 p_y + sum p^2 cancels near 0."""
    return residual_of(probs, labels).square().sum(dim=1).mean()


def residual_of(probs: Tensor, labels: Tensor) -> Tensor:
    """p_k - 1[k = y], (n, K)."""
    at = labels[:, None]
    return probs.scatter(1, at, probs.gather(1, at) - 1)


def label_distribution(target: Tensor, classes: int) -> Tensor:
    """Share of each class among the labels, (K,) float64.

    Args:
        target: (n,) class indices.
        classes: K; classes without a label get 0.

    Example:
        >>> import torch
        >>> label_distribution(torch.tensor([0, 0, 2, 1]), classes=4).tolist()
        [0.5, 0.25, 0.25, 0.0]
    """
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
        raise ValueError(f"classes: {classes!r} was given, a whole number of at least 1 expected.")
    labels = as_labels(target, classes)
    return torch.bincount(labels, minlength=classes).double() / len(labels)


def predicted_marginal(logits: Tensor) -> Tensor:
    """Mean over the rows of softmax(logits), (K,) float64.

    Args:
        logits: (n, K).

    Example:
        >>> import torch
        >>> predicted_marginal(torch.tensor([[0.0, 0.0], [99.0, 0.0]])).tolist()
        [0.75, 0.25]
    """
    values = checked_logits(logits)
    total = torch.zeros(values.shape[1], dtype=torch.float64, device=values.device)
    for block in blocks(values):
        total += block.double().softmax(dim=1).sum(dim=0)
    return total / len(values)


def marginal_divergence(logits: Tensor, prior: Tensor) -> Tensor:
    """KL(prior || predicted marginal) in nats: 0 without drift, and without an upper bound.

    Computed in log space, so it stays finite where a class's marginal underflows; it is inf only where a class of
    positive prior is ruled out in every row (logit -inf).

    Args:
        logits: (n, K).
        prior: (K,), at least 0 and summing to 1; a class of prior 0 adds nothing.

    Example:
        >>> import torch
        >>> marginal_divergence(torch.zeros(5, 2), torch.tensor([0.5, 0.5])).item()
        0.0
    """
    values = checked_logits(logits)
    classes = values.shape[1]
    if not isinstance(prior, Tensor) or prior.shape != (classes,):
        seen = tuple(prior.shape) if isinstance(prior, Tensor) else type(prior).__name__
        raise ValueError(f"prior: {seen} was given, a tensor of shape ({classes},) expected: one share for each class.")
    shares = as_probs(prior[None], "prior")[0].to(values.device)
    log_sums = shares.new_full((classes,), -torch.inf)
    for block in blocks(values):
        torch.logaddexp(log_sums, block.double().log_softmax(dim=1).logsumexp(dim=0), out=log_sums)
    log_marginal = log_sums - math.log(len(values))  # (K,)
    # xlogy gives 0 log 0 = 0, and the where does the same for a class of prior 0 that is ruled out everywhere.
    cross = torch.where(shares > 0, shares * log_marginal, 0.0)
    return (torch.xlogy(shares, shares) - cross).sum().clamp(min=0.0)  # KL >= 0; rounding may leave -1e-17


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
