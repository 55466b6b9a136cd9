"""A real trainer small enough to be killed often: softmax regression in NumPy, decided by the spec alone."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import Recipe
from gence.lab.spec.run import RunSpec, Subset
from gence.lab.store.record import RunResult

CLASSES, FEATURES, ROWS = 4, 8, 120


@dataclass(frozen=True)
class Epoch:
    epoch: int
    epochs: int


def make_specs(seeds: int, losses=("ce", "gence"), epochs: int = 20, **changes) -> list[RunSpec]:
    recipe = Recipe(epochs=epochs, batch_size=10, lr=0.5)
    base = RunSpec(
        data="blobs", subset=Subset(n=40), model="linear", loss=LossSpec(name="ce"), recipe=recipe, seed=0
    ).replace(**changes)
    return [base.replace(loss=loss, seed=seed) for loss in losses for seed in range(seeds)]


def train(specs, *, device="auto", on_epoch=None, should_stop=None, workdir=None, cache_dir=None):
    """Train one after the other; `TRAINED_LOG` names a file that lists what was trained."""
    results = []
    for spec in specs:
        if should_stop is not None and should_stop():
            results.append(None)
            continue
        results.append(_train(spec, on_epoch, should_stop))
        if "TRAINED_LOG" in os.environ:
            with Path(os.environ["TRAINED_LOG"]).open("a") as log:
                log.write(spec.key + "\n")
    return results


def crash_on_seed_1(specs, **options):
    """Kill the process, as a driver fault or the system's memory killer would."""
    if any(spec.seed == 1 and spec.loss.name == "ce" for spec in specs):
        os.kill(os.getpid(), signal.SIGKILL)
    return train(specs, **options)


def deaf(specs, **options):
    """Work for minutes without asking whether to stop, as a long epoch does."""
    time.sleep(300)
    return train(specs, **options)


def full_disk(specs, **options):
    """Find no room, as a trainer that writes checkpoints into the store may."""
    from gence.lab.store.files import StoreError

    raise StoreError("no space left to write anything")


def _train(spec: RunSpec, on_epoch, should_stop) -> RunResult | None:
    started = time.perf_counter()
    rng = np.random.default_rng(spec.seed)
    label = np.arange(ROWS) % CLASSES
    x = rng.normal(size=(ROWS, FEATURES)) + 1.5 * np.eye(CLASSES, FEATURES)[label]
    weight = np.zeros((FEATURES, CLASSES))
    target = np.eye(CLASSES)[label]
    anchor = {"ce": 1.0, "gence": float(spec.loss.params.get("anchor", 0))}[spec.loss.name]
    curve = []
    for epoch in range(spec.recipe.epochs):
        p = np.exp(x @ weight)
        p /= p.sum(1, keepdims=True)
        # GenCE's gradient: cross-entropy's, plus the pull of the batch's own marginal (none at anchor 1).
        ratio = target.sum(0) / p.sum(0)
        pull = p * (ratio - (p * ratio).sum(1, keepdims=True))
        weight -= spec.recipe.lr * x.T @ (p - target + (1 - anchor) * pull) / ROWS
        curve.append(float(-np.log(p[np.arange(ROWS), label]).mean()))
        time.sleep(float(os.environ.get("EPOCH_S", "0")))  # stands for the work of a larger network
        if on_epoch is not None:
            on_epoch(Epoch(epoch + 1, spec.recipe.epochs))
        if should_stop is not None and should_stop() and epoch + 1 < spec.recipe.epochs:
            return None
    return RunResult(
        metrics={"accuracy": float((p.argmax(1) == label).mean()), "nll": curve[-1]},
        curves={"epoch": list(range(1, spec.recipe.epochs + 1)), "train_loss": curve},
        tables={"marginal": p.mean(0)},
        predictions={"predicted": p.argmax(1).astype(np.uint16), "confidence": p.max(1).astype(np.float16)},
        wall_s=time.perf_counter() - started,
    )
