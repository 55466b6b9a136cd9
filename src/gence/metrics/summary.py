"""All metrics of a set of predictions at once, as plain floats for a record."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gence.metrics._checks import as_logits, as_target, blocks, check_bins, checked_logits
from gence.metrics.calibration import (
    adaptive_error_of,
    bins_of,
    classwise_sums_of,
    debiased_error_of,
    ks_error_of,
)
from gence.metrics.classification import curve_of, recall_of, residual_of
from gence.metrics.ood import aupr_in, aupr_out, auroc, fpr_at_tpr, negative_energy, negative_entropy_of


def classification_metrics(logits: Tensor, target: Tensor, bins: int = 15) -> dict[str, float]:
    """Accuracy, likelihood and calibration of a labelled set; shares are fractions of 1, not per cent.

    Keys: accuracy, balanced_accuracy, nll, brier, ece, adaptive_ece, classwise_ece, debiased_ece, ks, mce, aurc,
    mean_confidence. What recalibration would change is in `score_parts`.

    Args:
        logits: (n, K).
        target: (n,) class indices.
        bins: bins of every calibration error.

    Example:
        >>> import torch
        >>> found = classification_metrics(torch.tensor([[99.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 0]))
        >>> found["accuracy"], found["ece"], found["brier"]
        (0.5, 0.5, 1.0)
    """
    check_bins(bins)
    checked = checked_logits(logits)
    labels = as_target(target, checked)
    # The class comes from the logits: softmax rounds tiny differences away.
    predicted, (n, K) = checked.argmax(dim=1), checked.shape
    by_class = torch.zeros(bins, K, dtype=torch.float64, device=checked.device)
    # Made before the blocks: what is kept of each would lie between them in memory, which then grew by gigabytes.
    confidence, surprise, squares = torch.empty(3, n, dtype=torch.float64, device=checked.device)
    first = 0
    for block in blocks(checked):
        own, at = labels[first : first + len(block)], slice(first, first + len(block))
        log_probs = block.double().log_softmax(dim=1)
        probs = block.double().softmax(dim=1)
        error = residual_of(probs, own)
        by_class += classwise_sums_of(probs, error, bins)
        confidence[at], squares[at] = probs.amax(dim=1), error.square().sum(dim=1)
        surprise[at] = -log_probs.gather(1, own[:, None])[:, 0]
        first += len(block)
    correct = predicted == labels
    reliability = bins_of(confidence, correct, bins)
    recall = recall_of(predicted, labels, K)
    found = {
        "accuracy": correct.double().mean(),
        "balanced_accuracy": recall.nanmean(),
        "nll": surprise.mean(),
        "brier": squares.mean(),
        "ece": reliability.expected_error,
        "adaptive_ece": adaptive_error_of(confidence, correct, bins),
        "classwise_ece": by_class.abs().sum(dim=0).mean() / n,
        "debiased_ece": debiased_error_of(confidence, correct, bins),
        "ks": ks_error_of(confidence, correct),
        "mce": reliability.maximum_error,
        "aurc": curve_of(confidence, correct).risk.mean(),
        "mean_confidence": confidence.mean(),
    }
    return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))  # one read from the device


def ood_metrics(id_logits: Tensor, ood_logits: Tensor) -> dict[str, float]:
    """AUROC, FPR at 95 % TPR and both AUPR, with ID as positive, by all detectors that read logits alone.

    Keys: auroc_*, fpr95_*, aupr_in_*, aupr_out_* with * one of entropy, confidence, energy (temperature 1), max_logit.

    Args:
        id_logits: (n, K) of inputs from the training distribution.
        ood_logits: (m, K) of other inputs, normalised with the same statistics.

    Example:
        >>> import torch
        >>> found = ood_metrics(torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
        >>> found["auroc_entropy"], found["fpr95_confidence"]
        (1.0, 0.0)
    """
    inside, outside = as_logits(id_logits, "id_logits"), as_logits(ood_logits, "ood_logits")
    if inside.shape[1] != outside.shape[1]:
        raise ValueError(
            f"ood_logits: {outside.shape[1]} classes were given, {inside.shape[1]} expected as in id_logits: both "
            f"must come from the same network."
        )
    return detection_metrics(_scores(inside), _scores(outside))


def detection_metrics(id_scores: Mapping[str, Tensor], ood_scores: Mapping[str, Tensor]) -> dict[str, float]:
    """How well each detector tells ID from OOD rows, under the keys of `ood_metrics`.

    AUROC, FPR and aupr_in have ID as the positive class, aupr_out has OOD.

    Args:
        id_scores: detector's name -> (n,), higher = more in-distribution.
        ood_scores: the same detectors' scores (m,) of other inputs.

    Example:
        >>> import torch
        >>> found = detection_metrics({"knn": torch.tensor([0.9, 0.8])}, {"knn": torch.tensor([0.8, 0.1])})
        >>> found["auroc_knn"], found["fpr95_knn"]
        (0.875, 0.5)
    """
    if id_scores.keys() != ood_scores.keys():
        raise ValueError(
            f"ood_scores: detectors {', '.join(ood_scores)} were given, {', '.join(id_scores)} expected, as in "
            "id_scores."
        )
    found: dict[str, Tensor] = {}
    for name, inside in id_scores.items():
        pair = (inside, ood_scores[name])
        found[f"auroc_{name}"] = auroc(*pair)
        found[f"fpr95_{name}"] = fpr_at_tpr(*pair, tpr=0.95)
        found[f"aupr_in_{name}"] = aupr_in(*pair)
        found[f"aupr_out_{name}"] = aupr_out(*pair)
    return dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True)) if found else {}


def _scores(logits: Tensor) -> dict[str, Tensor]:
    probs = logits.softmax(dim=1)
    return {
        "entropy": negative_entropy_of(probs),
        "confidence": probs.amax(dim=1),
        "energy": negative_energy(logits),
        "max_logit": logits.amax(dim=1),
    }
