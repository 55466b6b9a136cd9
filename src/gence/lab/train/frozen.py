"""Heads on frozen features as runs like any other: embedded once, trained together, judged and saved.

Runs of a comparison differ in their loss, their seed and their rates; `train_frozen` gives all of them to
`train_heads` at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gence.lab.data import DataSplits, RowSplits, holdout, is_table, load, load_images, load_ood_rows, load_rows
from gence.lab.features import (
    Encoder,
    EncoderModel,
    FeatureSet,
    Head,
    HeadProblem,
    HeldOut,
    Preprocessing,
    RowEncoder,
    Scaling,
    TextEncoder,
    TrainedHead,
    cross_fit_heads,
    embed,
    embed_rows,
    head_run,
    is_encoder_model,
    logits_of,
    row_encoder,
    train_heads,
)
from gence.lab.spec import RunSpec, ood_name
from gence.lab.store import RunResult, data_checksums
from gence.lab.train.backbone import pretrained_encoder
from gence.lab.train.checkpoint import add_calibrator, write_tensors
from gence.lab.train.evaluate import Evaluation, FeatureDetectors, Outputs, evaluate_outputs, of_training
from gence.lab.train.task import subset_index

if TYPE_CHECKING:
    from rich.console import Console


def is_frozen(spec: RunSpec) -> bool:
    """Whether a run trains a head on features that are computed once."""
    return is_encoder_model(spec.model) and spec.recipe.tune_encoder == "none"


def frozen_encoder(spec: RunSpec) -> Encoder:
    """The encoder of a run of a head, as it comes: images are resized to its own size."""
    encoder = pretrained_encoder(spec, None)
    if encoder is None:
        raise ValueError(f"model {spec.model!r} has no encoder; expected HEAD@ENCODER, as linear@efficientnet_lite0")
    return encoder


@dataclass(frozen=True, eq=False)
class FeatureData:
    """A source as features: what all runs of a comparison share.

    Attributes:
        splits: the images, or rows of a table.
        encoder: what embedded them.
        train: features of the training part.
        test: of the test part.
        ood: of out-of-distribution sets, by the source's name.
        checksums: of the images, as records have them, and of the encoder's weights.
        about: the encoder and what it read, for records.
    """

    splits: DataSplits | RowSplits
    encoder: Encoder | RowEncoder
    train: FeatureSet
    test: FeatureSet
    ood: dict[str, FeatureSet]
    checksums: dict[str, str]
    about: dict[str, Any]

    @property
    def seconds(self) -> float:
        """Seconds that embedding took just now; 0 where everything was in the cache."""
        return sum(one.seconds for one in (self.train, self.test, *self.ood.values()))

    def indices(self, spec: RunSpec) -> tuple[Tensor, Tensor]:
        """Positions in the training part that a run trains on, and those that it holds out."""
        labels, classes = self.splits.train.labels, self.splits.train.classes
        index = subset_index(spec, labels, len(classes), classes)
        if spec.subset.val_fraction == 0:
            return index, index[:0]
        kept, held = holdout(labels[index], spec.subset.val_fraction, spec.seed, len(classes), classes=classes)
        return index[kept], index[held]

    def problem(self, spec: RunSpec) -> HeadProblem:
        """The rows that a run's head is trained on."""
        index, _ = self.indices(spec)
        labels = self.splits.train.labels[index]
        return HeadProblem(self.train.rows(), labels, self.splits.train.num_classes, index)

    def test_rows(self, size: int) -> Iterator[Tensor]:
        """Features of the test part, so many rows at once."""
        return iter(torch.split(self.test.rows(), size))


@dataclass(frozen=True, eq=False)
class PixelData:
    """A source's images as rows of pixels: what references see beside a network from scratch.

    Attributes:
        splits: the images.
        checksums: of the images, as records have them.
    """

    splits: DataSplits
    checksums: dict[str, str]

    def problem(self, spec: RunSpec) -> HeadProblem:
        """The rows that a run's network is trained on."""
        train = self.splits.train
        index = subset_index(spec, train.labels, train.num_classes, train.classes)
        return HeadProblem(self._rows(train.images[index]), train.labels[index], train.num_classes)

    def test_rows(self, size: int) -> Iterator[Tensor]:
        """The test part, so many rows at once."""
        return (self._rows(part) for part in torch.split(self.splits.test.images, size))

    def _rows(self, images: Tensor) -> Tensor:
        return images.flatten(1).float() / 255


def pixel_data(spec: RunSpec, cache_dir: Path | None = None) -> PixelData:
    """The source of a run as rows of pixels, at the size that its network sees."""
    splits = load(spec.data, image_size=spec.image_size, cache_dir=cache_dir)
    return PixelData(splits, data_checksums(splits))


def embed_data(
    spec: RunSpec,
    *,
    cache_dir: Path | None = None,
    progress: bool = False,
    console: Console | None = None,
) -> FeatureData:
    """Embed what a run needs, or read it from the cache: its source, and its out-of-distribution sets.

    Args:
        spec: names data, encoder and out-of-distribution sets.
        cache_dir: where images and features are kept.
        progress: a bar on stderr while images are decoded and embedded.
        console: where the bar is shown instead.
    """
    if is_table(spec.data):
        return _embed_table(spec, load_rows(spec.data), cache_dir=cache_dir, progress=progress, console=console)
    encoder = frozen_encoder(spec)
    splits = load(spec.data, image_size=spec.image_size, cache_dir=cache_dir, progress=progress)
    channels, height, width = splits.train.image_shape
    options: dict[str, Any] = {"cache_dir": cache_dir, "progress": progress, "console": console}
    train, test = embed(splits.train, encoder, **options), embed(splits.test, encoder, **options)
    ood, checksums = {}, {**data_checksums(splits), "encoder": encoder.weights}
    size = height if height == width else (height, width)
    for name in spec.ood:
        images = load_images(name, "test", image_size=size, channels=channels, cache_dir=cache_dir, progress=progress)
        ood[name] = embed(images, encoder, **options)
        checksums[f"ood/{name}"] = images.checksum
    about = {
        "name": encoder.name, "weights": encoder.weights[:16], "features": encoder.width,
        "size": encoder.preprocessing.size,
    }  # fmt: skip
    return FeatureData(splits, encoder, train, test, ood, checksums, about)


def _embed_table(spec: RunSpec, splits: RowSplits, **options: Any) -> FeatureData:
    """Features of a table's rows; what is fitted to columns is fitted on the training part alone."""
    encoder = row_encoder(EncoderModel.parse(spec.model).encoder, splits)
    outside = {name: load_ood_rows(name, splits.columns, splits.width) for name in spec.ood}
    about: dict[str, Any] = {
        "name": encoder.name, "weights": encoder.weights[:16], "features": encoder.width, "rows": splits.train.kind,
        "columns": splits.in_words(),
    }  # fmt: skip
    if isinstance(encoder, TextEncoder):
        parts = (splits.train, splits.test, *outside.values())
        about |= {"limit": encoder.limit, "cut": sum(encoder.cut(part.texts) for part in parts)}
    return FeatureData(
        splits,
        encoder,
        embed_rows(splits.train, encoder, **options),
        embed_rows(splits.test, encoder, **options),
        {name: embed_rows(rows, encoder, **options) for name, rows in outside.items()},
        {**data_checksums(splits, outside), "encoder": encoder.weights},
        about,
    )


def train_frozen(
    specs: Sequence[RunSpec],
    *,
    cache_dir: Path | None = None,
    models_dir: Path | None = None,
    progress: bool = False,
    should_stop: Callable[[], bool] | None = None,
) -> list[RunResult | None]:
    """Train heads on one source's features together, and judge each as a network would be.

    Args:
        specs: runs with one ``cohort_key``.
        cache_dir: where images and features are kept.
        models_dir: where trained heads go, one safetensors file per run, named by its key.
        progress: a bar on stderr while images are embedded.
        should_stop: asked once the features are there, and before each seed is judged.
    """
    data = embed_data(specs[0], cache_dir=cache_dir, progress=progress)
    if should_stop is not None and should_stop():
        return [None] * len(specs)
    began = time.perf_counter()
    problems: list[HeadProblem] = []
    number: dict[int, int] = {}
    for spec in specs:
        if spec.seed not in number:
            number[spec.seed] = len(problems)
            problems.append(data.problem(spec))
    runs = [head_run(spec, number[spec.seed]) for spec in specs]
    heads = train_heads(problems, runs)
    unseen: list[HeldOut | None] = [None] * len(specs)
    if specs[0].evaluate_on != "val" and specs[0].subset.val_fraction == 0:
        unseen = cross_fit_heads(problems, runs)
    results: list[RunResult | None] = [None] * len(specs)
    for seed, at in number.items():
        if should_stop is not None and should_stop():
            break
        members = [i for i, spec in enumerate(specs) if spec.seed == seed]
        judged = _judged(
            [specs[i] for i in members], [heads[i] for i in members], data, problems[at], [unseen[i] for i in members]
        )
        for i, (result, seen) in zip(members, judged, strict=True):
            results[i] = result
            if models_dir is not None:
                save_head(models_dir / f"{specs[i].key}.safetensors", specs[i], heads[i].head, data, seen)
    share = (time.perf_counter() - began) / len(specs)
    for finished in results:
        if finished is not None:
            object.__setattr__(finished, "wall_s", share)
    return results


def _judged(
    specs: Sequence[RunSpec],
    heads: Sequence[TrainedHead],
    data: FeatureData,
    problem: HeadProblem,
    unseen: Sequence[HeldOut | None],
) -> list[tuple[RunResult, Evaluation]]:
    """What runs of one seed, whose heads read the same rows, say; `unseen` is from heads that did not see them."""
    whole = data.splits.train
    index, held = data.indices(specs[0])
    if specs[0].evaluate_on == "val":
        features, labels, positions = data.train.rows(held), whole.labels[held], held
    else:
        features, labels = data.test.rows(), data.splits.test.labels
        positions = torch.arange(len(labels))
    bare = [one.head for one in heads]
    of_test, of_train = logits_of(bare, features), logits_of(bare, data.train.rows(index))
    of_ood = {name: logits_of(bare, found.rows()) for name, found in data.ood.items()}
    of_held = logits_of(bare, data.train.rows(held)) if len(held) and specs[0].evaluate_on != "val" else None
    detectors = FeatureDetectors(data.train.rows(index), problem.labels) if data.ood else None
    outside = {ood_name(name): rows.rows() for name, rows in data.ood.items()}
    shared = detectors.detected(features, outside) if detectors is not None else {}
    found = []
    for m, one in enumerate(heads):
        far = {ood_name(name): values[m] for name, values in of_ood.items()}
        detected = shared
        if detectors is not None:
            pairs = {name: (outside[name], values) for name, values in far.items()}
            detected = detectors.with_vim(shared, one.head, (features, of_test[m]), pairs)
        outputs = Outputs(
            logits=of_test[m], labels=labels, index=positions,
            training=of_training(of_train[m], problem.labels, problem.prior), ood=far, prior=problem.prior,
            num_classes=problem.num_classes,
            held=unseen[m] if of_held is None else HeldOut(of_held[m], whole.labels[held]), detected=detected,
        )  # fmt: skip
        seen = evaluate_outputs(outputs)
        result = RunResult(
            status="diverged" if one.diverged or not seen.finite else "done",
            metrics=seen.metrics,
            curves=one.curves,
            tables={**seen.tables, "encoder": data.about},
            predictions=seen.predictions or None,
            wall_s=one.wall_s,
            data=data.checksums,
        )
        found.append((result, seen))
    return found


_MOST_KEPT = 2**22
"""Numbers of training features that a file of a head may hold, for detectors."""


def save_head(path: Path, spec: RunSpec, head: Head, data: FeatureData, seen: Evaluation) -> None:
    """Write a trained head with all that prediction needs but the encoder's weights, which are named by checksum.

    The features that it was trained on go with it where they take at most 8 MB: detectors are fitted on them.
    """
    flat = {f"head/{name}": value for name, value in head.tensors.items()}
    flat |= {"scaling/mean": head.scaling.mean, "scaling/factor": torch.tensor(head.scaling.factor)}
    if seen.offset is not None:
        flat["offset"] = seen.offset
    index, _ = data.indices(spec)
    if len(index) * data.train.width <= _MOST_KEPT:
        flat["detect/features"] = data.train.rows(index)
        flat["detect/labels"] = data.splits.train.labels[index]
    notes = {
        "spec": spec.to_json(),
        "classes": json.dumps(data.splits.train.classes),
        "data": json.dumps(data.checksums),
        "encoder": json.dumps(data.encoder.identity()),
        "head": head.kind,
    }
    if isinstance(data.splits, RowSplits):
        columns = data.splits.columns
        notes |= {"rows": data.splits.train.kind, "columns": json.dumps(None if columns is None else asdict(columns))}
    else:
        notes["image_shape"] = json.dumps(list(data.splits.train.image_shape))
    add_calibrator(flat, notes, seen.calibrator)
    write_tensors(path, flat, notes)


class FrozenClassifier(nn.Module):
    """Encoder and head of a run as one network: logits (n, K) of uint8 images (n, C, H, W)."""

    mean: Tensor

    def __init__(self, network: nn.Module, preprocessing: Preprocessing, head: Head) -> None:
        super().__init__()
        self.network, self.preprocessing, self.kind, self.bare = network, preprocessing, head.kind, head
        self.register_buffer("mean", head.scaling.mean)
        self.factor = head.scaling.factor
        self.head = nn.ParameterDict({name: nn.Parameter(value, False) for name, value in head.tensors.items()})

    def features(self, images: Tensor) -> Tensor:
        """Features (n, D) rounded to float16, as they lie in the cache."""
        found: Tensor = self.network(self.preprocessing(images)).half().float()
        return found

    def forward(self, images: Tensor) -> Tensor:
        """As the run that trained it."""
        return self.logits(self.features(images))

    def logits(self, features: Tensor) -> Tensor:
        """What the head says of features (n, D)."""
        x: Tensor = (features - self.mean) * self.factor
        if self.kind == "cosine":
            weight = self.head["weight"] / self.head["weight"].norm(dim=0, keepdim=True).clamp_min(1e-12)
            cosine: Tensor = (nn.functional.normalize(x, dim=1) @ weight) * self.head["log_scale"].exp()
            return cosine
        if self.kind == "mlp":
            x = (x @ self.head["hidden_weight"] + self.head["hidden_bias"]).relu()
        logits: Tensor = x @ self.head["weight"]
        if "bias" in self.head:
            logits = logits + self.head["bias"]
        return logits


def read_frozen(spec: RunSpec, tensors: dict[str, Tensor], notes: dict[str, str]) -> FrozenClassifier:
    """The network of a file that `save_head` wrote.

    Raises:
        ValueError: the encoder's weights are not those that the head was trained on.
        EncoderError: they are not to be had here.
    """
    encoder, known = frozen_encoder(spec), json.loads(notes["encoder"])
    if encoder.weights != known["weights"]:
        raise ValueError(
            f"the head was trained on features of {known['encoder']} with weights {known['weights'][:16]}..., and "
            f"those found now are {encoder.weights[:16]}...; name the file with the right ones"
        )
    return FrozenClassifier(encoder.network, encoder.preprocessing, read_head(tensors, notes)).eval()


def read_detectors(tensors: dict[str, Tensor]) -> FeatureDetectors | None:
    """Detectors fitted on the training features in a file that `save_head` wrote, or None where it has none."""
    if "detect/features" not in tensors:
        return None
    return FeatureDetectors(tensors["detect/features"], tensors["detect/labels"])


def read_head(tensors: dict[str, Tensor], notes: dict[str, str]) -> Head:
    """The head of a file that `save_head` wrote."""
    kept = {name.removeprefix("head/"): value for name, value in tensors.items() if name.startswith("head/")}
    scaling = Scaling(tensors["scaling/mean"], float(tensors["scaling/factor"]))
    return Head(notes["head"], kept, scaling, len(json.loads(notes["classes"])))
