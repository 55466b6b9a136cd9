"""What the loss costs in a whole training step: GenCE against cross-entropy, paired, with a confidence interval."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gence.experiment.bench_timing import summarise
from gence.experiment.device import resolve_device
from gence.experiment.environment import environment_record
from gence.losses import CrossEntropyLoss, GenCELoss
from gence.models import create_model

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
