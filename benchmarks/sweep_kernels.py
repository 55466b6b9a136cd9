"""Check the Triton kernels against float64 on a GPU and time their tunables, in one call.

    python benchmarks/sweep_kernels.py --out results/bench/sweep.json --seconds 110

For each shape, the defaults come first; then one tunable (or a few that belong together) is changed at a time. Times
are medians of CUDA events around the kernels alone, on logits that are not in the cache; tiny problems are timed in a
graph. A table of the best settings is printed last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gence.lab.store import environment_record
from gence.losses.backends.triton import forward as implementation, tuning
from gence.losses.backends.triton.layout import operands_of
from gence.losses.targets import prepare_rows

MEDIUM = [
    {},
    *({"rows_per_sm": count} for count in (2, 3, 6, 8)),
    *({"rows_elements": size} for size in (1024, 2048, 8192)),
    {"rows_warps": 2},
    {"rows_warps": 8},
    {"rows_elements": 2048, "rows_warps": 8, "rows_per_sm": 8},
    {"finalise_columns": 256},
    {"finalise_columns": 512},
]
GROUP = [
    {},
    {"group_warps": 2, "group_per_sm": 8},
    {"group_warps": 8, "group_per_sm": 2},
    {"group_unroll": 8, "group_registers": 255, "group_per_sm": 4, "group_warps": 2},
    {"group_per_sm": 0},  # the streamed backward pass
    {"piece_bytes": 128 << 10},
    {"stages": 2},
    {"stages": 4},
    {"stages": 3, "chunk_bytes": 16 << 20},
    {"unroll": 8},
]
LONG = [
    {"long_columns": 0},  # the streamed backward pass
    *({"long_part": part, "long_warps": warps} for part, warps in ((2048, 4), (4096, 16))),
    {"shift_rows": False},
    {"stream_registers": 80, "stream_per_sm": 3},
    {"staged_bytes": 0},
    {"piece_bytes": 64 << 10},
]
WORDS = [{"long_columns": 0}, {"staged_bytes": 0}]
TINY = [{}, {"tiny_warps": 8}, {"tiny_warps": 32}, {"tiny_lane": 4}, {"tiny_lane": 16}]
SHAPES: dict[str, tuple[int, int, torch.dtype, list[dict[str, Any]]]] = {
    "ten": (100, 10, torch.float32, TINY),
    "hundred": (100, 100, torch.float32, TINY),
    "vocabulary": (16384, 128256, torch.bfloat16, GROUP),
    "imagenet21k": (8192, 21841, torch.bfloat16, [{}, *LONG]),
    "words": (16384, 32000, torch.bfloat16, [{}, *WORDS]),
    "imagenet": (4096, 1000, torch.bfloat16, MEDIUM),
    "wide": (
        8192,
        8192,
        torch.bfloat16,
        [{}, {"rows_columns": 4096}, {"rows_per_sm": 8}, {"rows_elements": 8192}, {"long_part": 2048, "long_warps": 4}],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=110.0, help="stop starting new settings after this long")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all measurements")
    parser.add_argument("--part", default="0/1", help="i/k: of every k settings the i-th; to compile in k processes")
    parser.add_argument("--no-check", dest="check", action="store_false", help="time only")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    began = time.perf_counter()
    device = torch.device("cuda")
    record: dict[str, Any] = {
        "bench": "sweep",
        "environment": {**environment_record("cuda"), "torch": torch.__version__},
        "copy_gb_per_s": copy_bandwidth(device),
        "checks": [],
        "measured": [],
    }
    if options.check:
        check_corners(record["checks"], device)
    share = options.seconds / len(options.shapes)
    for number, name in enumerate(options.shapes):
        n, K, dtype, settings = SHAPES[name]
        logits = torch.randn(n, K, device=device, dtype=dtype).mul_(2)
        target = torch.randint(0, K, (n,), device=device)
        if options.check:
            check(record["checks"], name, logits, target)
        for setting in settings[part::parts]:
            if time.perf_counter() - began > share * (number + 1):
                print(f"{name}: out of time before {setting}")
                break
            record["measured"].append(measure(name, logits, target, setting))
        del logits
        torch.cuda.empty_cache()
    record["rows"] = best(record["measured"])
    record["seconds"] = time.perf_counter() - began
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1))
    report(record)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a large copy, in GB/s."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    seconds = time_of(lambda: target.copy_(source), 10) / 1e3
    return 2 * source.numel() / seconds / 1e9


def time_of(work: Any, repeats: int, prepare: Any = None) -> float:
    """Median milliseconds between events around ``work``."""
    for _ in range(3):
        if prepare is not None:
            prepare()
        work()
    pairs = []
    for _ in range(repeats):
        if prepare is not None:
            prepare()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        pairs.append((start, stop))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(stop) for start, stop in pairs)


def time_in_graph(work: Any, copies: int = 20) -> float:
    """Median milliseconds of ``work`` among many in a captured graph: no host, which tiny kernels are faster than."""
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            work()
    return time_of(graph.replay, 30) / copies


def reference(logits: Tensor, target: Tensor) -> tuple[Tensor, Any]:
    """Loss in float64 and a function that gives the gradient of rows, a slice of rows at a time."""
    n, K = logits.shape
    rows = max(1, (1 << 27) // K)
    sums = torch.zeros(K, dtype=torch.float64, device=logits.device)
    own = torch.zeros((), dtype=torch.float64, device=logits.device)
    for start in range(0, n, rows):
        log_p = logits[start : start + rows].double().log_softmax(1)
        own -= log_p.gather(1, target[start : start + rows, None]).sum()
        sums += log_p.exp_().sum(0)
    mass = torch.bincount(target, minlength=K).double()
    pull = mass / sums

    def gradient(start: int) -> tuple[slice, Tensor]:
        part = slice(start, min(start + rows, n))
        p = logits[part].double().softmax(1)
        grad = p * (1 + pull - (p @ pull)[:, None])
        grad[torch.arange(len(p), device=p.device), target[part]] -= 1
        return part, grad / n

    return (own + (mass * sums.log()).sum()) / n, (gradient, rows)


def check(checks: list[dict[str, Any]], name: str, logits: Tensor, target: Tensor) -> None:
    """Relative errors of loss and gradient against float64, and whether two runs agree where they must."""
    problem = operands_of(prepare_rows(logits, target, None, -100, "mean", 0.0), 0.0, None)
    before = logits.clone()
    loss, saved = implementation.forward(problem, logits, None, True)
    grad, _ = implementation.backward(problem, saved, loss.new_ones(()), logits, None, False)
    expected, (gradient, rows) = reference(logits, target)
    error = norm = floor = 0.0
    for start in range(0, len(logits), rows):
        part, exact = gradient(start)
        error += float((grad[part].double() - exact).square().sum())
        floor += float((exact.to(grad.dtype).double() - exact).square().sum())  # what rounding alone costs
        norm += float(exact.square().sum())
    with deterministic():
        runs = [implementation.forward(problem, logits, None, True) for _ in range(2)]
    entry = {
        "name": name,
        "shape": list(logits.shape),
        "loss_error": abs(float(loss.double() - expected)) / abs(float(expected)),
        "gradient_error": (error / norm) ** 0.5,
        "rounding_error": (floor / norm) ** 0.5,
        "deterministic": torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1][1], runs[1][1][1]),
        "untouched": torch.equal(before, logits),
    }
    entry["ok"] = bool(
        entry["loss_error"] < 1e-5
        and entry["gradient_error"] < 1.01 * entry["rounding_error"] + 1e-5
        and entry["deterministic"]
        and entry["untouched"]
    )
    print(json.dumps(entry), flush=True)
    checks.append(entry)


class deterministic:
    """``torch.use_deterministic_algorithms(True)`` for a block."""

    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


def check_corners(checks: list[dict[str, Any]], device: torch.device) -> None:
    """Small and ragged shapes through each kernel, in float32 and bfloat16."""
    for n, K, changes in (
        (100, 10, {}),
        (100, 100, {}),
        (100, 100, {"tiny_lane": 16}),
        (257, 33, {}),
        (33, 1000, {}),
        (520, 4099, {}),
        (40, 21841, {}),
        (37, 21841, {}),
        (37, 50257, {}),
        (64, 32768, {}),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            with tuning.override(**changes):
                logits = torch.randn(n, K, device=device, dtype=dtype).mul_(3)
                check(checks, "corner", logits, torch.randint(0, K, (n,), device=device))


def measure(name: str, logits: Tensor, target: Tensor, setting: dict[str, Any]) -> dict[str, Any]:
    """Median times of forward and backward, kernels alone, under one setting."""
    n, K = logits.shape
    problem = operands_of(prepare_rows(logits, target, None, -100, "mean", 0.0), 0.0, None)
    upstream = torch.ones((), device=logits.device)
    small = logits.numel() * logits.element_size() < 200 << 20
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=logits.device) if small else None

    def cool() -> None:
        if flush is not None:
            flush.zero_()

    named = ", ".join(f"{key} {value}" for key, value in setting.items()) or "defaults"
    entry: dict[str, Any] = {"name": name, "n": n, "K": K, "setting": named}
    with tuning.override(**setting):
        try:
            _, saved = implementation.forward(problem, logits, None, True)
            repeats = 30 if small else 8
            passes = {
                "forward_ms": lambda: implementation.forward(problem, logits, None, True),
                "backward_ms": lambda: implementation.backward(problem, saved, upstream, logits, None, False),
            }
            for part, work in passes.items():
                entry[part] = time_in_graph(work) if logits.numel() < 1 << 20 else time_of(work, repeats, cool)
        except Exception as error:  # a setting that does not compile must not end the sweep
            entry["error"] = f"{type(error).__name__}: {error}"[:300]
            print(json.dumps(entry), flush=True)
            return entry
    entry["both_ms"] = entry["forward_ms"] + entry["backward_ms"]
    print(json.dumps(entry), flush=True)
    return entry


def report(record: dict[str, Any]) -> None:
    """Failed checks, and each shape's default and three best settings."""
    failed = [entry for entry in record["checks"] if not entry["ok"]]
    print(f"\n{record['environment']['device']}, copy {record['copy_gb_per_s']:.0f} GB/s, {record['seconds']:.0f} s")
    print(f"checks: {len(record['checks']) - len(failed)} passed, {len(failed)} failed")
    for entry in failed:
        print("  FAILED", json.dumps(entry))
    for row in record["rows"]:
        print(f"{row['n']} x {row['K']}, {row['part']:8} {row['ms']:8.4f} ms  {row['setting']}")


def best(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each shape and pass what the defaults took, and the three fastest settings."""
    rows = []
    for name in dict.fromkeys(entry["name"] for entry in measured):
        done = [entry for entry in measured if entry["name"] == name and "both_ms" in entry]
        for part in ("forward", "backward"):
            key = f"{part}_ms"
            fastest = sorted(done, key=lambda entry: entry[key])[:3]
            for entry in [*(entry for entry in done if entry["setting"] == "defaults"), *fastest]:
                row = {"n": entry["n"], "K": entry["K"], "part": part, "setting": entry["setting"], "ms": entry[key]}
                if row not in rows:
                    rows.append(row)
    return rows


if __name__ == "__main__":
    main()
