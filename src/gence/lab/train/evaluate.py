"""From a trained network to numbers: accuracy, calibration and OOD, raw, after the offset, and after calibration.

The offset needs the training labels' distribution alone. A temperature needs predictions of samples that the network
was not trained on: of heads those of cross-fitted heads, of networks those of a part that was held out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gence.calibrate import Calibrator, fit_temperature, sets_metrics
from gence.lab.data import normalize
from gence.lab.features import Head, HeldOut
from gence.lab.spec import check_ood_names, ood_name
from gence.lab.train.task import Problem
from gence.losses import marginal_offset
from gence.metrics import (
    classification_metrics,
    confidence_bins,
    confusion_matrix,
    detection_metrics,
    fit_knn,
    fit_mahalanobis,
    fit_vim,
    marginal_divergence,
    max_probability,
    negative_entropy,
    ood_metrics,
    per_class_accuracy,
    predicted_marginal,
    score_histograms,
    score_parts,
)

_CHUNK = 1000
_CHUNK_CPU = 250
_MOST_DETECTED = 10_000
_BLOCK = 1 << 18  # logits taken to float64 at a time


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a network's outputs say.

    Attributes:
        metrics: flat names to numbers; those after the offset begin with "offset/", after calibration with
            "calibrated/".
        tables: small JSON-ready tables.
        predictions: compact arrays, one entry per image.
        offset: the class offsets (K,) that were fitted, or None where the marginal could not be matched.
        calibrator: the temperature that was fitted on held-out samples, or None where there are none.
        finite: False for a network whose outputs are NaN or infinite; it has an accuracy and nothing else.
    """

    metrics: dict[str, float]
    tables: dict[str, Any]
    predictions: dict[str, np.ndarray]
    offset: Tensor | None
    calibrator: Calibrator | None = None
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
            for at in range(0, len(images), size):
                found = model(normalize(images[at : at + size], mean, std))
                if at == 0:  # one tensor for all, because of many classes two would be gigabytes
                    with torch.inference_mode(False):
                        logits = torch.empty(len(images), found.shape[1], device=found.device)
                logits[at : at + size] = found
    finally:
        if on_gpu:
            torch.set_float32_matmul_precision(precision)
        model.train(was_training)
    return logits


Detected = Mapping[str, tuple[Tensor, Mapping[str, Tensor]]]
"""Scores by detectors that read features: name -> of the inputs that are judged (n,), and of each OOD set."""


class OfTraining(NamedTuple):
    """What logits of training images say; the logits themselves, gigabytes of many classes, may then go.

    Attributes:
        metrics: "train_accuracy" and "marginal_kl"; empty if a logit is not finite.
        marginal: mean prediction of each class, (K,); None if a logit is not finite.
        offset: offsets (K,) that make the marginal the prior; None where there are none.
    """

    metrics: dict[str, float]
    marginal: Tensor | None
    offset: Tensor | None


def of_training(logits: Tensor, labels: Tensor, prior: Tensor) -> OfTraining:
    """What logits (n, K) of training images with labels (n,) say; `prior` is their class distribution (K,)."""
    if not _finite(logits):
        return OfTraining({}, None, None)
    metrics = {"train_accuracy": float((logits.argmax(1) == labels).double().mean())}
    metrics["marginal_kl"] = float(marginal_divergence(logits, prior))
    try:
        offset = marginal_offset(logits, prior)
    except RuntimeError:  # predictions too sharp for any offset to match the prior: said by its absence
        offset = None
    return OfTraining(metrics, predicted_marginal(logits), offset)


def _finite(*tensors: Tensor) -> bool:
    ends = [end for values in tensors for end in values.aminmax()]  # NaN is both
    return all(bool(end.isfinite()) for end in ends)


@dataclass(frozen=True, eq=False, kw_only=True)
class Outputs:
    """What a network says of its images, and what is true of them.

    Attributes:
        logits: of the images it is judged by, (n, K).
        labels: theirs, (n,).
        index: their positions in the source's split, (n,) on the CPU.
        training: what its logits say of the images it was trained on.
        ood: logits of out-of-distribution sets, by their short names.
        prior: class distribution of the training images, (K,).
        num_classes: K.
        held: logits of samples that it was not trained on, for calibration; None where there are none.
        detected: what detectors that read features say.
    """

    logits: Tensor
    labels: Tensor
    index: Tensor
    training: OfTraining
    ood: dict[str, Tensor]
    prior: Tensor
    num_classes: int
    held: HeldOut | None = None
    detected: Detected = field(default_factory=dict)


class FeatureDetectors:
    """Detectors fitted on the features of training rows, at most 10,000 of them, evenly spaced.

    The neighbour that counts is half as far as there are rows of a class, up to the 50th. Mahalanobis needs a class
    with two different rows. ViM needs a linear head.

    Args:
        features: (n, D), as the encoder gives them.
        labels: (n,).
    """

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        step = -(-len(features) // _MOST_DETECTED)
        self.features, self.labels = features[::step].float(), labels[::step]

    @cached_property
    def _shared(self) -> dict[str, Any]:
        classes = len(torch.unique(self.labels))
        found: dict[str, Any] = {"knn": fit_knn(self.features, min(50, max(1, len(self.labels) // classes // 2)))}
        if bool((self.features[self.labels == self.labels.mode().values].std(0, correction=0) > 0).any()):
            found["mahalanobis"] = fit_mahalanobis(self.features, self.labels)
        return found

    def detected(self, features: Tensor, outside: Mapping[str, Tensor]) -> Detected:
        """What the detectors that do not read the head say of features, and of those of OOD sets."""
        return {
            name: (detector(features), {ood: detector(rows) for ood, rows in outside.items()})
            for name, detector in self._shared.items()
        }

    def with_vim(
        self, found: Detected, head: Head, judged: tuple[Tensor, Tensor], outside: Mapping[str, tuple[Tensor, Tensor]]
    ) -> Detected:
        """The same, and what ViM says of features and their logits, where the head is linear and has not diverged."""
        of_rows = head.logits(self.features)
        if head.kind != "linear" or not bool(of_rows.isfinite().all()):
            return found
        weight = head.tensors["weight"].mT
        bias = head.tensors["bias"].reshape(-1) if "bias" in head.tensors else torch.zeros(len(weight))
        vim = fit_vim(head.scaling(self.features), of_rows, weight, bias)
        scores = {name: vim(head.scaling(rows), logits) for name, (rows, logits) in outside.items()}
        return {**found, "vim": (vim(head.scaling(judged[0]), judged[1]), scores)}


def evaluate(model: nn.Module, problem: Problem) -> Evaluation:
    """Judge a network on its problem."""
    check_ood_names(problem.ood)

    def logits(images: Tensor) -> Tensor:
        return predict_logits(model, images, problem.mean, problem.std)

    held = problem.held
    training = of_training(logits(problem.train.images), problem.train.labels, problem.prior)
    outputs = Outputs(
        logits=logits(problem.judged.images), labels=problem.judged.labels, index=problem.judged.index,
        training=training,
        ood={ood_name(name): logits(images) for name, images in problem.ood.items()}, prior=problem.prior,
        num_classes=len(problem.classes), held=None if held is None else HeldOut(logits(held.images), held.labels),
    )  # fmt: skip
    return evaluate_outputs(outputs)


def evaluate_outputs(outputs: Outputs) -> Evaluation:
    """Judge what a network says, once more after the ``marginal_offset`` of its training logits, and calibrated."""
    logits, labels, ood = outputs.logits, outputs.labels, outputs.ood
    of_train, marginal, offset = outputs.training
    if marginal is None or not _finite(logits, *ood.values()):
        accuracy = float((logits.argmax(1) == labels).double().mean())  # of what argmax makes of NaN: about chance
        return Evaluation(metrics={"accuracy": accuracy}, tables={}, predictions={}, offset=None, finite=False)

    metrics = score(logits, labels, ood, outputs.detected) | score_parts(logits, labels)._asdict()
    metrics |= of_train
    if offset is not None:
        shifted = score(logits + offset, labels, {name: values + offset for name, values in ood.items()})
        metrics |= {f"offset/{name}": value for name, value in shifted.items()}
    calibrator, found = _calibrated(outputs, metrics["nll_refinement"], metrics["brier_refinement"])
    metrics |= found
    confidence, predicted = _top_class(logits)
    tables: dict[str, Any] = {
        "reliability": _reliability(confidence, predicted == labels),
        "marginal": _rounded(marginal),
        "prior": _rounded(outputs.prior),
        "per_class_accuracy": _rounded(per_class_accuracy(logits, labels)),
        "ood_histograms": _histograms(logits, ood),
    }
    if calibrator is not None:
        tables["calibration"] = calibrator.summary()
        sure, chosen = _top_class(logits, calibrator)
        tables["calibrated_reliability"] = _reliability(sure, chosen == labels)
    if outputs.num_classes <= 20:  # K^2 numbers; beyond that they would be most of the record
        tables["confusion"] = confusion_matrix(logits.double().softmax(1), labels).long().tolist()
    predictions: dict[str, np.ndarray] = {
        "index": outputs.index.numpy().astype(np.uint32),
        "label": labels.cpu().numpy().astype(np.uint16),
        "predicted": predicted.cpu().numpy().astype(np.uint16),
        "confidence": confidence.cpu().numpy().astype(np.float16),
    }
    return Evaluation(metrics=metrics, tables=tables, predictions=predictions, offset=offset, calibrator=calibrator)


def _calibrated(
    outputs: Outputs, nll_refinement: float, brier_refinement: float
) -> tuple[Calibrator | None, dict[str, float]]:
    """The temperature, fitted on held-out samples, and what it makes of all metrics; prediction sets raw and after it.

    What a temperature refines is the same before and after it.
    """
    held, labels = outputs.held, outputs.labels
    if held is None or not len(held.labels) or not bool(held.logits.isfinite().all()):
        return None, {}
    calibrator = fit_temperature(held.logits, held.labels)
    logits, ood = calibrator.logits(outputs.logits), {name: calibrator.logits(z) for name, z in outputs.ood.items()}
    after = score(logits, labels, ood)
    after |= {
        "nll_calibration": after["nll"] - nll_refinement, "nll_refinement": nll_refinement,
        "brier_calibration": after["brier"] - brier_refinement, "brier_refinement": brier_refinement,
    }  # fmt: skip
    after |= sets_metrics(calibrator(held.logits.double()), held.labels, logits.double().softmax(1), labels)
    sets = sets_metrics(held.logits.double().softmax(1), held.labels, outputs.logits.double().softmax(1), labels)
    return calibrator, {**sets, **{f"calibrated/{name}": value for name, value in after.items()}}


def _reliability(confidence: Tensor, correct: Tensor) -> dict[str, Any]:
    bins = confidence_bins(confidence, correct)
    return {
        "count": bins.count.long().tolist(),
        "confidence": _rounded(bins.confidence),
        "accuracy": _rounded(bins.accuracy),
    }


def score(
    logits: Tensor, labels: Tensor, ood: Mapping[str, Tensor], detected: Detected | None = None
) -> dict[str, float]:
    """All metrics of test logits (n, K) and of OOD logits by name, under flat names; and of detectors on features."""
    found = classification_metrics(logits, labels)
    for name, values in ood.items():
        measured = ood_metrics(logits, values)
        if detected:
            inside = {detector: scores for detector, (scores, _) in detected.items()}
            measured |= detection_metrics(
                inside, {detector: others[name] for detector, (_, others) in detected.items()}
            )
        found |= {f"ood/{name}/{key}": value for key, value in measured.items()}
    return found


def score_saved(
    logits: Tensor,
    labels: Tensor,
    ood: Mapping[str, Tensor],
    *,
    offset: Tensor | None,
    calibrator: Calibrator | None,
    detected: Detected | None = None,
) -> dict[str, float]:
    """Metrics of a saved model: raw, "offset/..." with its class offsets, "calibrated/..." with its calibrator."""
    found = score(logits, labels, ood, detected) | score_parts(logits, labels)._asdict()
    changes: dict[str, Callable[[Tensor], Tensor]] = {}
    if offset is not None:
        changes["offset"] = lambda z: z + offset
    if calibrator is not None:
        changes["calibrated"] = calibrator.logits
    for prefix, change in changes.items():
        changed = score(change(logits), labels, {name: change(z) for name, z in ood.items()})
        found |= {f"{prefix}/{name}": value for name, value in changed.items()}
    return found


def _top_class(logits: Tensor, calibrator: Calibrator | None = None) -> tuple[Tensor, Tensor]:
    """The largest probability of each row in float64 (n,), and its class (n,), a block of rows at a time."""
    probs = (lambda z: z.softmax(1)) if calibrator is None else calibrator
    found = [probs(block.double()).max(1) for block in torch.split(logits, max(1, _BLOCK // logits.shape[1]))]
    return torch.cat([top.values for top in found]), torch.cat([top.indices for top in found])


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
