"""The losses among PyTorch's transforms: autocast, compile, export, func, vmap, fake tensors, CUDA graphs."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.testing import assert_close

import gence
import gence.losses
from gence import LOSSES, LossInfo, TwoHot, gen_cross_entropy

K = 4
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0])
n = len(LABELS)
ALL = [pytest.param(info, id=name) for name, info in LOSSES.items()]
OF_LOGITS = [pytest.param(info, id=name) for name, info in LOSSES.items() if info.takes == "logits"]


def argument_sets() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Targets and options of GenCE that take different paths through the code."""
    ignoring = LABELS.clone()
    ignoring[2] = -100
    return {
        "index": (LABELS, {}),
        "everything": (
            ignoring,
            {
                "weight": torch.rand(K) + 0.5,
                "label_smoothing": 0.1,
                "anchor": torch.tensor(0.3),
                "prior": torch.full((K,), 1 / K),
                "context": torch.randn(5, K),
            },
        ),
        "probabilities": (torch.randn(n, K).softmax(1), {"anchor": 0.2, "reduction": "sum"}),
        "two-hot": (TwoHot(LABELS, LABELS.roll(1), torch.rand(n)), {"reduction": "none", "label_smoothing": 0.1}),
    }


def value_and_gradient(loss: Callable[..., Tensor], input: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    input = input.detach().clone().requires_grad_()
    value = loss(input, *args, **options)
    (gradient,) = torch.autograd.grad(value.sum(), input)
    return value.detach(), gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("info", ALL)
def test_autocast_returns_float32(info: LossInfo, dtype: torch.dtype) -> None:
    input = torch.randn(n, K).to(dtype)
    expected = info.function(input.float(), LABELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, gradient = value_and_gradient(info.function, input, LABELS)
    assert value.dtype is torch.float32
    assert gradient.dtype is dtype
    assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_autocast_over_a_model_trains_it() -> None:
    model = nn.Linear(6, K)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = gence.GenCELoss(anchor=0.1)(model(torch.randn(n, 6)), LABELS)
    loss.backward()
    assert loss.dtype is torch.float32
    assert model.weight.grad is not None
    assert float(model.weight.grad.abs().max()) > 0


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("case", argument_sets())
def test_compiles_without_a_graph_break(case: str) -> None:
    target, options = argument_sets()[case]
    input = torch.randn(n, K)
    compiled = torch.compile(gen_cross_entropy, fullgraph=True, backend="aot_eager")
    expected = value_and_gradient(gen_cross_entropy, input, target, **options)
    assert_close(value_and_gradient(compiled, input, target, **options), expected)


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("info", [p for p in ALL if p.id != "gence"])
def test_baselines_trace_without_a_graph_break(info: LossInfo) -> None:
    input = torch.randn(n, K)
    criterion = info.module()
    compiled = torch.compile(criterion, fullgraph=True, backend="eager")
    assert_close(value_and_gradient(compiled, input, LABELS), value_and_gradient(criterion, input, LABELS))


def test_types_are_tuples_where_they_are_compared() -> None:
    """The compiler of torch 2.6, the oldest that is supported, does not know ``isinstance(x, str | Tensor)``."""
    unions = [
        f"{path.name}:{call.lineno}"
        for path in Path(gence.losses.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "isinstance" and isinstance(call.args[1], ast.BinOp)
    ]
    assert unions == []


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler")
def test_inductor_generates_code_for_a_module_in_bfloat16() -> None:
    criterion = gence.GenCELoss(torch.rand(K) + 0.5, label_smoothing=0.1, anchor=0.5)
    compiled = torch.compile(criterion, fullgraph=True)
    input = torch.randn(n, K).bfloat16()
    assert_close(value_and_gradient(compiled, input, LABELS), value_and_gradient(criterion, input, LABELS))


@pytest.mark.parametrize("case", argument_sets())
def test_func_grad(case: str) -> None:
    target, options = argument_sets()[case]
    input = torch.randn(n, K)

    def total(z: Tensor) -> Tensor:
        return gen_cross_entropy(z, target, **options).sum()

    assert_close(torch.func.grad(total)(input), value_and_gradient(gen_cross_entropy, input, target, **options)[1])


@pytest.mark.parametrize("info", ALL)
def test_func_grad_and_vmap_over_an_outer_dimension(info: LossInfo) -> None:
    inputs = torch.randn(3, n, K)
    labels = torch.stack([LABELS.roll(i) for i in range(3)])
    labels[1, 0] = -100
    expected = [value_and_gradient(info.function, z, y) for z, y in zip(inputs, labels, strict=True)]
    gradients, values = torch.func.vmap(torch.func.grad_and_value(info.function))(inputs, labels)
    assert_close(values, torch.stack([value for value, _ in expected]))
    assert_close(gradients, torch.stack([gradient for _, gradient in expected]))


@pytest.mark.parametrize("case", argument_sets())
def test_vmap_over_models_that_share_a_target(case: str) -> None:
    target, options = argument_sets()[case]
    inputs = torch.randn(3, n, K)
    together = torch.func.vmap(lambda z: gen_cross_entropy(z, target, **options))(inputs)
    assert_close(together, torch.stack([gen_cross_entropy(z, target, **options) for z in inputs]))


class ModelWithLoss(nn.Module):
    """A network that returns its loss, as trainers that export a whole step need it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, K)
        self.criterion = gence.GenCELoss(torch.rand(K) + 0.5, anchor=0.1, prior=torch.full((K,), 1 / K))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.criterion(self.head(x), y)
        return loss


def test_export_of_a_model_that_carries_the_loss() -> None:
    model, x = ModelWithLoss(), torch.randn(n, 6)
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(model, (x, LABELS), dynamic_shapes={"x": {0: batch}, "y": {0: batch}})
    assert_close(exported.module()(x, LABELS), model(x, LABELS))
    assert_close(exported.module()(x[:5], LABELS[:5]), model(x[:5], LABELS[:5]))
    assert {"criterion.weight", "criterion.prior"} <= set(exported.state_dict)


def fake(values: Any, mode: FakeTensorMode) -> Any:
    if isinstance(values, TwoHot):
        return TwoHot(*(mode.from_tensor(part) for part in values))
    return mode.from_tensor(values) if isinstance(values, Tensor) else values


def test_fake_tensors_would_catch_a_look_at_a_value() -> None:
    mode = FakeTensorMode()
    with mode, pytest.raises(DataDependentOutputException):
        mode.from_tensor(torch.ones(3)).sum().item()


@pytest.mark.parametrize("case", argument_sets())
def test_forward_and_backward_look_at_no_value(case: str) -> None:
    """Tensors without data: whatever would wait for a GPU (.item(), bool(), a mask's size) raises on them."""
    target, options = argument_sets()[case]
    mode = FakeTensorMode()
    with mode:
        input = mode.from_tensor(torch.randn(n, K)).requires_grad_()
        loss = gen_cross_entropy(input, fake(target, mode), **{k: fake(v, mode) for k, v in options.items()})
        loss.sum().backward()
    assert input.grad is not None
    assert input.grad.shape == (n, K)


@pytest.mark.parametrize("info", ALL)
def test_baselines_look_at_no_value(info: LossInfo) -> None:
    mode = FakeTensorMode()
    with mode:
        input = mode.from_tensor(torch.randn(n, K)).requires_grad_()
        info.function(input, mode.from_tensor(LABELS), mode.from_tensor(torch.ones(K))).backward()
    assert input.grad is not None


def test_meta_tensors_give_shapes() -> None:
    input, target = torch.empty(n, K, device="meta"), torch.empty(n, dtype=torch.long, device="meta")
    assert gen_cross_entropy(input, target, reduction="none").shape == (n,)


def test_a_second_backward_through_the_gradient() -> None:
    """A gradient penalty: the loss's gradient is itself differentiable."""
    input = torch.randn(n, K, dtype=torch.float64, requires_grad=True)
    loss = gen_cross_entropy(input, LABELS, anchor=0.2)
    (gradient,) = torch.autograd.grad(loss, input, create_graph=True)
    gradient.square().sum().backward()
    assert input.grad is not None
    hessian = torch.func.hessian(lambda z: gen_cross_entropy(z, LABELS, anchor=0.2))(input.detach())
    expected = 2 * torch.einsum("ijkl,ij->kl", hessian, gradient.detach())
    assert_close(input.grad, expected)


# On a GPU:


@pytest.mark.gpu
@pytest.mark.parametrize("case", argument_sets())
def test_cuda_agrees_with_the_cpu(case: str) -> None:
    target, options = argument_sets()[case]
    input = torch.randn(n, K)
    on_gpu = TwoHot(*(part.cuda() for part in target)) if isinstance(target, TwoHot) else target.cuda()
    moved = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in options.items()}
    mine = value_and_gradient(gen_cross_entropy, input.cuda(), on_gpu, **moved)
    expected = value_and_gradient(gen_cross_entropy, input, target, **options)
    assert_close([v.cpu() for v in mine], list(expected))


@pytest.mark.gpu
@pytest.mark.parametrize("info", ALL)
def test_cuda_does_not_synchronise(info: LossInfo) -> None:
    input, labels = torch.randn(n, K, device="cuda"), LABELS.cuda()
    value_and_gradient(info.function, input, labels)  # first calls load kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        value_and_gradient(info.function, input, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_cuda_graph_replays_loss_and_gradient() -> None:
    criterion = gence.GenCELoss(label_smoothing=0.1, anchor=torch.tensor(0.1, device="cuda"))
    input, labels = torch.randn(n, K, device="cuda", requires_grad=True), LABELS.cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            input.grad = None
            criterion(input, labels).backward()
    torch.cuda.current_stream().wait_stream(stream)
    input.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = criterion(input, labels)
        loss.backward()
    with torch.no_grad():
        input.copy_(torch.randn(n, K))
        labels.copy_(LABELS.roll(3))
    graph.replay()
    expected = value_and_gradient(criterion, input, labels)
    assert_close((loss.detach(), input.grad), expected)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr:UserWarning", "ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize("name", [name for name in gence.LOSSES if name != "supcon"])
def test_losses_of_class_indices_can_be_linearized(name):
    z, y, along = torch.randn(6, 4), torch.arange(6) % 4, torch.randn(6, 4)
    function = gence.LOSSES[name].function
    value, tangent = torch.func.linearize(lambda values: function(values, y), z)
    assert_close(value, function(z, y))
    assert_close(tangent(along), torch.func.jvp(lambda values: function(values, y), (z,), (along,))[1])
