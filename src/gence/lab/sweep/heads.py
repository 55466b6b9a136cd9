"""Heads on frozen features, tuned and set beside references: kept in the store, so that nothing is computed twice."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.spec import TUNE, LossSpec, RunSpec, SpecError, canonical_json
from gence.lab.store import Store, replace_file
from gence.lab.sweep.trials import TunedLoss
from gence.lab.sweep.tuning import TuneReport

if TYPE_CHECKING:
    from gence.lab.features import HeadProblem
    from gence.lab.train import FeatureData, PixelData

_CHUNK = 2_000  # test rows at once
_FORMAT = 2  # raise it when trials or references are made in another way


def tune_frozen(
    base: RunSpec,
    losses: Sequence[LossSpec],
    store: Store,
    data: FeatureData,
    *,
    trials: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> TuneReport:
    """Choose learning rate and weight decay of every loss by cross-validation on training labels alone.

    Every loss gets the same points, of which `choose_trial` takes one; the labels are those that the seed `seed` draws,
    which no final run may use.

    Args:
        base: the run to tune; its loss, rate, weight decay and seed are replaced.
        losses: the losses, with all their own parameters given.
        store: where what was chosen is kept.
        data: the source as features.
        trials: points per loss.
        seed: of the labels, the folds and the trials' heads.
        progress: called with the number of heads that are trained, and of all heads.
    """
    from gence.lab.features import EncoderModel, Trial, choose_trial, tune_heads

    for loss in losses:
        if TUNE in loss.params.values():
            raise SpecError(
                f"loss {loss} asks to tune its own parameter; heads tune only learning rate and weight decay: "
                "give it a number"
            )
    found: dict[LossSpec, dict[str, Any]] = {}
    for loss in losses:
        kept = _read(_place(store, "heads", base.replace(loss=loss, seed=seed), data, {"trials": trials}))
        if kept is not None:
            found[loss] = kept
    missing = [loss for loss in losses if loss not in found]
    problem, folds = _tuning_rows(data, base.replace(seed=seed))
    if missing:
        model = EncoderModel.parse(base.model)
        tuned = tune_heads(
            problem, missing, folds=folds, recipe=base.recipe, head=model.head, trials=trials,
            full_batch=base.recipe.optimizer == "lbfgs", seed=seed, classes=data.splits.train.classes,
            progress=progress,
        )  # fmt: skip
        for one in tuned:
            found[one.loss] = {
                "best": _finite(asdict(choose_trial(one.trials, len(problem)))),
                "trials": [_finite(asdict(trial)) for trial in one.trials], "folds": one.folds,
                "of": {**_setting(base), "loss": str(one.loss)},
            }  # fmt: skip
            place = _place(store, "heads", base.replace(loss=one.loss, seed=seed), data, {"trials": trials})
            _write(place, found[one.loss])
    chosen = {
        loss: choose_trial([Trial(**_numbers(trial)) for trial in found[loss]["trials"]], len(problem))
        for loss in losses
    }
    best = tuple(
        TunedLoss(
            asked=loss,
            changes={
                "loss": loss,
                "recipe.lr": chosen[loss].lr,
                "recipe.weight_decay": chosen[loss].weight_decay,
            },
            value=chosen[loss].accuracy,
            trials=trials,
            pruned=0,
            budget=trials,
        )
        for loss in losses
    )
    return TuneReport(base=base, seeds=(seed,), best=best, trials=trials, complete=True)


def _finite(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial for JSON, which has no infinity: the NLL of one that diverged is null."""
    return {name: value if math.isfinite(value) else None for name, value in trial.items()}


def _numbers(trial: dict[str, Any]) -> dict[str, float]:
    return {name: math.inf if value is None else value for name, value in trial.items()}


_TUNING_ROWS = 10_000


def _tuning_rows(data: FeatureData, spec: RunSpec) -> tuple[HeadProblem, int]:
    """The rows that heads are tuned on, and in how many folds: of a large table a sample, with the classes' shares."""
    from gence.lab.data import RowSplits, holdout
    from gence.lab.features import FOLDS, HeadProblem

    problem = data.problem(spec)
    if not isinstance(data.splits, RowSplits) or len(problem) <= _TUNING_ROWS or problem.index is None:
        return problem, FOLDS
    share, classes = _TUNING_ROWS / len(problem), problem.num_classes
    _, drawn = holdout(problem.labels, share, spec.seed, classes, classes=data.splits.classes)
    return HeadProblem(problem.features, problem.labels[drawn], classes, problem.index[drawn]), 2


def fit_and_keep_references(
    base: RunSpec, seeds: Sequence[int], store: Store, data: FeatureData | PixelData
) -> list[dict[str, Any]]:
    """What scikit-learn makes of the same features and labels, seed by seed: rows of the report other than losses.

    Networks from scratch are set beside references on the pixels, at the size that the networks see.
    """
    found = []
    for seed in seeds:
        place = _place(store, "references", base.replace(seed=seed), data, {}, with_loss=False)
        rows = _read(place)
        if rows is None:
            rows = {"rows": _references(base.replace(seed=seed), data), "of": _setting(base)}
            _write(place, rows)
        found += rows["rows"]
    return found


def _references(spec: RunSpec, data: FeatureData | PixelData) -> list[dict[str, Any]]:
    import torch

    from gence.lab.data import DataError, RowSplits
    from gence.lab.features import affordable_references, fit_references, stratified_folds
    from gence.lab.train import Outputs, PixelData, evaluate_outputs, of_training

    problem = data.problem(spec)
    try:
        folds = stratified_folds(problem.labels, problem.num_classes, spec.seed, classes=data.splits.train.classes)
    except DataError:  # a class with one sample: nothing can be chosen by cross-validation
        return []
    labels = data.splits.test.labels
    rows = []
    images = "pixels" if isinstance(data, PixelData) else "features"
    kind = data.splits.train.kind if isinstance(data.splits, RowSplits) else images
    for one in fit_references(problem, folds, affordable_references(problem, kind)):
        seen = evaluate_outputs(
            Outputs(
                logits=torch.cat([one.logits(part) for part in data.test_rows(_CHUNK)]),
                labels=labels,
                index=torch.arange(len(labels)),
                training=of_training(
                    one.logits(problem.rows(torch.arange(len(problem)))), problem.labels, problem.prior
                ),
                ood={},
                prior=problem.prior,
                num_classes=problem.num_classes,
            )
        )
        kept = {name: value for name, value in seen.metrics.items() if not name.startswith("offset/")}
        rows.append({"name": one.name, "seed": spec.seed, "chosen": one.chosen, "metrics": kept, "wall_s": one.wall_s})
    return rows


def _setting(base: RunSpec) -> dict[str, Any]:
    of = {"data": base.data, "n": base.subset.n, "encoder": base.model.partition("@")[2]}
    return of if of["encoder"] else {**of, "image_size": base.image_size}


def _place(
    store: Store,
    folder: str,
    spec: RunSpec,
    data: FeatureData | PixelData,
    more: dict[str, Any],
    *,
    with_loss: bool = True,
) -> Path:
    """The file of something that depends on a spec (but for its rates), the images and the encoder's weights."""
    plain = spec.replace(**{"recipe.lr": 0.0, "recipe.weight_decay": 0.0, "ood": ()}).to_dict()
    if not with_loss:
        plain = {name: plain[name] for name in ("data", "subset", "seed", "image_size")}
        plain["encoder"] = spec.model.partition("@")[2]
    text = canonical_json({"format": _FORMAT, "spec": plain, "data": data.checksums, **more})
    return store.root / folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _read(place: Path) -> dict[str, Any] | None:
    """What was kept; a file that is damaged is made again."""
    try:
        found = json.loads(place.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(place: Path, values: dict[str, Any]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, json.dumps(values, indent=1, allow_nan=False, default=str).encode())
