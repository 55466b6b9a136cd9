"""What makes the cells of the transfer study: features from the cache, tuning, training, judging."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gence.lab.data import (
    DataError,
    balanced_subset,
    load,
    load_images,
    load_ood_rows,
    load_rows,
    long_tail_subset,
)
from gence.lab.features import (
    HEAD_RECIPE,
    PROJECTION,
    HeadProblem,
    HeadRun,
    embed,
    embed_rows,
    fit_references,
    load_encoder,
    logits_of,
    row_encoder,
    stratified_folds,
    train_heads,
    train_projections,
    tune_heads,
)
from gence.lab.spec import LossSpec, Recipe
from gence.lab.store import environment_record
from gence.losses import marginal_offset
from gence.metrics import auroc, brier_score, expected_calibration_error, marginal_divergence, negative_entropy
from gence.paper.cells import SEEDS, Records, cell_of, make_missing
from gence.paper.studies.transfer_grid import SOURCES, Line, Setting

TUNING_SEED = 1000
"""Seed s is trained with what was chosen on the labels that the seed 1000 + s draws; no final run has such labels."""

_ENOUGH = 300  # rows from which one draw of labels to tune on serves all seeds, in two folds

_OUTSIDE = 10_000  # images of an out-of-distribution set: of more about half as many are taken, evenly spaced
_IMAGE_SIZE = {"sign-digits": 100}  # its photographs are of several sizes


@dataclass(frozen=True, eq=False)
class Features:
    """A source as features.

    Attributes:
        train: (N, D).
        train_labels: (N,).
        test: (m, D).
        test_labels: (m,).
        classes: names of the classes.
        outside: features of out-of-distribution sets, by name.
        checksums: of all these, and of the encoder's weights.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]
    outside: Mapping[str, Tensor]
    checksums: Mapping[str, str]


def _place(data: str) -> str:
    """A file of the folder of data, which ``GENCE_DATA`` names; names of data sets stay."""
    if ".zip" not in data:
        return data
    folder = Path(os.environ.get("GENCE_DATA", ".")).expanduser()
    if not (folder / data.partition("/")[0]).exists():
        raise DataError(f"{data} is not in {folder}; set GENCE_DATA to the folder of the archives")
    return str(folder / data)


def read_features(name: str) -> Features:
    """Features of a source, from the cache or embedded now."""
    source = SOURCES[name]
    if source.text:
        rows = load_rows(_place(source.data))
        encoder = row_encoder(source.encoder, rows)
        train, test = embed_rows(rows.train, encoder).rows(), embed_rows(rows.test, encoder).rows()
        outside, sums = {}, {"train": rows.train.checksum, "test": rows.test.checksum, "encoder": encoder.weights}
        for other in source.outside:
            found = load_ood_rows(_place(other), rows.columns, rows.width)
            outside[other], sums[other] = embed_rows(found, encoder).rows(), found.checksum
        return Features(train, rows.train.labels, test, rows.test.labels, rows.classes, outside, sums)
    images = load(_place(source.data), image_size=_IMAGE_SIZE.get(name))
    network = load_encoder(source.encoder)
    outside, sums = {}, {"train": images.train.checksum, "test": images.test.checksum, "encoder": network.weights}
    for other in source.outside:
        refused = load_images(other, "test", channels=3)
        if len(refused) > _OUTSIDE:
            refused = refused.subset(torch.arange(0, len(refused), 2 * len(refused) // _OUTSIDE))
        outside[other], sums[other] = embed(refused, network).rows(), refused.checksum
    train, test = embed(images.train, network).rows(), embed(images.test, network).rows()
    return Features(train, images.train.labels, test, images.test.labels, tuple(images.train.classes), outside, sums)


def run_cells(
    records: Records,
    asked: Sequence[tuple[Setting, tuple[Line, ...]]],
    time_limit: float | None,
    echo: Callable[[str], None],
    read: Callable[[str], Features] = read_features,
) -> None:
    """Make the cells that are missing, with features of one source in memory; `read` gives them."""
    kept: dict[str, Features] = {}

    def make(setting: Setting, lines: Sequence[Line]) -> list[dict[str, Any]]:
        if setting.source not in kept:
            kept.clear()
            kept[setting.source] = read(setting.source)
            records.note(setting.source, kept[setting.source].checksums, environment_record())
        return make_cells(setting, lines, kept[setting.source])

    make_missing(records, asked, make, time_limit, echo)


def recipe_for(setting: Setting, rows: int) -> Recipe:
    """How heads are trained: fewer epochs where there are many steps in one."""
    if setting.batch == 0:
        return HEAD_RECIPE.replace(optimizer="lbfgs", epochs=200)
    return HEAD_RECIPE.replace(batch_size=setting.batch, epochs=50 if rows < 2000 else 20)


def folds_for(rows: int) -> int:
    """Folds of the cross-validation: fewer where there are rows enough."""
    return 5 if rows < _ENOUGH else 2


def tuning_draws(rows: int) -> int:
    """Draws of labels to tune on: one per seed, or one for all where there are rows enough."""
    return SEEDS if rows < _ENOUGH else 1


def draw(setting: Setting, features: Features, seed: int) -> Tensor:
    """The rows that a seed trains on."""
    labels, classes = features.train_labels, features.classes
    if setting.rho is not None:
        return long_tail_subset(labels, setting.rho, seed, setting.largest, len(classes), classes=classes)
    return balanced_subset(labels, len(classes) * (setting.per_class or 0), seed, len(classes), classes=classes)


def make_cells(setting: Setting, lines: Sequence[Line], features: Features) -> list[dict[str, Any]]:
    """Tune, train and judge the lines of a setting."""
    found = []
    for reference in [line for line in lines if line.reference]:
        found.append(_reference_cell(setting, reference, features))
    losses = [line for line in lines if not line.reference]
    kinds = [(line.resampled, line.head or setting.head, line.full_batch) for line in losses]
    for kind in sorted(set(kinds)):
        together = [line for line, own in zip(losses, kinds, strict=True) if own == kind]
        batch = 0 if kind[2] else setting.batch
        found += _loss_cells(replace(setting, head=kind[1], batch=batch), together, features)
    return found


def _problem(setting: Setting, features: Features, seed: int, resampled: bool) -> tuple[HeadProblem, Tensor | None]:
    """Rows to train on, and for rows that repeat, which of the rows drawn each is."""
    index, K = draw(setting, features, seed), len(features.classes)
    if not resampled:
        return HeadProblem(features.train, features.train_labels[index], K, index), None
    labels = features.train_labels[index]
    members = [(labels == k).nonzero().squeeze(1) for k in range(K)]
    each = -(-len(index) // K)
    again = torch.cat([rows.repeat(-(-each // len(rows)))[:each] for rows in members])
    return HeadProblem(features.train, labels[again], K, index[again]), again


def _loss_cells(setting: Setting, lines: Sequence[Line], features: Features) -> list[dict[str, Any]]:
    began, resampled = time.process_time(), lines[0].resampled
    rows, losses = setting.labels, [line.loss for line in lines]
    recipe = recipe_for(setting, rows)
    able = able_to_tune(setting)
    draws = tuning_draws(able.labels)
    # One choice per draw and loss.
    chosen = [tuned_rates(able, losses, features, resampled, TUNING_SEED + each) for each in range(draws)]
    problems = [_problem(setting, features, seed, resampled)[0] for seed in range(SEEDS)]
    runs = [
        HeadRun(
            problem=seed, loss=loss, seed=seed, head=setting.head, full_batch=setting.batch == 0,
            recipe=recipe.replace(lr=best["lr"], weight_decay=best["weight_decay"]),
        )
        for seed in range(SEEDS)
        for loss, best in zip(losses, chosen[seed % draws], strict=True)
    ]  # fmt: skip
    trained = (train_projections if setting.head == PROJECTION else train_heads)(problems, runs, curves=False)
    table: list[list[dict[str, float]]] = [[] for _ in lines]
    for seed in range(SEEDS):
        heads = [one.head for one in trained[seed * len(lines) : (seed + 1) * len(lines)]]
        drawn = torch.bincount(features.train_labels[draw(setting, features, seed)], minlength=len(features.classes))
        of_train = logits_of(heads, problems[seed].rows(torch.arange(len(problems[seed]))))
        of_test = logits_of(heads, features.test)
        of_outside = {name: logits_of(heads, rows) for name, rows in features.outside.items()}
        for i in range(len(lines)):
            outside = {name: one[i] for name, one in of_outside.items()}
            table[i].append(judge(of_test[i], features.test_labels, of_train[i], problems[seed].prior, drawn, outside))
    share = (time.process_time() - began) / len(lines)
    settled = [
        {name: [best[i][name] for best in chosen] for name in ("lr", "weight_decay", "cv")} for i in range(len(lines))
    ]
    return [
        cell_of(setting, line, setting.labels, best, seeds, share)
        for line, best, seeds in zip(lines, settled, table, strict=True)
    ]


def able_to_tune(setting: Setting) -> Setting:
    """The setting itself; with one label per class, which cannot be trained on and held out, that of two."""
    return replace(setting, per_class=2) if setting.per_class == 1 else setting


def tuned_rates(
    setting: Setting, losses: Sequence[LossSpec], features: Features, resampled: bool, seed: int
) -> list[dict[str, float]]:
    """Rate and decay of each loss, chosen on the labels that a seed draws, and their accuracy there."""
    recipe = recipe_for(setting, setting.labels)
    problem, again = _problem(setting, features, seed, resampled)
    fold_of = _folds(setting, features, seed)
    if again is not None:
        fold_of = fold_of[again]
    found = tune_heads(
        problem, losses, recipe=recipe, head=setting.head, full_batch=setting.batch == 0, seed=seed,
        fold_of=fold_of,
    )  # fmt: skip
    return [
        {"lr": one.best.lr, "weight_decay": one.best.weight_decay, "cv": round(one.best.accuracy, 5)} for one in found
    ]


def _folds(setting: Setting, features: Features, seed: int) -> Tensor:
    """Folds of the rows that are tuned on; classes with one row are always trained on."""
    labels = features.train_labels[draw(setting, features, seed)]
    K, counts = len(features.classes), torch.bincount(labels, minlength=len(features.classes))
    folds = folds_for(len(labels))
    if setting.rho is None:
        return stratified_folds(labels, K, seed, folds)
    # The tail's smallest classes have fewer rows than folds: rows are dealt out within each class in turn.
    generator = torch.Generator().manual_seed(seed)
    found, first = torch.empty(len(labels), dtype=torch.long), 0
    for k in range(K):
        members = (labels == k).nonzero().squeeze(1)
        found[members[torch.randperm(len(members), generator=generator)]] = (torch.arange(len(members)) + first) % folds
        first += int(counts[k])
    return found


def judge(
    logits: Tensor, labels: Tensor, of_train: Tensor, prior: Tensor, drawn: Tensor, outside: Mapping[str, Tensor]
) -> dict[str, float]:
    """The numbers that a cell keeps of one run.

    Args:
        logits: of the test rows.
        labels: theirs.
        of_train: logits of the training rows.
        prior: class distribution of the training rows.
        drawn: rows of each class that were drawn; they say which classes are the head and the tail.
        outside: logits of out-of-distribution rows, by the name of the set.
    """
    if not bool(logits.isfinite().all()):
        return {"accuracy": float((logits.argmax(1) == labels).double().mean())}
    found = _scores(logits, labels)
    right = logits.argmax(1) == labels
    if int(drawn.max()) != int(drawn.min()):
        order = drawn.argsort(descending=True, stable=True)
        for name, classes in zip(("head", "middle", "tail"), torch.tensor_split(order, 3), strict=True):
            found[f"{name}_accuracy"] = float(right[torch.isin(labels, classes)].double().mean())
    found["marginal_kl"] = float(marginal_divergence(of_train, prior))
    try:
        offset = marginal_offset(of_train, prior)
    except RuntimeError:  # predictions too sharp for any offset
        offset = None
    if offset is not None:
        found |= {f"offset_{name}": value for name, value in _scores(logits + offset, labels).items()}
    inside = negative_entropy(logits)
    each = [float(auroc(inside, negative_entropy(rows))) for rows in outside.values()]
    found |= {f"auroc_{i}": value for i, value in enumerate(each)}
    if each:
        found["auroc"] = sum(each) / len(each)
    return found


def _scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    log_p = logits.double().log_softmax(1)
    p = log_p.exp()
    return {
        "accuracy": float((p.argmax(1) == labels).double().mean()),
        "nll": float(-log_p.gather(1, labels[:, None]).mean()),
        "ece": float(expected_calibration_error(p, labels)),
        "brier": float(brier_score(p, labels)),
    }


def _reference_cell(setting: Setting, line: Line, features: Features) -> dict[str, Any]:
    """A classifier of scikit-learn; what it has to choose is chosen where the losses' rates are."""
    began = time.process_time()
    able, names = able_to_tune(setting), (line.reference,)
    draws = tuning_draws(able.labels)
    chosen = []
    for each in range(draws):
        problem, _ = _problem(able, features, TUNING_SEED + each, False)
        chosen.append(fit_references(problem, _folds(able, features, TUNING_SEED + each), names)[0].chosen)
    table = []
    for seed in range(SEEDS):
        problem, _ = _problem(setting, features, seed, False)
        one = fit_references(problem, problem.labels, names, chosen=chosen[seed % draws])[0]
        outside = {name: one.logits(rows) for name, rows in features.outside.items()}
        of_train = one.logits(problem.rows(torch.arange(len(problem))))
        drawn = torch.bincount(problem.labels, minlength=problem.num_classes)
        table.append(judge(one.logits(features.test), features.test_labels, of_train, problem.prior, drawn, outside))
    settled = {name: [one[name] for one in chosen] for name in chosen[0]}
    return cell_of(setting, line, setting.labels, settled, table, time.process_time() - began)
