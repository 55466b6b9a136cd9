"""Stratified cross-validation on the training labels alone: rates of every loss, and predictions for calibration.

Every loss gets the same trials: points that fill the plane of (log rate, log decay) evenly, the same points for all.
All folds, trials and losses train together, and `choose_trial` takes one trial of each loss. References choose by it
too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gence.lab.data import DataError
from gence.lab.features.heads.problem import HEAD_RECIPE, HeadProblem, HeadRun, logits_of
from gence.lab.features.heads.projections import PROJECTION, train_projections
from gence.lab.features.heads.training import train_heads
from gence.lab.spec import LossSpec, Recipe, stream

TRIALS = 16
FOLDS = 5
MOST_CROSS_FITTED = 10_000

SPACES = {
    "sgd": {"lr": (0.1, 300.0), "weight_decay": (1e-6, 1e-2)},
    "adamw": {"lr": (3e-4, 0.1), "weight_decay": (1e-4, 1.0)},
    "lbfgs": {"lr": (1.0, 1.0), "weight_decay": (1e-7, 0.1)},
}
"""Ends of the ranges, for features whose root mean square norm is 1; drawn evenly on a logarithmic scale.

Gradients shrink with the number of classes, most of all those of bounded losses: with 150 classes these need rates of
hundreds, where cross-entropy needs tens, and with 10 classes ones.
"""


@dataclass(frozen=True)
class Trial:
    """One point that was tried.

    Attributes:
        lr: learning rate.
        weight_decay: weight decay.
        accuracy: over the held-out rows of all folds.
        nll: mean negative log-likelihood of the same rows; infinite where a head diverged.
    """

    lr: float
    weight_decay: float
    accuracy: float
    nll: float


@dataclass(frozen=True)
class Tuned:
    """What cross-validation chose for a loss.

    Attributes:
        loss: the loss.
        best: the trial that won.
        trials: all trials, in the order of the points.
        folds: how many folds there were.
    """

    loss: LossSpec
    best: Trial
    trials: tuple[Trial, ...]
    folds: int

    def recipe(self, base: Recipe) -> Recipe:
        """The recipe with what was chosen."""
        return base.replace(lr=self.best.lr, weight_decay=self.best.weight_decay)


def choose_trial(trials: Sequence[Trial], rows: int, errors: float = 1.0) -> Trial:
    """The trial with the lowest NLL among those whose accuracy is that of the best, as far as so many rows can tell.

    Few rows cannot order trials by accuracy: among a few hundred, two points are a handful of rows. The NLL of the same
    rows tells more, and keeps heads that are hardly trained from being chosen by luck.

    Args:
        trials: what was tried; those that diverged are never chosen.
        rows: how many rows the accuracies are over.
        errors: standard errors of the best accuracy within which others count as equal; 0 for the highest accuracy.

    >>> hasty, done = Trial(0.1, 0.0, accuracy=0.78, nll=2.0), Trial(5.0, 0.0, accuracy=0.77, nll=0.9)
    >>> choose_trial([hasty, done], rows=400) is done, choose_trial([hasty, done], rows=40_000) is hasty
    (True, True)
    """
    finite = [trial for trial in trials if math.isfinite(trial.nll)]
    best = max(trial.accuracy for trial in finite)
    least = best - errors * math.sqrt(best * (1 - best) / rows)
    return min((trial for trial in finite if trial.accuracy >= least), key=lambda trial: (trial.nll, -trial.accuracy))


def stratified_folds(
    labels: Tensor, num_classes: int, seed: int, folds: int = FOLDS, classes: Sequence[str] | None = None
) -> Tensor:
    """The fold (n,) of each row: every class is spread over the folds as evenly as it can be.

    With fewer rows of a class than `folds`, there are as many folds as the smallest class has rows.

    Raises:
        DataError: a class with a single row, which cannot be both trained on and held out.
        ValueError: a label that is not one of the classes, or fewer than two folds.

    >>> stratified_folds(torch.tensor([0, 0, 1, 1, 1]), 2, seed=0).bincount().tolist()
    [3, 2]
    """
    counts = torch.bincount(labels, minlength=num_classes)
    if len(counts) > num_classes:
        raise ValueError(f"labels: expected 0 to {num_classes - 1} of {num_classes} classes, got {len(counts) - 1}")
    there = counts > 0
    smallest = int(counts[there].min())
    if smallest < 2:
        k = int((counts == 1).nonzero()[0])
        name = repr(classes[k]) if classes is not None else str(k)
        raise DataError(
            f"class {name} has one training sample, and cross-validation needs two of each class; add a sample, leave "
            "the class out, or set learning rate and weight decay yourself instead of tuning them"
        )
    used = min(folds, smallest)
    if used < 2:
        raise ValueError(f"folds: expected at least 2, got {folds}")
    found = torch.empty(len(labels), dtype=torch.long)
    draw, first = stream(seed, "folds"), 0
    for k in range(num_classes):
        members = (labels == k).nonzero().squeeze(1)
        places = torch.randperm(len(members), generator=draw)
        found[members[places]] = (torch.arange(len(members)) + first) % used
        first += len(members)  # what does not divide evenly falls on different folds for different classes
    return found


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What heads say of training rows that they did not see.

    Attributes:
        logits: (m, K).
        labels: (m,).
    """

    logits: Tensor
    labels: Tensor


def cross_fit_heads(
    problems: Sequence[HeadProblem], runs: Sequence[HeadRun], *, folds: int = FOLDS, most: int = MOST_CROSS_FITTED
) -> list[HeldOut | None]:
    """Logits of each run's own training rows, by heads of the same kind that were trained without them.

    The rows are dealt into stratified folds, and each fold is predicted by a head trained on the others: so a
    calibrator can be fitted on training labels alone, and none is lost to validation. Beyond `most` rows one fold is
    enough, and is the only one held out. All heads train together.

    Args:
        problems: what `HeadRun.problem` counts in.
        runs: the runs.
        folds: see `stratified_folds`.
        most: rows of a problem up to which every fold is held out.

    Returns:
        In the order of the runs; None for the runs of a problem that has a class with a single row.
    """
    parts: dict[tuple[int, int], list[tuple[int, Tensor]]] = {}  # of a problem and a seed: problem without, and fold
    inner: list[HeadProblem] = []
    for run in runs:
        if (run.problem, run.seed) in parts:
            continue
        own, mine = problems[run.problem], parts.setdefault((run.problem, run.seed), [])
        try:
            fold_of = stratified_folds(own.labels, own.num_classes, run.seed, folds)
        except DataError:
            continue
        index = torch.arange(len(own.features)) if own.index is None else own.index
        for fold in range(int(fold_of.max()) + 1 if len(own) <= most else 1):
            kept = fold_of != fold
            mine.append((len(inner), (~kept).nonzero().squeeze(1)))
            inner.append(HeadProblem(own.features, own.labels[kept], own.num_classes, index[kept]))
    asked = [(i, number, held) for i, run in enumerate(runs) for number, held in parts[run.problem, run.seed]]
    trained = train_heads(inner, [replace(runs[i], problem=number) for i, number, _ in asked], curves=False)
    together: dict[int, list[int]] = {}
    for place, (_, number, _) in enumerate(asked):
        together.setdefault(number, []).append(place)
    logits: dict[int, list[Tensor]] = {}
    labels: dict[int, list[Tensor]] = {}
    for places in together.values():
        i, _, held = asked[places[0]]
        own = problems[runs[i].problem]
        rows = own.rows(held)
        for place, values in zip(places, logits_of([trained[place].head for place in places], rows), strict=True):
            logits.setdefault(asked[place][0], []).append(values)
            labels.setdefault(asked[place][0], []).append(own.labels[held])
    return [HeldOut(torch.cat(logits[i]), torch.cat(labels[i])) if i in logits else None for i in range(len(runs))]


def points(space: dict[str, tuple[float, float]], trials: int) -> list[dict[str, float]]:
    """Points that fill a space evenly on a logarithmic scale, to four digits.

    The first number takes as many different values as there are trials, in even steps; the others follow the golden
    ratio, so that their values are spread as evenly, too.

    >>> points({"lr": (1.0, 100.0), "weight_decay": (0.01, 1.0)}, 2)
    [{'lr': 3.162, 'weight_decay': 0.1}, {'lr': 31.62, 'weight_decay': 0.01722}]
    """
    golden = 0.6180339887498949
    found = []
    for i in range(trials):
        places = [(i + 0.5) / trials, (0.5 + i * golden) % 1]
        found.append(
            {
                name: float(f"{math.exp(math.log(low) + place * math.log(high / low)):.4g}")
                for (name, (low, high)), place in zip(space.items(), places, strict=True)
            }
        )
    return found


def tune_heads(
    problem: HeadProblem,
    losses: Sequence[LossSpec],
    *,
    recipe: Recipe = HEAD_RECIPE,
    head: str = "linear",
    full_batch: bool = False,
    trials: int = TRIALS,
    folds: int = FOLDS,
    seed: int = 0,
    fold_of: Tensor | None = None,
    classes: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Tuned]:
    """Tune every loss with the same number of trials, all folds, trials and losses together.

    Args:
        problem: the training rows; no others are looked at.
        losses: what to tune.
        recipe: all fields but `lr` and `weight_decay`.
        head: "linear", "mlp", "cosine", or "projection" for SupCon.
        full_batch: minimise the full-data equation; the learning rate then changes nothing.
        trials: points per loss.
        folds: see `stratified_folds`.
        seed: of the folds, and of the trials' heads.
        fold_of: the fold (n,) of each row, where folds are given: rows that are views of one image must share one.
        classes: names of the classes, for errors.
        progress: called with the number of runs that are trained, and of all runs.
    """
    if trials < 1:
        raise ValueError(f"trials: expected at least 1, got {trials}")
    if fold_of is None:
        fold_of = stratified_folds(problem.labels, problem.num_classes, seed, folds, classes)
    used = int(fold_of.max()) + 1
    index = torch.arange(len(problem.features)) if problem.index is None else problem.index
    tried = points(SPACES[recipe.optimizer], trials)
    parts = [(index[fold_of != fold], (fold_of != fold)) for fold in range(used)]
    problems = [HeadProblem(problem.features, problem.labels[kept], problem.num_classes, rows) for rows, kept in parts]
    runs = [
        HeadRun(problem=fold, loss=loss, recipe=recipe.replace(**point), seed=seed, head=head, full_batch=full_batch)
        for fold in range(used)
        for loss in losses
        for point in tried
    ]
    if head == PROJECTION:
        trained = train_projections(problems, runs)
    else:
        trained = train_heads(problems, runs, curves=False, progress=progress)
    per_fold = len(losses) * trials
    right, nll = torch.zeros(per_fold, dtype=torch.float64), torch.zeros(per_fold, dtype=torch.float64)
    for fold in range(used):
        held = fold_of == fold
        mine = trained[fold * per_fold : (fold + 1) * per_fold]
        z = torch.stack(logits_of([one.head for one in mine], problem.features[index[held]]))  # (runs, m, K)
        y = problem.labels[held]
        right += (z.argmax(2) == y).sum(1)
        costs = -z.double().log_softmax(2).gather(2, y[None, :, None].expand(len(z), -1, 1)).sum((1, 2))
        nll += torch.where(costs.isfinite(), costs, torch.inf)
    found = []
    for i, loss in enumerate(losses):
        made = tuple(
            Trial(
                point["lr"], point["weight_decay"],
                float(right[i * trials + j]) / len(problem), float(nll[i * trials + j]) / len(problem),
            )
            for j, point in enumerate(tried)
        )  # fmt: skip
        if not any(math.isfinite(trial.nll) for trial in made):
            raise ValueError(f"loss {loss}: every one of the {trials} trials diverged; check the features")
        found.append(Tuned(loss, choose_trial(made, len(problem)), made, used))
    return found
