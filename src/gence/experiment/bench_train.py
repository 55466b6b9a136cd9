"""What a training step costs in a cohort, and how that compares with the usual way of training one run."""

from __future__ import annotations

import itertools
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gence.experiment.cohort import Cohort, CohortProgress
from gence.experiment.device import resolve_device
from gence.experiment.problem import ProblemLoader
from gence.experiment.recipe import RECIPES, Recipe
from gence.experiment.spec import LossSpec, RunSpec, Subset
from gence.models import create_model

LOSSES = ("gence", "ce", "generalized_ce", "focal", "mae", "brier", "gence(anchor=0.1)")


def bench_train(
    models: Sequence[str] = ("vgg19", "resnet50"),
    *,
    data: str = "cifar10",
    n: int = 2000,
    cohort_sizes: Sequence[int] = (1, 4, 8, 14),
    compile: bool = True,
    epochs: int = 6,
    recipe: Recipe = RECIPES["paper"],
    device: str = "auto",
    usual: bool = True,
) -> dict[str, Any]:
    """Milliseconds per training step and run, for cohorts of several sizes; data and augmentation included.

    The first epoch (compilation, capture) is left out; the others are timed one by one and their median is reported.
    ``usual`` also times the same recipe the usual way: per-image transforms in worker processes, eager autocast, one
    run, batch by batch.
    """
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
        "way": "cohort" + (" compiled" if compile else ""),
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
    from torchvision.transforms import v2

    spec = RunSpec(data=data, subset=Subset(n=n), model=model_name, loss=LossSpec(name="ce"), recipe=recipe, seed=0)
    problem = loader.load(spec)
    images, labels = problem.train.images.cpu(), problem.train.labels.cpu()
    K = len(problem.classes)
    per_image = v2.Compose([
        v2.ToPILImage(),
        v2.RandomCrop(images.shape[-1], padding=recipe.crop_padding),
        v2.RandomHorizontalFlip(),
        v2.RandAugment(recipe.randaugment_ops, recipe.randaugment_magnitude),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(problem.mean.tolist(), problem.std.tolist()),
    ])  # fmt: skip
    mix = v2.RandomChoice([v2.MixUp(alpha=recipe.mixup_alpha or 0.2, num_classes=K),
                           v2.CutMix(alpha=recipe.cutmix_alpha or 1.0, num_classes=K)])  # fmt: skip
    dataset = _ImageDataset(images, labels, per_image)
    workers = min(8, torch.get_num_threads())
    batches = torch.utils.data.DataLoader(
        dataset, recipe.batch_size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=True,
        persistent_workers=workers > 0,
    )  # fmt: skip
    model = create_model(model_name, num_classes=K, image_size=images.shape[-1], seed=0).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    criterion = torch.nn.CrossEntropyLoss()
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        for batch in batches:
            x, y = (part.to(device, non_blocking=True) for part in mix(*batch))
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        if device.type == "cuda":
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


class _ImageDataset(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, images: Tensor, labels: Tensor, transform: Any) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.transform(self.images[i]), self.labels[i]


def _environment(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}
