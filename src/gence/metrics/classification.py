"""How often the prediction is right, and how good its probabilities are as a whole.

All results are float64 tensors on the device of the input. The predicted class is the arg max; of equal scores the
lowest class index wins (`torch.argmax`'s rule), so a constant prediction counts as class 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gence.metrics._checks import as_class_scores, as_logits, as_probs, as_target


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
    return recall_of(confusion_matrix(scores, target))


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
    return recall_of(confusion_matrix(scores, target)).nanmean()


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


def recall_of(confusion: Tensor) -> Tensor:
    """Diagonal over row sums; 0/0 is NaN on purpose."""
    return confusion.diagonal().double() / confusion.sum(dim=1)


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
