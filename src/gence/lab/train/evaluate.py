"""From a trained network to numbers: accuracy, calibration, OOD, and everything once more after the offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gence.lab.data import normalize
from gence.lab.spec import check_ood_names, ood_name
from gence.lab.train.task import Problem
from gence.losses import marginal_offset
from gence.metrics import (
    classification_metrics,
    confusion_matrix,
    marginal_divergence,
    max_probability,
    negative_entropy,
    ood_metrics,
    per_class_accuracy,
    predicted_marginal,
    reliability_bins,
    score_histograms,
)

_CHUNK = 1000
_CHUNK_CPU = 250


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a network's outputs say.

    Attributes:
        metrics: flat names to numbers; those after the offset begin with "offset/".
        tables: small JSON-ready tables.
        predictions: compact arrays, one entry an image.
        offset: the class offsets (K,) that were fitted, or None where the marginal could not be matched.
        finite: False for a network whose outputs are NaN or infinite; it has an accuracy and nothing else.
    """

    metrics: dict[str, float]
    tables: dict[str, Any]
    predictions: dict[str, np.ndarray]
    offset: Tensor | None
    finite: bool = True


def predict_logits(model: nn.Module, images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Float32 logits (n, K) of uint8 images, in evaluation mode, without gradient."""
    was_training = model.training
    model.eval()
    on_gpu = images.device.type == "cuda"
    size = _CHUNK if on_gpu else _CHUNK_CPU
    precision = torch.get_float32_matmul_precision()
    if on_gpu:  # TF32 keeps three bits of mantissa more than bf16 and costs an eighth of full float32
        torch.set_float32_matmul_precision("high")
    try:
        with torch.inference_mode():
            parts = [model(normalize(chunk, mean, std)).float() for chunk in torch.split(images, size)]
    finally:
        if on_gpu:
            torch.set_float32_matmul_precision(precision)
        model.train(was_training)
    return torch.cat(parts).clone()


@dataclass(frozen=True, eq=False, kw_only=True)
class Outputs:
    """What a network says of its images, and what is true of them.

    Attributes:
        logits: of the images it is judged by, (n, K).
        labels: theirs, (n,).
        index: their positions in the source's split, (n,) on the CPU.
        train_logits: of the images it was trained on.
        train_labels: theirs.
        ood: logits of out-of-distribution sets, by their short names.
        prior: class distribution of the training images, (K,).
        num_classes: K.
    """

    logits: Tensor
    labels: Tensor
    index: Tensor
    train_logits: Tensor
    train_labels: Tensor
    ood: dict[str, Tensor]
    prior: Tensor
    num_classes: int


def evaluate(model: nn.Module, problem: Problem) -> Evaluation:
    """Judge a network on its problem."""
    check_ood_names(problem.ood)

    def logits(images: Tensor) -> Tensor:
        return predict_logits(model, images, problem.mean, problem.std)

    outputs = Outputs(
        logits=logits(problem.judged.images), labels=problem.judged.labels, index=problem.judged.index,
        train_logits=logits(problem.train.images), train_labels=problem.train.labels,
        ood={ood_name(name): logits(images) for name, images in problem.ood.items()}, prior=problem.prior,
        num_classes=len(problem.classes),
    )  # fmt: skip
    return evaluate_outputs(outputs)


def evaluate_outputs(outputs: Outputs) -> Evaluation:
    """Judge what a network says, and once more after the ``marginal_offset`` of its training logits."""
    logits, labels, train_logits, ood = outputs.logits, outputs.labels, outputs.train_logits, outputs.ood
    if not all(bool(values.isfinite().all()) for values in (logits, train_logits, *ood.values())):
        accuracy = float((logits.argmax(1) == labels).double().mean())  # of what argmax makes of NaN: about chance
        return Evaluation(metrics={"accuracy": accuracy}, tables={}, predictions={}, offset=None, finite=False)

    metrics = score(logits, labels, ood)
    metrics |= {"train_accuracy": float((train_logits.argmax(1) == outputs.train_labels).double().mean())}
    metrics["marginal_kl"] = float(marginal_divergence(train_logits, outputs.prior))
    try:
        offset = marginal_offset(train_logits, outputs.prior)
    except RuntimeError:  # predictions too sharp for any offset to match the prior: said by its absence
        offset = None
    if offset is not None:
        shifted = score(logits + offset, labels, {name: values + offset for name, values in ood.items()})
        metrics |= {f"offset/{name}": value for name, value in shifted.items()}
    probs = logits.double().softmax(1)
    bins = reliability_bins(probs, labels)
    tables: dict[str, Any] = {
        "reliability": {
            "count": bins.count.long().tolist(),
            "confidence": _rounded(bins.confidence),
            "accuracy": _rounded(bins.accuracy),
        },
        "marginal": _rounded(predicted_marginal(train_logits)),
        "prior": _rounded(outputs.prior),
        "per_class_accuracy": _rounded(per_class_accuracy(probs, labels)),
        "ood_histograms": _histograms(logits, ood),
    }
    if outputs.num_classes <= 20:  # K^2 numbers; beyond that they would be most of the record
        tables["confusion"] = confusion_matrix(probs, labels).long().tolist()
    confidence, predicted = probs.max(1)
    predictions: dict[str, np.ndarray] = {
        "index": outputs.index.numpy().astype(np.uint32),
        "label": labels.cpu().numpy().astype(np.uint16),
        "predicted": predicted.cpu().numpy().astype(np.uint16),
        "confidence": confidence.cpu().numpy().astype(np.float16),
    }
    return Evaluation(metrics=metrics, tables=tables, predictions=predictions, offset=offset)


def score(logits: Tensor, labels: Tensor, ood: dict[str, Tensor]) -> dict[str, float]:
    """All metrics of test logits (n, K) and of OOD logits by name, under flat names."""
    found = classification_metrics(logits, labels)
    for name, values in ood.items():
        found |= {f"ood/{name}/{key}": value for key, value in ood_metrics(logits, values).items()}
    return found


def _histograms(logits: Tensor, ood: dict[str, Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in ood.items():
        for score, of in (("confidence", max_probability), ("entropy", negative_entropy)):
            shown = score_histograms(of(logits), of(values))
            found[f"{name}/{score}"] = {
                "edges": _rounded(shown.edges),
                "id": shown.id_count.tolist(),
                "ood": shown.ood_count.tolist(),
            }
    return found


def _rounded(values: Tensor) -> list[float | None]:
    """Six digits are more than a figure shows; NaN (an empty bin) becomes null, which JSON has."""
    return [None if value != value else float(f"{value:.6g}") for value in values.double().cpu().tolist()]
