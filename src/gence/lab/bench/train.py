"""What a training step costs in a cohort, and how that compares with the usual way of training one run."""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gence.lab.bench.timing import summarise
from gence.lab.models import create_model
from gence.lab.spec import RECIPES, LossSpec, Recipe, RunSpec, Subset
from gence.lab.store import environment_record
from gence.lab.train import Cohort, CohortProgress, Problem, ProblemLoader, resolve_device, uses_bf16
from gence.losses import CrossEntropyLoss, GenCELoss

Step = Callable[[], object]


def bench_step(
    models: Sequence[str] = ("resnet50", "vgg19"),
    *,
    num_classes: int = 100,
    image_size: int = 32,
    batch_size: int = 100,
    pairs: int = 60,
    inner: int = 10,
    device: str = "auto",
    out: Path | None = None,
) -> dict[str, Any]:
    """Time of a training step (forward, loss, backward, SGD) with GenCE minus that with cross-entropy.

    Both losses train the same network in turns. Of each pair of turns the relative difference is kept; the interval is
    the 95 % bootstrap interval of their mean. On a GPU the step is timed as a replayed graph and eagerly, under bf16
    autocast; on a CPU eagerly in float32.

    Args:
        models: names of networks.
        num_classes: K.
        image_size: side of the images.
        batch_size: images in a step.
        pairs: pairs of turns.
        inner: steps in a turn.
        device: "auto", "cpu" or "cuda".
        out: where the record is written, as JSON.
    """
    place = resolve_device(device)
    rows = []
    for name in models:
        model = create_model(name, num_classes=num_classes, image_size=image_size, seed=0).to(place)
        images = torch.randn(batch_size, 3, image_size, image_size, device=place)
        labels = torch.randint(0, num_classes, (batch_size,), device=place)
        steps = [_step(model, criterion, images, labels) for criterion in (CrossEntropyLoss(), GenCELoss())]
        ways = {"eager": steps}
        if place.type == "cuda":
            ways = {"graph": [_captured(model, step) for step in steps], "eager": steps}
        for way, (ce, gence) in ways.items():
            repeats = inner if way == "graph" else max(1, inner // 3)
            rows.append({"model": name, "way": way, **_paired(ce, gence, pairs, repeats, place)})
    environment = {**environment_record(device), "torch": torch.__version__}
    record = {"bench": "step", "environment": environment, "batch_size": batch_size, "K": num_classes, "rows": rows}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _step(model: nn.Module, criterion: nn.Module, images: Tensor, labels: Tensor) -> Step:
    # A learning rate at which nothing moves: both losses then train one and the same network.
    optimizer = torch.optim.SGD(model.parameters(), 1e-12, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=images.is_cuda):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def _captured(model: nn.Module, step: Step) -> Step:
    """The step as a CUDA graph, which leaves the device's time and takes away the host's."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    for parameter in model.parameters():
        parameter.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _paired(ce: Step, gence: Step, pairs: int, inner: int, device: torch.device) -> dict[str, Any]:
    def turn(step: Step) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(inner):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / inner * 1e3

    for step in (ce, gence):
        turn(step)
    of_ce, of_gence = [], []
    for pair in range(pairs):
        if pair % 2:  # either one goes first as often as the other
            of_gence.append(turn(gence))
            of_ce.append(turn(ce))
        else:
            of_ce.append(turn(ce))
            of_gence.append(turn(gence))
    percent = [100 * (b - a) / a for a, b in zip(of_ce, of_gence, strict=True)]
    low, high = bootstrap_interval(percent)
    return {
        "ce_ms": summarise(of_ce).as_dict(),
        "gence_ms": summarise(of_gence).as_dict(),
        "difference_percent": sum(percent) / len(percent),
        "low_percent": low,
        "high_percent": high,
        "pairs": pairs,
    }


def bootstrap_interval(values: Sequence[float], resamples: int = 4000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean.

    >>> low, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0])
    >>> 1.0 <= low < 2.5 < high <= 4.0
    True
    """
    data = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, len(data), (resamples, len(data)), generator=generator)
    low, high = data[drawn].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


LOSSES = ("gence", "ce", "generalized_ce", "focal", "mae", "brier", "gence(anchor=0.1)")


def bench_train(
    models: Sequence[str] = ("vgg19", "resnet50"),
    *,
    data: str = "cifar10",
    n: int = 2000,
    cohort_sizes: Sequence[int] = (1, 8, 14, 21),
    compile: bool = False,
    epochs: int = 6,
    recipe: Recipe = RECIPES["paper"],
    device: str = "auto",
    usual: bool = True,
) -> dict[str, Any]:
    """Milliseconds per training step and run, for cohorts of several sizes; data and augmentation included.

    The first epoch (compilation, capture) is skipped; the others are timed one by one and their median is reported.
    ``usual`` also times the same recipe the usual way: per-image transforms in worker processes, eager autocast, one
    run, batch by batch.
    """
    if epochs < 2:
        raise ValueError(f"epochs is {epochs}; expected at least 2, because the first is not counted")
    place = resolve_device(device)
    loader = ProblemLoader(place)
    rows: list[dict[str, Any]] = []
    for model in models:
        fastest = None
        for size in cohort_sizes:
            row = _bench_cohort(model, data, n, size, compile, epochs, recipe, place, loader)
            rows.append(row)
            fastest = min(fastest or row["ms_per_step_and_run"], row["ms_per_step_and_run"])
        if usual:
            row = _bench_usual(model, data, n, recipe, place, loader)
            row["runs_per_hour_ratio"] = row["ms_per_step_and_run"] / fastest if fastest else None
            rows.append(row)
    return {"bench": "train", "environment": _environment(place), "data": data, "n": n, "rows": rows}


def _bench_cohort(
    model: str,
    data: str,
    n: int,
    size: int,
    compile: bool,
    epochs: int,
    recipe: Recipe,
    device: torch.device,
    loader: ProblemLoader,
) -> dict[str, Any]:
    short = recipe.replace(epochs=epochs)
    pairs = itertools.islice(itertools.cycle(itertools.product(range(5), LOSSES)), size)
    specs = [
        RunSpec(data=data, subset=Subset(n=n), model=model, loss=LossSpec.parse(loss), recipe=short, seed=seed)
        for seed, loss in pairs
    ]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    cohort = Cohort(specs, device, compile=compile, loader=loader)
    ends: list[float] = []

    def note(_: CohortProgress) -> None:
        ends.append(time.perf_counter())

    cohort.train(note, None, None, 1e9)
    seconds = [b - a for a, b in itertools.pairwise(ends)]
    per_step = [s / cohort.trainees[0].feed.steps / size * 1e3 for s in seconds]
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        "model": model,
        "way": "cohort, compiled" if compile and device.type == "cuda" else "cohort",
        "runs": size,
        "ms_per_step_and_run": statistics.median(per_step),
        "fastest": min(per_step),
        "slowest": max(per_step),
        "start_s": ends[0] - began,
        "memory_gib": memory,
    }


def _bench_usual(
    model_name: str, data: str, n: int, recipe: Recipe, device: torch.device, loader: ProblemLoader
) -> dict[str, Any]:
    """The usual way: a DataLoader with workers, per-image transforms, eager autocast, one run."""
    spec = RunSpec(data=data, subset=Subset(n=n), model=model_name, loss=LossSpec(name="ce"), recipe=recipe, seed=0)
    problem = loader.load(spec)
    images, labels = problem.train.images.cpu(), problem.train.labels.cpu()
    K = len(problem.classes)
    on_gpu = device.type == "cuda"
    workers = min(8, os.cpu_count() or 1)
    batches = torch.utils.data.DataLoader(
        _ImageDataset(images, labels, _per_image_transform(recipe, problem)),
        min(recipe.batch_size, len(labels)),
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=on_gpu,
        persistent_workers=True,
    )
    mix = _batch_transform(recipe, K)
    model = create_model(model_name, num_classes=K, in_channels=images.shape[1], image_size=images.shape[-1], seed=0)
    model.to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.01, momentum=recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov
    )
    criterion = torch.nn.CrossEntropyLoss()
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        for batch in batches:
            x, y = (part.to(device, non_blocking=True) for part in mix(*batch))
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=uses_bf16(spec, device)):
                loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    per_step = [s / len(batches) * 1e3 for s in seconds[1:]]
    return {
        "model": model_name,
        "way": f"usual ({workers} workers)",
        "runs": 1,
        "ms_per_step_and_run": statistics.median(per_step),
        "fastest": min(per_step),
        "slowest": max(per_step),
    }


def _per_image_transform(recipe: Recipe, problem: Problem) -> Callable[[Tensor], Tensor]:
    from torchvision.transforms import v2

    steps: list[Any] = [v2.ToPILImage()]
    if recipe.crop_padding:
        steps.append(v2.RandomCrop(problem.train.images.shape[-1], padding=recipe.crop_padding))
    if recipe.flip:
        steps.append(v2.RandomHorizontalFlip())
    if recipe.randaugment_ops:
        steps.append(v2.RandAugment(recipe.randaugment_ops, recipe.randaugment_magnitude))
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    steps.append(v2.Normalize(problem.mean.tolist(), problem.std.tolist()))
    composed: Callable[[Tensor], Tensor] = v2.Compose(steps)
    return composed


def _batch_transform(recipe: Recipe, num_classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    from torchvision.transforms import v2

    kinds: list[Any] = []
    if recipe.mixup_alpha:
        kinds.append(v2.MixUp(alpha=recipe.mixup_alpha, num_classes=num_classes))
    if recipe.cutmix_alpha:
        kinds.append(v2.CutMix(alpha=recipe.cutmix_alpha, num_classes=num_classes))
    choose = v2.RandomChoice(kinds) if kinds else None

    def transform(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if choose is None or float(torch.rand(())) >= recipe.mix_probability:
            return images, labels
        mixed: tuple[Tensor, Tensor] = choose(images, labels)
        return mixed

    return transform


class _ImageDataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, images: Tensor, labels: Tensor, transform: Callable[[Tensor], Tensor]) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.images[i]), self.labels[i]


def _environment(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a benchmark's record as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
