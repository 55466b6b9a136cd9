"""Time other ways of training a cohort on a GPU, side by side in one call.

    python benchmarks/sweep_train.py --out build/sweep-train.json
    python benchmarks/sweep_train.py --settings '[{}, {"norm": {"per_sm": 2}}, {"model": "vgg19", "runs": 16}]'

Each setting trains a cohort for a few epochs, and the median epoch is taken without the first. Kernels are compiled
before, for all settings at a time in several processes. Machines differ by more than some settings do: compare within a
call, and repeat the first setting at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from gence.lab.bench import train as bench_train
from gence.lab.models import Paired, plain_norms, resnet
from gence.lab.models.fused_norm import launch as norm_layout, layers as fused_layers
from gence.lab.train import RunBackbone, cohort, run as lane, run_backbone

SETTINGS: list[dict[str, Any]] = [
    {},
    {"products": True},
    {"search": True},
    {"plain": True},
    {"steps_in_turn": 4},
    {"together": False},
    {"at_once": 4},
    {"at_once": 7},
    {"no_norms": True},
    {"runs": 3},
    {"runs": 5},
    {"runs": 21},
    {"n": 8000},
    {"norm": {"per_sm": 2}},
    {"model": "vgg19", "runs": 16},
    {"model": "vgg19", "runs": 16, "steps_in_turn": 4},
    {},
]
"""What is different from the default.

``model``, ``runs``, ``n``: the cohort. ``norm``: tunables of the fused norms. ``products``: 1x1 convolutions as
products of matrices; ``search``: cuDNN times its algorithms for each convolution; ``plain``: PyTorch's norms;
``no_norms``: none, which trains nothing and tells the convolutions' share. ``steps_in_turn``, ``together``: how lanes
take turns; ``at_once``: how many of them, while others wait.
``compile``: options of torch.compile's backend.
"""
RUNS = 14


def measure(setting: dict[str, Any], epochs: int, runs: int | None = None) -> dict[str, Any]:
    """Train a cohort under a setting and return what a step costs."""
    names = [setting.get("model", "resnet50")]
    with contextlib.ExitStack() as stack:
        stack.enter_context(norm_layout.override(**setting.get("norm", {})))
        stack.enter_context(patch.object(lane, "STEPS_IN_TURN", setting.get("steps_in_turn", lane.STEPS_IN_TURN)))
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=setting.get("search", False)))
        if not setting.get("together", True):
            stack.enter_context(patch.object(lane, "_keep_together", lambda _: None))
        if "at_once" in setting:
            stack.enter_context(patch.object(cohort, "run_in_turns", _in_groups_of(setting["at_once"])))
        if setting.get("plain"):
            stack.enter_context(plain_norms())
        if setting.get("no_norms"):
            stack.enter_context(_without_norms())
        if setting.get("products"):
            stack.enter_context(patch.object(nn.Conv2d, "forward", _convolve))
        if "compile" in setting:
            stack.enter_context(patch.object(cohort, "compiled_backbone", lambda: _compiled(setting["compile"])))
        record = bench_train.bench_train(
            names,
            data="cifar10",
            n=setting.get("n", 2000),
            cohort_sizes=[runs or setting.get("runs", RUNS)],
            epochs=epochs,
            compile="compile" in setting,
            usual=False,
        )
    gc.collect()
    torch.cuda.empty_cache()
    return {"environment": record["environment"], "row": {"setting": json.dumps(setting), **record["rows"][0]}}


def _compiled(options: dict[str, Any]) -> RunBackbone:
    torch._dynamo.config.inline_inbuilt_nn_modules = True
    made: RunBackbone = torch.compile(run_backbone, dynamic=False, options=options)
    return made


def _in_groups_of(size: int) -> Callable[[Sequence[lane.Lane], int], None]:
    """Lanes in groups that run one after another: fewer share the caches."""

    def run(lanes: Sequence[lane.Lane], steps: int) -> None:
        groups = [lanes[start : start + size] for start in range(0, len(lanes), size)]
        for before, group in zip([[], *groups], groups, strict=False):
            for one, other in itertools.product(group, before):
                if isinstance(one, lane.GraphLane) and isinstance(other, lane.GraphLane):
                    one.stream.wait_stream(other.stream)
            lane.run_in_turns(group, steps)

    return run


@contextlib.contextmanager
def _without_norms() -> Iterator[None]:
    def add(_norm: Any, _relu: Any, x: Tensor, _skip: Tensor, _skip_norm: Any, *, pair: bool) -> Paired:
        return (x, x) if pair else x

    with (
        patch.object(fused_layers, "norm_relu", lambda _norm, _relu, x: x),
        patch.object(fused_layers, "norm_add_relu", add),
        patch.object(resnet, "norm_relu_for_two", lambda _norm, _relu, x: (x, x)),
        # What comes out is no number, and a run that has diverged is not trained on.
        patch.object(cohort.Cohort, "_collect", _collect),
    ):
        yield


def _collect(self: cohort.Cohort, pending: list[Tensor]) -> None:
    for sums, host in zip(self.sums, pending, strict=True):
        sums.append(host.double())


_plain_convolution = nn.Conv2d.forward


def _convolve(self: nn.Conv2d, input: Tensor) -> Tensor:
    usual = self.kernel_size == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0) and self.groups == 1
    if not usual or not input.is_contiguous(memory_format=torch.channels_last):
        return _plain_convolution(self, input)
    rows = nn.functional.linear(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias)
    return rows.permute(0, 3, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=json.loads, default=SETTINGS, help="JSON: a list of what is different")
    parser.add_argument("--epochs", type=int, default=5, help="the first is not counted")
    parser.add_argument("--processes", type=int, default=6, help="that compile at a time")
    parser.add_argument("--compile-only", action="store_true", help="compile for these settings and end")
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all measurements")
    options = parser.parse_args()
    if options.compile_only:
        for setting in options.settings:
            measure(setting, epochs=2, runs=1)
        return
    compile_all(options.settings, options.processes)
    record: dict[str, Any] = {"bench": "sweep-train", "rows": []}
    for setting in options.settings:
        found = measure(setting, options.epochs)
        row = found["row"]
        record["environment"] = found["environment"]
        record["rows"].append(row)
        cost = f"{row['ms_per_step_and_run']:7.3f} ms [{row['fastest']:.3f}, {row['slowest']:.3f}]"
        print(f"{cost} {row['model']:9} {row['runs']:3} runs {row['setting']}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def compile_all(settings: list[dict[str, Any]], processes: int) -> None:
    """Fill the compilers' caches."""
    command = [sys.executable, __file__, "--compile-only", "--settings"]
    started = [
        subprocess.Popen([*command, json.dumps(settings[i::processes])]) for i in range(min(processes, len(settings)))
    ]
    for process in started:
        process.wait()


if __name__ == "__main__":
    main()
