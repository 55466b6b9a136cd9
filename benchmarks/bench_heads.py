"""How fast heads on cached features train together, and whether they are what scikit-learn makes of the same features.

    python benchmarks/bench_heads.py [--cifar cifar10-train.zip cifar10-test.zip] [--rows 200000]
                                     [--output results/bench/heads-cpu.json]

"together" is `train_heads` on all runs; "plain" is one run after the other in a PyTorch loop with the same steps, in
two forms: rows indexed out of a tensor (as fast as such a loop gets), and the usual DataLoader over a TensorDataset.
The rounds alternate, so that whatever else the machine does falls on all; ratios are those of the best rounds. They are
given by the clock and in processor seconds, because the clock says little on a busy machine: there the plain loops have
one thread, so that none waits in a loop for another ("default_threads" is the first of them with as many threads as
torch begins with, by the clock). "products" is what the matrix products of the steps alone take.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from gence.lab.data import balanced_subset, load_images
from gence.lab.features import HEAD_RECIPE, HeadProblem, HeadRun, embed, load_encoder, train_heads, tune_heads
from gence.lab.features.heads.stacks import product
from gence.lab.spec import LossSpec, stream
from gence.lab.store import environment_record
from gence.losses import create_loss

LOSSES = ("ce", "gence", "gence(anchor=0.1)", "mae", "brier", "generalized_ce", "focal")
SEEDS = range(5)


def synthetic(n: int, features: torch.Tensor | None = None) -> HeadProblem:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 10
    centres = torch.randn(10, 1280, generator=draw)
    if features is None:
        features = 0.3 * centres[labels] + torch.randn(n, 1280, generator=draw)
    return HeadProblem(features, labels, 10)


def plain(problem: HeadProblem, run: HeadRun, loader: bool, epochs: int) -> torch.Tensor:
    """One run by torch.optim; the weights (D, K)."""
    recipe, x, y = run.recipe, problem.scaling(problem.features), problem.labels
    head = torch.nn.Linear(problem.width, problem.num_classes)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    groups = [{"params": [head.weight], "weight_decay": recipe.weight_decay}, {"params": [head.bias]}]
    optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov)
    steps = recipe.epochs * (len(y) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / steps)) if step < steps else 0.0
    )
    loss = create_loss(run.loss.name, **run.loss.params)
    batches = DataLoader(TensorDataset(x, y), recipe.batch_size, shuffle=True, drop_last=True) if loader else None
    for epoch in range(epochs):
        if batches is None:
            order = torch.randperm(len(y), generator=stream(run.seed, "order", epoch)).split(recipe.batch_size)
        for xb, yb in batches or ((x[rows], y[rows]) for rows in order):
            optimizer.zero_grad()
            loss(head(xb), yb).backward()
            optimizer.step()
            schedule.step()
    return head.weight.detach().T


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    began, worked = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - worked


def on_one_thread(call: Callable[[], object]) -> tuple[float, float]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return seconds(call)
    finally:
        torch.set_num_threads(threads)


def products_alone(steps: int) -> None:
    """The two products of a step of all runs that share a seed."""
    x, weights = torch.randn(100, 1280), torch.randn(10 * len(LOSSES), 1280)
    dz = torch.randn(10 * len(LOSSES), 100)
    for _ in range(steps):
        product(weights, x)
        product(dz, x.mT)


def side_by_side(rounds: int) -> dict[str, Any]:
    problem = synthetic(2000)
    problem.scaling  # noqa: B018  (computed once, outside the clock, for all sides)
    runs = [HeadRun(loss=LossSpec.parse(loss), seed=seed) for seed in SEEDS for loss in LOSSES]
    first = train_heads([problem], runs, curves=False)
    again = train_heads([problem], runs, curves=False)
    bitwise = all(
        torch.equal(a.head.tensors["weight"], b.head.tensors["weight"]) for a, b in zip(first, again, strict=True)
    )
    alone, loop = 0.0, 0.0
    for i in range(len(LOSSES)):  # one seed of every loss
        (one,) = train_heads([problem], [runs[i]], curves=False)
        alone = max(alone, float((one.head.tensors["weight"] - first[i].head.tensors["weight"]).abs().max()))
        found = plain(problem, runs[i], False, HEAD_RECIPE.epochs)
        loop = max(loop, float((found - first[i].head.tensors["weight"]).abs().max()))
    together, indexed, loaded, products, threaded = [], [], [], [], []
    part = 5  # epochs of the plain loops that are timed: their steps are alike, and 50 would take minutes
    times = HEAD_RECIPE.epochs / part * len(SEEDS)
    for _ in range(rounds):
        together.append(seconds(lambda: train_heads([problem], runs, curves=False)))
        for loader, found_times in ((False, indexed), (True, loaded)):
            took = on_one_thread(lambda: [plain(problem, run, loader, part) for run in runs[: len(LOSSES)]])  # noqa: B023
            found_times.append((took[0] * times, took[1] * times))
        took = seconds(lambda: [plain(problem, run, False, part) for run in runs[: len(LOSSES)]])
        threaded.append((took[0] * times, took[1] * times))
        took = on_one_thread(lambda: products_alone(20 * part))
        products.append((took[0] * times, took[1] * times))
    with_curves = seconds(lambda: train_heads([problem], runs))
    ratios = {
        f"times_faster_than_{name}_{unit}": round(least(other, i) / least(together, i), 1)
        for name, other in (("indexed", indexed), ("data_loader", loaded))
        for i, unit in enumerate(("by_clock", "in_processor_time"))
    }
    ratios["times_faster_than_indexed_default_threads_by_clock"] = round(least(threaded, 0) / least(together, 0), 1)
    return {
        "runs": len(runs), "rows": 2000, "features": 1280, "classes": 10, "epochs": HEAD_RECIPE.epochs, "batch": 100,
        "together": shown(together), "with_curves_s": round(with_curves[0], 2),
        "with_curves_processor_s": round(with_curves[1], 2), "plain_indexed_default_threads": shown(threaded),
        "plain_indexed": shown(indexed), "plain_data_loader": shown(loaded), "products_alone": shown(products),
        "plain_timed_epochs": part, **ratios,
        "times_faster_if_only_products": {
            "indexed": round(least(indexed, 1) / least(products, 1), 1),
            "data_loader": round(least(loaded, 1) / least(products, 1), 1),
        },
        "share_of_products": round(least(products, 1) / least(together, 1), 2),
        "load_average": round(os.getloadavg()[0], 1),
        "bit_identical": bitwise, "largest_difference_alone": alone, "largest_difference_plain_loop": loop,
    }  # fmt: skip


def least(times: list[tuple[float, float]], i: int) -> float:
    return min(pair[i] for pair in times)


def shown(times: list[tuple[float, float]]) -> dict[str, float]:
    return {
        "best_s": round(least(times, 0), 2), "best_processor_s": round(least(times, 1), 2),
        "median_processor_s": round(statistics.median(pair[1] for pair in times), 2), "n": len(times),
    }  # fmt: skip


def with_scikit_learn(train_zip: str, test_zip: str) -> dict[str, Any]:
    """CIFAR-10 with 20 labels per class: the full batch against LogisticRegression, and tuned heads."""
    from sklearn.linear_model import LogisticRegression

    train, test = load_images(train_zip, "train"), load_images(test_zip, "test")
    train = train.subset(balanced_subset(train.labels, 200, seed=0))
    test = test.subset(balanced_subset(test.labels, 2000, seed=0))
    encoder = load_encoder()
    x, held = (embed(images, encoder, progress=True).rows() for images in (train, test))
    problem = HeadProblem(x, train.labels, 10)
    scaled, scaled_held = problem.scaling(x).double().numpy(), problem.scaling(held).double().numpy()
    found: dict[str, Any] = {"test_images": len(test), "strengths": []}
    for decay in (1e-2, 1e-3, 1e-4):
        recipe = HEAD_RECIPE.replace(epochs=1000, weight_decay=decay)
        run = HeadRun(loss=LossSpec.parse("ce"), recipe=recipe, full_batch=True)
        (trained,) = train_heads([problem], [run])
        C = 1 / (decay * len(train))
        model = LogisticRegression(C=C, max_iter=10_000, tol=1e-8).fit(scaled, train.labels)
        loss = torch.nn.functional.cross_entropy(trained.head.logits(x).double(), train.labels)
        expected = torch.nn.functional.nll_loss(torch.tensor(model.predict_log_proba(scaled)), train.labels)
        accuracy = float((trained.head.logits(held).argmax(1) == test.labels).double().mean())
        found["strengths"].append(
            {"weight_decay": decay, "C": C, "accuracy": round(100 * accuracy, 2),
             "scikit_learn_accuracy": round(100 * model.score(scaled_held, test.labels), 2),
             "loss": float(loss), "loss_difference": abs(float(loss - expected))}
        )  # fmt: skip
    began = time.perf_counter()
    tuned = tune_heads(problem, [LossSpec.parse(loss) for loss in LOSSES])
    found["tuning_s"] = round(time.perf_counter() - began, 2)
    runs = [HeadRun(loss=one.loss, recipe=one.recipe(HEAD_RECIPE), seed=seed) for one in tuned for seed in SEEDS]
    trained_heads = train_heads([problem], runs)
    right = [float((one.head.logits(held).argmax(1) == test.labels).double().mean()) for one in trained_heads]
    found["tuned"] = {
        str(one.loss): {
            "lr": one.best.lr, "weight_decay": one.best.weight_decay,
            "cross_validated": round(100 * one.best.accuracy, 2),
            "accuracy": round(100 * statistics.mean(right[i * len(SEEDS) : (i + 1) * len(SEEDS)]), 2),
        }
        for i, one in enumerate(tuned)
    }  # fmt: skip
    return found


def resident(rows: int) -> dict[str, Any]:
    """The most memory that a process of its own needs for heads on many rows mapped from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        mapped = np.lib.format.open_memmap(path, "w+", np.float16, (rows, 1280))
        problem = synthetic(2000)
        for start in range(0, rows, 2000):
            mapped[start : start + 2000] = problem.features[: rows - start].numpy()
        mapped.flush()
        del mapped
        command = [sys.executable, __file__, "--mapped", str(path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(said.stdout)
    return measured


def on_mapped(path: str) -> None:
    features = torch.from_numpy(np.load(path, mmap_mode="c"))
    problem = HeadProblem(features, torch.arange(len(features)) % 10, 10)
    recipe = HEAD_RECIPE.replace(epochs=1)
    runs = [HeadRun(loss=LossSpec.parse(loss), seed=seed, recipe=recipe) for loss in LOSSES for seed in SEEDS]
    took, worked = seconds(lambda: train_heads([problem], runs))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"rows": len(features), "runs": len(runs), "epochs": 1, "seconds": round(took, 1),
                      "processor_s": round(worked, 1), "resident_gib": round(peak, 2)}))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar", nargs=2, metavar=("TRAIN", "TEST"))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mapped", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.mapped:
        on_mapped(arguments.mapped)
        return
    found: dict[str, Any] = {"what": "heads", "environment": environment_record(), "threads": torch.get_num_threads()}
    found["side_by_side"] = side_by_side(arguments.rounds)
    found["memory"] = resident(arguments.rows)
    if arguments.cifar:
        found["cifar10_20_per_class"] = with_scikit_learn(*arguments.cifar)
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
