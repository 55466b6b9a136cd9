"""The predicted class marginal, and how far it has drifted from the prior.

Generative cross-entropy leaves the marginal almost free while predictions are sharp; a model whose predictions have
slid into a few classes shows here first, on its own training set.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gence.metrics._checks import as_labels, as_logits, as_probs


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
    return as_logits(logits).softmax(dim=1).mean(dim=0)


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
    values = as_logits(logits)
    classes = values.shape[1]
    if not isinstance(prior, Tensor) or prior.shape != (classes,):
        seen = tuple(prior.shape) if isinstance(prior, Tensor) else type(prior).__name__
        raise ValueError(f"prior: {seen} was given, a tensor of shape ({classes},) expected: one share for each class.")
    shares = as_probs(prior[None], "prior")[0].to(values.device)
    log_marginal = values.log_softmax(dim=1).logsumexp(dim=0) - math.log(len(values))  # (K,)
    # xlogy gives 0 log 0 = 0, and the where does the same for a class of prior 0 that is ruled out everywhere.
    cross = torch.where(shares > 0, shares * log_marginal, 0.0)
    return (torch.xlogy(shares, shares) - cross).sum().clamp(min=0.0)  # KL >= 0; rounding may leave -1e-17
