"""What the loss costs: ours against cross-entropy and against the plain implementation, eager and compiled."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gence.lab.bench.timing import Times, copy_bandwidth, summarise, time_on_gpu, time_on_wall, time_once
from gence.lab.store import environment_record
from gence.lab.train import resolve_device
from gence.losses import gen_cross_entropy, set_backend

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """A batch of ``n`` rows of ``K`` logits."""

    n: int
    K: int
    dtype: torch.dtype = torch.bfloat16

    @property
    def bytes(self) -> int:
        """Size of the logits."""
        return self.n * self.K * self.dtype.itemsize


GPU_SHAPES = (
    Shape(100, 10, torch.float32),
    Shape(100, 100, torch.float32),
    Shape(4096, 1000),
    Shape(8192, 21841),
    Shape(16384, 128256),
)
CPU_SHAPES = tuple(
    Shape(n, K, torch.float32) for n, K in ((100, 10), (100, 100), (512, 1000), (4096, 1000), (2048, 21841))
)
_LAUNCH_BOUND = 1 << 23  # logits up to which the host's time counts as well


@dataclass(frozen=True)
class _Provider:
    name: str
    loss: Loss
    compiled: bool = False
    backend: str = "auto"


def bench_loss(
    shapes: Sequence[Shape] | None = None,
    device: str = "auto",
    out: Path | None = None,
    quick: bool = False,
    compile: bool = True,
    repeats: int = 1,
) -> dict[str, Any]:
    """Forward, backward and both, for every provider and shape, in one run.

    On a GPU, times are device events on a cold cache (flushed, inputs in rotation) and on a hot one; small shapes also
    have the wall time, which is what their launches cost, and the time of a captured graph. Eager providers take turns
    for the wall time, and all do on a CPU. ``ratio`` is to ``F.cross_entropy``: on a GPU the median over the rounds, on
    a CPU that of the shortest times, which other processes disturb the least; ``cpu_ratio`` is that of the processor's
    time, which on one thread they hardly disturb at all.

    Args:
        shapes: by default those of the paper, ImageNet, ImageNet-21k and a large vocabulary.
        device: "auto", "cpu" or "cuda".
        out: where the record is written, as JSON.
        quick: a third of the measuring time, and no separate forward and backward.
        compile: whether to time the compiled providers too.
        repeats: how often all is measured on a CPU; of each row the measurement with the median ratio is kept, and
            the ``ratios`` of all.

    Returns:
        The record: environment, copy bandwidth measured in the same run, and one row for each shape and provider.
    """
    place = resolve_device(device)
    on_gpu = place.type == "cuda"
    if shapes is None:
        shapes = GPU_SHAPES if on_gpu else CPU_SHAPES
    seconds = 0.05 if quick else 0.15
    bandwidth = copy_bandwidth(place, 1 << 30 if on_gpu else 1 << 26)
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        providers = _providers(compile)
        if on_gpu:
            measured = _on_gpu(shape, providers, seconds, quick)
        else:
            measured = _typical([_on_cpu(shape, providers, seconds) for _ in range(repeats)])
        for row in measured:
            moved = 3 * shape.bytes  # logits read twice, gradient written once
            milliseconds = row["both_cold_ms"]["median"] if on_gpu else row["both_ms"]["median"]
            row["percent_of_copy"] = 100 * moved / (milliseconds / 1e3) / bandwidth
        rows += measured
    environment = {**environment_record(device), "torch": torch.__version__}
    if not on_gpu:
        environment["device"] = f"cpu, {torch.get_num_threads()} threads"
    record = {"bench": "loss", "environment": environment, "copy_gb_per_s": bandwidth / 1e9, "rows": rows}
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _providers(compile: bool) -> list[_Provider]:
    def ours(z: Tensor, y: Tensor) -> Tensor:
        return gen_cross_entropy(z, y)

    def anchored(z: Tensor, y: Tensor) -> Tensor:
        return gen_cross_entropy(z, y, anchor=0.1)

    def plain(z: Tensor, y: Tensor) -> Tensor:
        return gen_cross_entropy(z, y)

    found = [
        _Provider("cross_entropy", F.cross_entropy),
        _Provider("GenCE", ours),
        _Provider("GenCE, anchor 0.1", anchored),
        _Provider("GenCE plain", plain, backend="torch"),
    ]
    if compile:
        found += [
            _Provider("cross_entropy, compiled", torch.compile(F.cross_entropy, dynamic=False), compiled=True),
            _Provider("GenCE, compiled", torch.compile(ours, dynamic=False), compiled=True),
            _Provider("GenCE, anchor 0.1, compiled", torch.compile(anchored, dynamic=False), compiled=True),
            _Provider("GenCE plain, compiled", torch.compile(plain, dynamic=False), compiled=True, backend="torch"),
        ]
    if importlib.util.find_spec("liger_kernel") is not None:
        found.append(_Provider("Liger cross_entropy", _liger()))
    return found


def _liger() -> Loss:
    from liger_kernel.transformers.functional import liger_cross_entropy

    def loss(z: Tensor, y: Tensor) -> Tensor:
        # Liger writes the gradient over its input, so it gets a copy: that is the price of keeping the logits.
        value: Tensor = liger_cross_entropy(z.clone(), y)
        return value

    return loss


def _row(shape: Shape, provider: _Provider) -> dict[str, Any]:
    return {"n": shape.n, "K": shape.K, "dtype": str(shape.dtype).removeprefix("torch."), "provider": provider.name}


def _on_gpu(shape: Shape, providers: Sequence[_Provider], seconds: float, quick: bool) -> list[dict[str, Any]]:
    sets = max(2, min(8, (128 << 20) // shape.bytes))
    batches = [_batch(shape, torch.device("cuda"), seed) for seed in range(sets)]
    rows = []
    for provider in providers:
        torch.compiler.reset()
        with set_backend(provider.backend):
            row = _row(shape, provider)
            row["extra_mib"] = _extra_memory(shape, provider.loss, batches[0])
            row |= {name: times.as_dict() for name, times in _gpu_times(provider.loss, batches, seconds, quick).items()}
            if shape.n * shape.K <= _LAUNCH_BOUND:
                if provider.compiled:
                    both = _both(provider.loss, batches)
                    row["both_wall_ms"] = time_on_wall(both, seconds=seconds, synchronise=True, inner=100).as_dict()
                else:
                    row["both_graph_ms"] = _captured(provider.loss, batches[0], seconds).as_dict()
        rows.append(row)
    if shape.n * shape.K <= _LAUNCH_BOUND:
        eager = [(row, provider) for row, provider in zip(rows, providers, strict=True) if not provider.compiled]
        for (row, _), measured in zip(
            eager, _in_turns([p for _, p in eager], batches, 7 if quick else 21), strict=True
        ):
            row |= measured
    return rows


def _in_turns(
    providers: Sequence[_Provider], batches: Sequence[tuple[Tensor, Tensor]], rounds: int
) -> list[dict[str, Any]]:
    """Wall times and their ratios to the first provider's, round by round, as what else a host does changes."""
    lists: list[list[float]] = [[] for _ in providers]
    for _ in range(rounds):
        for provider, times in zip(providers, lists, strict=True):
            with set_backend(provider.backend):
                both = _both(provider.loss, batches)
                both(0)
                torch.cuda.synchronize()
                times.append(time_once(both, 50, synchronise=True))
    return [
        {
            "both_wall_ms": summarise(times).as_dict(),
            "ratio": summarise([own / ce for own, ce in zip(times, lists[0], strict=True)]).median,
        }
        for times in lists
    ]


def _gpu_times(loss: Loss, batches: Sequence[tuple[Tensor, Tensor]], seconds: float, quick: bool) -> dict[str, Times]:
    both = _both(loss, batches)
    hot = _both(loss, batches[:1])
    found = {
        "both_cold_ms": time_on_gpu(both, seconds=seconds, cold=True),
        "both_hot_ms": time_on_gpu(hot, seconds=seconds, cold=False),
    }
    if quick:
        return found
    kept: list[tuple[Tensor, Tensor]] = []

    def forward(i: int) -> object:
        z, y = batches[i % len(batches)]
        return loss(z, y)

    def prepare(i: int) -> None:
        z, y = batches[i % len(batches)]
        kept[:] = [(loss(z, y), z)]

    def backward(_: int) -> object:
        value, z = kept[0]
        return torch.autograd.grad(value, z)

    found["forward_cold_ms"] = time_on_gpu(forward, seconds=seconds, cold=True)
    found["backward_cold_ms"] = time_on_gpu(backward, seconds=seconds, cold=True, prepare=prepare)
    return found


def _on_cpu(shape: Shape, providers: Sequence[_Provider], seconds: float) -> list[dict[str, Any]]:
    batches = [_batch(shape, torch.device("cpu"), seed) for seed in range(2)]
    inner = max(1, min(20, 200_000 // (shape.n * shape.K)))  # short, so that the least of them was not disturbed
    lists: list[list[float]] = [[] for _ in providers]
    used: list[list[float]] = [[] for _ in providers]  # seconds of all threads
    rounds = 0
    spent = 0.0
    while rounds < 12 or (spent < 20 * seconds and rounds < 1000):
        for provider, times, seconds_used in zip(providers, lists, used, strict=True):
            if provider.backend == "torch" and rounds % 4:
                continue  # it is several times slower than all others
            with set_backend(provider.backend):
                both = _both(provider.loss, batches)
                both(0)  # so that none pays for, or gains by, the memory that the one before it left
                before = time.process_time()
                measured = time_once(both, inner)
            times.append(measured)
            seconds_used.append((time.process_time() - before) / inner)
            spent += measured * inner / 1e3
        rounds += 1
    rows = []
    for provider, times, seconds_used in zip(providers, lists, used, strict=True):
        row = _row(shape, provider)
        row["both_ms"] = {**summarise(times).as_dict(), "minimum": min(times)}
        row["ratio"] = min(times) / min(lists[0])
        row["cpu_ratio"] = min(seconds_used) / min(used[0])
        rows.append(row)
    return rows


def _typical(repeats: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Of each row the repeat with the median ratio, and the ratios of all."""
    rows = []
    for same in zip(*repeats, strict=True):
        ratios = [row["ratio"] for row in same]
        median = sorted(same, key=lambda row: float(row["ratio"]))[(len(same) - 1) // 2]
        rows.append({**median, "ratios": ratios} if len(same) > 1 else median)
    return rows


def _captured(loss: Loss, batch: tuple[Tensor, Tensor], seconds: float) -> Times:
    """Forward and backward as a captured graph: no host between the kernels."""
    both = _both(loss, [batch])
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            both(0)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both(0)
    return time_on_gpu(lambda _: graph.replay(), seconds=seconds, cold=False)


def _both(loss: Loss, batches: Sequence[tuple[Tensor, Tensor]]) -> Callable[[int], object]:
    def both(i: int) -> object:
        z, y = batches[i % len(batches)]
        return torch.autograd.grad(loss(z, y), z)

    return both


def _batch(shape: Shape, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    z = torch.empty(shape.n, shape.K, dtype=shape.dtype, device=device).normal_(0, 2, generator=generator)
    y = torch.randint(0, shape.K, (shape.n,), device=device, generator=generator)
    return z.requires_grad_(), y


def _extra_memory(shape: Shape, loss: Loss, batch: tuple[Tensor, Tensor]) -> float:
    """Peak MiB of forward and backward beyond what was there before and the gradient itself."""
    both = _both(loss, [batch])
    both(0)  # compilation and workspaces
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    both(0)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - shape.bytes) / 2**20


def print_table(record: dict[str, Any]) -> None:
    """Print the record's rows as a table."""
    from rich.console import Console
    from rich.table import Table

    environment = record["environment"]
    title = f"{environment['device']}, torch {environment['torch']}, copy {record['copy_gb_per_s']:.0f} GB/s; ms"
    table = Table(title=title, title_justify="left")
    timed = {
        "both_cold_ms": "both, cold",
        "both_hot_ms": "both, hot",
        "both_wall_ms": "both, wall",
        "both_graph_ms": "both, graph",
        "both_ms": "both",
        "forward_cold_ms": "forward",
        "backward_cold_ms": "backward",
    }
    shown = {name: heading for name, heading in timed.items() if any(name in row for row in record["rows"])}
    plain = {"ratio": "times CE", "extra_mib": "extra MiB", "percent_of_copy": "% of copy"}
    shown |= {name: heading for name, heading in plain.items() if any(name in row for row in record["rows"])}
    for heading in ("shape", "provider", *shown.values()):
        table.add_column(heading, justify="left" if heading in ("shape", "provider") else "right")
    for row in record["rows"]:
        cells = [f"{row['n']} x {row['K']} {row['dtype']}", row["provider"]]
        for name in shown:
            value = row.get(name)
            if isinstance(value, dict) and "minimum" in value:
                cells.append(f"{value['median']:.4f} (least {value['minimum']:.4f})")
            elif isinstance(value, dict):
                cells.append(f"{value['median']:.4f} ({value['low']:.4f}-{value['high']:.4f})")
            else:
                cells.append("" if value is None else f"{value:.3g}")
        table.add_row(*cells)
    Console(width=200).print(table)
