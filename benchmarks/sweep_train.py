"""Time ways of compiling the training step on a GPU, or of not compiling it, side by side in one call.

    python benchmarks/sweep_train.py --model resnet50 --runs 8 14 --out results/bench/sweep-train.json

Every setting trains the same cohorts in a process of its own. First all of them compile at once, which fills the
compiler's cache and is not timed; then they train one after another, and the median epoch is taken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from gence.experiment import bench_train, cohort
from gence.experiment.backbone import RunBackbone, run_backbone
from gence.models.fused_norm import plain_norms

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "eager": {"eager": True},
    "eager, plain norms": {"eager": True, "plain": True},
    "eager, searched": {"eager": True, "search": True},
    "searched": {"search": True},
    "combined": {"combo_kernels": True},
    "tuned blocks": {"coordinate_descent_tuning": True},
    "1x1 as product": {"conv_1x1_as_mm": True},
    "autotuned": {"max_autotune": True, "conv_1x1_as_mm": True, "combo_kernels": True},
}
"""Options of torch.compile's backend by name; three are ours.

``eager``: nothing is compiled, and the norms are the fused ones; ``plain``: those of PyTorch; ``search``: cuDNN times
its algorithms for each convolution.
"""


def measure(name: str, models: list[str], runs: list[int], epochs: int) -> dict[str, Any]:
    """Train cohorts under a setting and return what a step costs in each."""
    options = dict(SETTINGS[name])
    eager, plain = options.pop("eager", False), options.pop("plain", False)
    torch.backends.cudnn.benchmark = options.pop("search", False)

    def compiled() -> RunBackbone:
        torch._dynamo.config.inline_inbuilt_nn_modules = True
        made: RunBackbone = torch.compile(run_backbone, dynamic=False, options=options)
        return made

    cohort.compiled_backbone = compiled
    with plain_norms() if plain else contextlib.nullcontext():
        record = bench_train.bench_train(models, cohort_sizes=runs, epochs=epochs, compile=not eager, usual=False)
    return {"environment": record["environment"], "rows": [{"setting": name, **row} for row in record["rows"]]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=["resnet50"])
    parser.add_argument(
        "--runs", type=int, nargs="+", default=[8], help="runs in the cohort; several are several cohorts"
    )
    parser.add_argument("--epochs", type=int, default=6, help="the first is not counted")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all measurements")
    parser.add_argument("--one", action="store_true", help="measure the only setting given, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.settings[0], options.model, options.runs, options.epochs)))
        return
    warming = [_start(name, options.model, [1], 2) for name in options.settings]
    for process in warming:
        process.communicate()
    record: dict[str, Any] = {"bench": "sweep-train", "rows": []}
    for name in options.settings:
        process = _start(name, options.model, options.runs, options.epochs)
        printed, wrong = process.communicate()
        if process.returncode:
            print(f"{name}: failed: {wrong.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads(printed.splitlines()[-1])
        record["environment"] = found["environment"]
        record["rows"] += found["rows"]
        for row in found["rows"]:
            cost = f"{row['ms_per_step_and_run']:7.3f} ms a step and run"
            print(f"{name:20} {row['model']:10} {row['runs']:3} runs {cost}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _start(name: str, models: list[str], runs: list[int], epochs: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--one", "--settings", name, "--epochs", str(epochs), "--model", *models]
    command += ["--runs", *map(str, runs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
