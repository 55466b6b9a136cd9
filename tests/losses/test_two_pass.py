"""The helper's two passes give the gradient of one large batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.testing import assert_close

import gence
from tests.losses.distributed import problems
from tests.losses.distributed.problems import CASES

SIZES = [5, 2, 4, 3, 3, 2, 4]


def micro_batches(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    batch = next(problems.batches(CASES["weight"], dtype))
    return list(zip(batch.inputs.split(SIZES), batch.target.split(SIZES), strict=True))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("kind", ["plain", "batch_norm", "dropout", "spectral_norm"])
def test_equals_the_loss_of_all_logits(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    """The reference forwards each micro-batch by itself, keeps all graphs, and takes the plain loss of all logits."""
    model = problems.network(dtype, "dropout" if kind == "spectral_norm" else kind)
    if kind == "spectral_norm":  # a buffer that the forward pass reads and moves
        spectral_norm(model[0])
    reference = copy.deepcopy(model)
    criterion = problems.criterion(CASES["weight"], dtype)
    parts = micro_batches(dtype)

    torch.manual_seed(11)
    expected = criterion(torch.cat([reference(x) for x, _ in parts]), torch.cat([y for _, y in parts]))
    expected.backward()
    after = torch.get_rng_state()

    torch.manual_seed(11)
    loss = gence.two_pass_backward(model, criterion, iter(parts))
    assert_close(loss, expected.detach(), rtol=tolerance, atol=tolerance)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert_close(one.grad, other.grad, rtol=tolerance, atol=tolerance)
    # Buffers moved once, and as many random numbers were drawn as in one pass.
    assert_close(model.state_dict(), reference.state_dict(), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), after)


class Replaces(nn.Module):
    """Puts a new tensor in its buffer's place."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return x


def test_buffers_that_are_replaced_move_once() -> None:
    model = nn.Sequential(Replaces(), nn.Linear(6, 5))
    gence.two_pass_backward(model, gence.GenCELoss(), micro_batches(torch.float32))
    assert model.state_dict()["0.seen"] == len(SIZES)


def test_scaler_autocast_and_own_forward() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = problems.network(torch.float32)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.inner(x)}

    model, criterion = Wrapped(), gence.GenCELoss()
    parts = micro_batches(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    dtypes = []

    def forward(network: nn.Module, inputs: Tensor) -> Tensor:
        logits: Tensor = network(inputs)["logits"]
        dtypes.append(logits.dtype)
        return logits

    loss = gence.two_pass_backward(
        model,
        criterion,
        parts,
        forward=forward,
        forward_context=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        scaler=scaler,
    )
    assert set(dtypes) == {torch.bfloat16}
    assert loss.dtype == torch.float32
    expected = criterion(model.inner(torch.cat([x for x, _ in parts])), torch.cat([y for _, y in parts]))
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    assert_close(loss, expected.detach(), rtol=1e-2, atol=1e-2)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert_close(parameter.grad / 256, gradient, rtol=0.1, atol=2e-3)


def test_refuses_nothing_and_rows() -> None:
    model = problems.network(torch.float32)
    with pytest.raises(ValueError, match="micro_batches: expected at least one"):
        gence.two_pass_backward(model, gence.GenCELoss(), [])
    with pytest.raises(TypeError, match="micro_batches: expected pairs of inputs and target, got 3 of them"):
        gence.two_pass_backward(model, gence.GenCELoss(), [(1, 2, 3)])
    with pytest.raises(ValueError, match='expected reduction "mean" or "sum"'):
        gence.two_pass_backward(model, gence.GenCELoss(reduction="none"), micro_batches(torch.float32))


def test_another_loss_is_refused_with_what_to_do():
    model = torch.nn.Linear(4, 3)
    batches = [(torch.randn(2, 4), torch.tensor([0, 1]))]
    with pytest.raises(TypeError, match="criterion: expected a GenCELoss, got CrossEntropyLoss"):
        gence.two_pass_backward(model, torch.nn.CrossEntropyLoss(), batches)


class FirstSeen(nn.Module):
    """Keeps the mean of the first batch that it sees, in a buffer that is empty or missing until then."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        if registered:
            self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if getattr(self, "mean", None) is None:
            self.register_buffer("mean", x.mean(0))
        self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        return self.layer(x - self.mean)


@pytest.mark.parametrize("registered", [True, False])
def test_buffers_that_are_not_there_yet_move_once(registered: bool) -> None:
    torch.manual_seed(0)
    model = FirstSeen(registered=registered)
    again = copy.deepcopy(model)
    images, labels = torch.randn(12, 6), torch.arange(12) % 3
    gence.two_pass_backward(model, gence.GenCELoss(), list(zip(images.split(4), labels.split(4), strict=True)))
    logits = torch.cat([again(part) for part in images.split(4)])
    gence.gen_cross_entropy(logits, labels).backward()
    assert_close(model.mean, again.mean)
    assert_close(model.layer.weight.grad, again.layer.weight.grad)


def test_lazy_buffers_are_refused_with_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match=r"^model: buffer 1\.running_mean is not initialised.* call the model once"):
        gence.two_pass_backward(model, gence.GenCELoss(), [(torch.randn(4, 6), torch.arange(4) % 3)])
