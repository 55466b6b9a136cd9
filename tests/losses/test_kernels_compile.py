"""The kernels compiled for a Hopper GPU, which needs no GPU: what the interpreter takes, the compiler must take too."""

from typing import Any

import pytest
import torch

from gence import TwoHot

triton = pytest.importorskip("triton", minversion="3.6")

from triton.backends.compiler import GPUTarget  # noqa: E402 - only where there is Triton
from triton.compiler import ASTSource  # noqa: E402

from gence._triton import options  # noqa: E402
from gence.losses.backends.triton import (  # noqa: E402
    backward as gradient,
    forward as implementation,
    layout,
    plans as usual_call,
)
from gence.losses.backends.triton.layout import operands_of  # noqa: E402
from gence.losses.targets import prepare_rows  # noqa: E402

STREAMED = ["stream_pulls", "stream_pulls", "stream_gradient", "stream_gradient"]
HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "i64", torch.int32: "i32"}


def compiled(kernel: Any, warps: int, args: tuple[Any, ...], registers: int | None, together: bool = False) -> Any:
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    hints: dict[tuple[int], list[list[Any]]] = {}
    for parameter, value in zip(kernel.params, args, strict=True):
        at = (parameter.num,)
        if parameter.is_constexpr or value is None:
            signature[parameter.name] = "constexpr"
            constants[at] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = f"*{TYPES[value.dtype]}"
            hints[at] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=HOPPER, options=options(warps, registers, together))


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that a call would launch; each is compiled instead."""
    names: list[str] = []

    def compile_only(kernel, programs, warps, key, args, registers=None, together=False):
        code = compiled(kernel, warps, args, registers, together)
        assert "sm_90" in code.asm["ptx"]
        names.append(kernel.__name__)

    for module in (implementation, gradient, usual_call):
        monkeypatch.setattr(module, "launch", compile_only)
    monkeypatch.setattr(layout, "side_by_side", lambda device: True)
    monkeypatch.setattr(layout, "multiprocessors", lambda device: 132)
    return names


def target_of(kind: str, n: int, K: int) -> Any:
    labels = torch.zeros(n, dtype=torch.long)
    if kind == "index":
        return labels
    if kind == "two_hot":
        return TwoHot(labels, labels, torch.rand(n))
    return torch.rand(n, K)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "settings", "kernels"),
    [
        ((100, 100), torch.float32, "two_hot", {}, ["tiny_kernel"]),
        ((100, 10), torch.bfloat16, "index", {"label_smoothing": 0.1, "anchor": 0.1}, ["tiny_kernel"]),
        ((16, 10), torch.float16, "probs", {}, ["tiny_kernel"]),
        ((5000, 10), torch.bfloat16, "index", {}, ["rows_forward", "rows_backward"]),
        ((256, 1000), torch.bfloat16, "index", {}, ["rows_forward", "rows_backward"]),
        ((256, 1000), torch.float32, "probs", {}, ["rows_forward", "rows_backward"]),
        ((256, 1000), torch.float32, "probs", {"anchor": 0.1}, ["rows_forward", "finalise", "rows_backward"]),
        ((64, 5000), torch.bfloat16, "index", {}, ["rows_forward", "finalise", "long_rows_backward"]),
        ((8, 21841), torch.bfloat16, "index", {}, ["stream_rows", "stream_columns", "finalise", "long_rows_backward"]),
        (
            (8, 70001),
            torch.bfloat16,
            "two_hot",
            {"label_smoothing": 0.1},
            ["stream_rows", "stream_columns", "finalise", *STREAMED],
        ),
        (
            (8, 128256),
            torch.bfloat16,
            "index",
            {},
            ["stream_rows", "stream_columns", "finalise", "group_backward", "group_backward", "group_labels"],
        ),
        ((8, 128256), torch.bfloat16, "probs", {}, ["stream_rows", "stream_columns", "finalise", *STREAMED]),
    ],
)
def test_kernels_compile_for_a_gpu(shape, dtype, kind, settings, kernels, launched):
    logits = torch.zeros(shape, dtype=dtype)
    arguments = {"label_smoothing": 0.0, "anchor": 0.0, **settings}
    rows = prepare_rows(logits, target_of(kind, *shape), None, -100, "mean", arguments["label_smoothing"])
    problem = operands_of(rows, arguments["anchor"], None)
    _, saved = implementation.forward(problem, logits, None, with_grad=True)
    implementation.backward(problem, saved, torch.ones(()), logits, None, need_context=False)
    assert launched == kernels


@pytest.mark.parametrize(
    ("shape", "anchor", "kernels"),
    [
        ((100, 10), 0.0, ["tiny_kernel"]),
        ((100, 10), 0.1, ["tiny_kernel"]),
        ((4096, 1000), 0.0, ["rows_forward", "rows_backward"]),
        ((4096, 1000), 0.1, ["rows_forward", "finalise", "rows_backward"]),
    ],
)
def test_kernels_of_the_usual_call_compile_for_a_gpu(shape, anchor, kernels, launched):
    logits = torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)
    labels = target_of("index", *shape)
    plan = usual_call.plan_of(prepare_rows(logits, labels, None, -100, "mean", 0.0), anchor, None)
    torch.autograd.grad(plan.apply(logits, labels, None, plan), logits)
    assert launched == kernels
