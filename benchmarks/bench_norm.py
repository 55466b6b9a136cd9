"""Time the fused BatchNorm against PyTorch's own on a GPU, for every shape of ResNet-50 and VGG-19 at 32 px.

    python benchmarks/bench_norm.py --out results/bench/norm.json
    python benchmarks/bench_norm.py --sweep --out results/bench/norm-sweep.json

Each shape has 20 copies with tensors of their own, so that nothing is in the cache, captured as one graph forward and
one backward. "plain" is nn.BatchNorm2d, the addition and the ReLU under autocast, and backward also autograd's addition
of the two gradients that a block's output gets. The sums at the end are weighted by how often a shape occurs in a
training step. ``--sweep`` tries other tunables: first all are compiled, in several processes at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor, nn

from gence.lab.bench import copy_bandwidth
from gence.lab.models import Paired, norm_add_relu, norm_relu, norm_relu_for_two, plain_norms
from gence.lab.models.fused_norm import launch as norm_layout
from gence.lab.store import environment_record

BATCH, COPIES = 100, 20


class Shape(NamedTuple):
    """A norm as it occurs: what kind, rows, channels, and how often in a step of either network."""

    kind: str
    rows: int
    channels: int
    resnet50: int
    vgg19: int


SHAPES = [
    Shape("for two", 102400, 64, 1, 0),
    Shape("relu", 102400, 64, 6, 2),
    Shape("relu", 102400, 128, 1, 0),
    Shape("relu", 25600, 128, 7, 2),
    Shape("relu", 25600, 256, 1, 0),
    Shape("relu", 6400, 256, 11, 4),
    Shape("relu", 6400, 512, 1, 0),
    Shape("relu", 1600, 512, 5, 4),
    Shape("relu", 400, 512, 0, 4),
    Shape("add", 102400, 256, 2, 0),
    Shape("add", 25600, 512, 3, 0),
    Shape("add", 6400, 1024, 5, 0),
    Shape("add", 1600, 2048, 2, 0),
    Shape("add normed", 102400, 256, 1, 0),
    Shape("add normed", 25600, 512, 1, 0),
    Shape("add normed", 6400, 1024, 1, 0),
    Shape("add normed", 1600, 2048, 1, 0),
]
# How often the least possible work reads or writes the tensor, forward and backward, when statistics need a launch of
# their own: see the kernels.
PASSES = {"relu": (3, 5), "for two": (3, 7), "add": (4, 8), "add normed": (5, 10)}

SETTINGS: list[dict[str, Any]] = [
    {},
    {"sums_stages": 1},
    {"sums_stages": 6},
    {"sums_registers": 96},
    {"sums_warps": 16},
    {"sums_warps": 4},
    {"apply_stages": 1},
    {"apply_stages": 6},
    {"apply_vectors": 4},
    {"apply_warps": 8},
    {"per_sm": 2},
    {"channels": 32},
    {"channels": 128},
    {"merge_rows": 128},
]

Call = Callable[[], object]


class Copies:
    """The copies of a shape: calls that run all of them forward, or backward."""

    def __init__(self, shape: Shape, count: int) -> None:
        side = round((shape.rows / BATCH) ** 0.5)
        drawn = [torch.randn(BATCH, shape.channels, side, side, device="cuda").bfloat16() for _ in range(4)]
        drawn = [value.contiguous(memory_format=torch.channels_last) for value in drawn]
        self.shape, self.relu = shape, nn.ReLU(inplace=True)
        self.inputs = [tuple(value.clone().requires_grad_() for value in drawn[:2]) for _ in range(count)]
        self.grads = [tuple(value.clone() for value in drawn[2:]) for _ in range(count)]
        self.norms = [tuple(nn.BatchNorm2d(shape.channels).cuda() for _ in range(2)) for _ in range(count)]
        self.outputs: list[Paired] = []

    def forward(self) -> None:
        self.outputs = [self._forward(i) for i in range(len(self.inputs))]

    def _forward(self, i: int) -> Paired:
        (x, skip), (norm, skip_norm) = self.inputs[i], self.norms[i]
        with torch.autocast("cuda", torch.bfloat16):
            if self.shape.kind == "relu":
                return norm_relu(norm, self.relu, x)
            if self.shape.kind == "for two":
                return norm_relu_for_two(norm, self.relu, x)
            second = skip_norm if self.shape.kind == "add normed" else None
            return norm_add_relu(norm, self.relu, x, skip, second, pair=True)

    def backward(self) -> None:
        for i in range(len(self.inputs)):
            self._backward(i)

    def _backward(self, i: int) -> None:
        (x, skip), (norm, skip_norm), grads = self.inputs[i], self.norms[i], self.grads[i]
        wanted: list[Tensor] = [x, norm.weight, norm.bias]
        if self.shape.kind.startswith("add"):
            wanted.append(skip)
        if self.shape.kind == "add normed":
            wanted += [skip_norm.weight, skip_norm.bias]
        output = self.outputs[i]
        if isinstance(output, tuple):
            torch.autograd.grad(output, wanted, grads, retain_graph=True)
        else:
            whole = grads[0] if self.shape.kind == "relu" else grads[0] + grads[1]
            torch.autograd.grad(output, wanted, whole, retain_graph=True)


def captured(call: Call) -> Call:
    """The call as a graph, captured on the current stream."""
    # Not by torch.cuda.graph, which hands all unused memory back: a hundred captures would be mostly that.
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin()
    call()
    graph.capture_end()
    return graph.replay


def milliseconds(call: Call, count: int, repeats: int = 7) -> float:
    """Median over repeats of one copy's time."""
    found = []
    for _ in range(repeats + 1):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(stop) / count)
    return statistics.median(found[1:])


def measure(copies: Copies, *, fused: bool, graph: bool) -> tuple[float, float]:
    """Milliseconds of one norm forward and backward."""
    count = len(copies.inputs)
    with nullcontext() if fused else plain_norms():
        copies.forward()
        copies.backward()
        if not graph:
            return milliseconds(copies.forward, count), milliseconds(copies.backward, count)
        # In this order, so that the backward graph reads what the forward graph writes.
        forward, backward = captured(copies.forward), captured(copies.backward)
        return milliseconds(forward, count), milliseconds(backward, count)


def bench(rows: list[dict[str, Any]], bandwidth: float) -> None:
    """Fill in a row for each shape and way."""
    print(f"{'kind':11}{'rows':>7}{'C':>6}  {'way':14}{'forward':>26}{'backward':>28}")
    for shape in SHAPES:
        copies = Copies(shape, COPIES)
        for way, (fused, graph) in {
            "plain, graph": (False, True),
            "fused, eager": (True, False),
            "fused, graph": (True, True),
        }.items():
            times = measure(copies, fused=fused, graph=graph)
            row: dict[str, Any] = {**shape._asdict(), "way": way}
            text = f"{shape.kind:11}{shape.rows:7}{shape.channels:6}  {way:14}"
            for name, time, passes in zip(("forward", "backward"), times, PASSES[shape.kind], strict=True):
                speed = passes * shape.rows * shape.channels * 2 / (time / 1e3)
                row |= {f"{name}_ms": time, f"{name}_gb_per_s": speed / 1e9, f"{name}_share": speed / bandwidth}
                text += f"{time:10.4f} ms {speed / 1e9:6.0f} GB/s {speed / bandwidth:4.0%}"
            rows.append(row)
            print(text, flush=True)
    for way in ("plain, graph", "fused, graph"):
        for network in ("resnet50", "vgg19"):
            print(f"{network}, a step, {way}: {in_a_step(rows, network, way=way)}")
    for network in ("resnet50", "vgg19"):
        volume = sum(sum(PASSES[s.kind]) * s.rows * s.channels * 2 * getattr(s, network) for s in SHAPES)
        print(f"{network}, a step, at the speed of a copy: {volume / bandwidth * 1e3:.3f} ms")


def in_a_step(rows: list[dict[str, Any]], network: str, **which: Any) -> str:
    chosen = [row for row in rows if all(row[name] == value for name, value in which.items())]
    sums = [sum(row[network] * row[f"{part}_ms"] for row in chosen) for part in ("forward", "backward")]
    return f"{sums[0]:.3f} + {sums[1]:.3f} = {sum(sums):.3f} ms"


def sweep(rows: list[dict[str, Any]], settings: list[dict[str, Any]]) -> None:
    """A row for each shape and setting; prints each shape's best settings and each setting's sums."""
    for shape in SHAPES:
        copies = Copies(shape, 8)
        found = []
        for setting in settings:
            name = json.dumps(setting)
            with norm_layout.override(**setting):
                try:
                    forward, backward = measure(copies, fused=True, graph=True)
                except triton.runtime.errors.OutOfResources as error:
                    print(f"{name} {shape}: {error}", flush=True)
                    forward = backward = float("inf")
            found.append({**shape._asdict(), "setting": name, "forward_ms": forward, "backward_ms": backward})
        rows += found
        print(f"{shape.kind:11}{shape.rows:7}{shape.channels:6}", end="")
        for part in ("forward", "backward"):
            times = [(row[f"{part}_ms"], row["setting"]) for row in found]
            print(f"   {part} {times[0][0]:.4f}, best {min(times)[0]:.4f} {min(times)[1]:50}", end="")
        print(flush=True)
    for setting in settings:
        name = json.dumps(setting)
        sums = (f"{network} {in_a_step(rows, network, setting=name)}" for network in ("resnet50", "vgg19"))
        print(f"{name:62} {'   '.join(sums)}", flush=True)


def compile_all(settings: list[dict[str, Any]], processes: int) -> None:
    """Fill Triton's cache: settings are compiled in several processes at a time."""
    started = [
        subprocess.Popen([sys.executable, __file__, "--compile", json.dumps(settings[i::processes])])
        for i in range(min(processes, len(settings)))
    ]
    for process in started:
        process.wait()


def compile_here(settings: list[dict[str, Any]]) -> None:
    for setting in settings:
        with norm_layout.override(**setting):
            for shape in SHAPES:
                copies = Copies(shape, 1)
                try:
                    copies.forward()
                    copies.backward()
                except triton.runtime.errors.OutOfResources as error:
                    print(f"{setting} {shape}: {error}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="try other tunables")
    parser.add_argument("--settings", type=json.loads, default=SETTINGS, help="JSON: the tunables to try")
    parser.add_argument("--processes", type=int, default=8, help="that compile at a time")
    parser.add_argument("--compile", type=json.loads, default=None, help="JSON: compile for these tunables and end")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all measurements")
    options = parser.parse_args()
    if options.compile is not None:
        compile_here(options.compile)
        return
    bandwidth = copy_bandwidth(torch.device("cuda"))
    print(f"a copy: {bandwidth / 1e9:.0f} GB/s", flush=True)
    record: dict[str, Any] = {
        "bench": "norm-sweep" if options.sweep else "norm",
        "environment": {**environment_record("cuda"), "torch": torch.__version__},
        "copy_gb_per_s": bandwidth / 1e9,
        "rows": [],
    }
    if options.sweep:
        compile_all(options.settings, options.processes)
    # On a stream of its own, because nothing can be captured on the default one.
    with torch.cuda.stream(torch.cuda.Stream()):
        if options.sweep:
            sweep(record["rows"], options.settings)
        else:
            bench(record["rows"], bandwidth)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
