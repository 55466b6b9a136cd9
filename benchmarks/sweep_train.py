"""Time ways of compiling the training step on a GPU, side by side in one call.

    python benchmarks/sweep_train.py --model resnet50 --runs 8 --out results/bench/sweep-train.json

Every setting trains the same cohort in a process of its own. First all of them compile at once, which fills the
compiler's cache and is not timed; then they train one after another, and the median epoch is taken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gence.experiment import bench_train, cohort, trainee
from gence.experiment.backbone import RunBackbone, run_backbone
from gence.models import ImageClassifier

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "searched": {"search": True},
    "combined": {"combo_kernels": True},
    "tuned blocks": {"coordinate_descent_tuning": True},
    "1x1 as product": {"conv_1x1_as_mm": True},
    "moments": {"moments": True},
    "moments, searched": {"moments": True, "search": True},
    "moments, combined": {"moments": True, "combo_kernels": True},
    "all three": {"moments": True, "combo_kernels": True, "search": True},
    "autotuned": {"max_autotune": True, "conv_1x1_as_mm": True, "moments": True, "combo_kernels": True},
}
"""Options of torch.compile's backend by name; two are ours.

``moments``: see `MomentsBatchNorm2d`; ``search``: cuDNN times its algorithms for each convolution.
"""


class _NormaliseByMoments(torch.autograd.Function):
    """Batch normalisation from sums of x and x^2: one plain reduction each way, where the usual form merges Welford's
    triples. The shift by the running mean keeps the difference of squares away from cancellation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor, eps: float) -> Any:
        count = x.numel() // x.shape[1]
        moved = x.float() - _per_channel(shift)
        mean = moved.sum((0, 2, 3)) / count
        var = ((moved * moved).sum((0, 2, 3)) / count - mean * mean).clamp_min(0.0)
        scale = (var + eps).rsqrt()
        mean = mean + shift
        ctx.save_for_backward(x, weight, mean, scale)
        y = (x.float() - _per_channel(mean)) * _per_channel(scale * weight) + _per_channel(bias)
        return y.to(x.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        normal = (x.float() - _per_channel(mean)) * _per_channel(scale)
        up = grad.float()
        of_bias = up.sum((0, 2, 3))
        of_weight = (up * normal).sum((0, 2, 3))
        inner = up - _per_channel(of_bias / count) - normal * _per_channel(of_weight / count)
        return (inner * _per_channel(weight * scale)).to(x.dtype), of_weight, of_bias, None, None


class MomentsBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that trains on moments."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        mean_so_far, var_so_far = self.running_mean, self.running_var
        assert mean_so_far is not None
        assert var_so_far is not None
        assert self.momentum is not None
        y, mean, var = _NormaliseByMoments.apply(x, self.weight, self.bias, mean_so_far.clone(), self.eps)
        count = x.numel() // x.shape[1]
        mean_so_far.lerp_(mean.detach(), self.momentum)
        var_so_far.lerp_(var.detach() * (count / max(count - 1, 1)), self.momentum)
        result: Tensor = y
        return result


def _per_channel(values: Tensor) -> Tensor:
    return values[None, :, None, None]


def use_moments(model: nn.Module) -> None:
    """Let every BatchNorm2d of a model train on moments."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = MomentsBatchNorm2d


def measure(name: str, model: str, runs: int, epochs: int) -> dict[str, Any]:
    """Train one cohort under a setting and return what a step costs."""
    options = dict(SETTINGS[name])
    moments = options.pop("moments", False)
    torch.backends.cudnn.benchmark = options.pop("search", False)
    create = trainee.create_model

    def create_changed(*args: Any, **kwargs: Any) -> ImageClassifier:
        made = create(*args, **kwargs)
        if moments:
            use_moments(made)
        return made

    def compiled() -> RunBackbone:
        torch._dynamo.config.inline_inbuilt_nn_modules = True
        made: RunBackbone = torch.compile(run_backbone, dynamic=False, options=options)
        return made

    trainee.create_model = create_changed  # type: ignore[assignment]
    cohort.compiled_backbone = compiled
    record = bench_train.bench_train((model,), cohort_sizes=(runs,), epochs=epochs, usual=False)
    return {"environment": record["environment"], "row": {"setting": name, **record["rows"][0]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--runs", type=int, default=8, help="runs in the cohort")
    parser.add_argument("--epochs", type=int, default=6, help="the first is not counted")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--out", type=Path, default=None, help="JSON file for all measurements")
    parser.add_argument("--one", action="store_true", help="measure the only setting given, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.settings[0], options.model, options.runs, options.epochs)))
        return
    warming = [_start(name, options.model, 1, 2) for name in options.settings]
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
        record["rows"].append(found["row"])
        print(f"{name:20} {found['row']['ms_per_step_and_run']:7.3f} ms a step and run", flush=True)
        if options.out:
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _start(name: str, model: str, runs: int, epochs: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--one", "--settings", name, "--model", model]
    command += ["--runs", str(runs), "--epochs", str(epochs)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
