"""The few-operations path of small CPU batches, held against the plain formula in float64."""

import pytest
import torch
import torch.utils.checkpoint
from torch.testing import assert_close

import gence
from gence.losses.backends.cpu_small import small_loss


def plain(z: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None, reduction: str) -> torch.Tensor:
    with gence.set_backend("torch"):
        return gence.gen_cross_entropy(z, y, weight, reduction=reduction)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [3.0, 100.0, 160.0])
def test_equals_the_plain_formula(dtype: torch.dtype, reduction: str, weighted: bool, scale: float) -> None:
    z = (scale * torch.randn(40, 7).clamp(-3, 3)).to(dtype).requires_grad_()
    y = torch.randint(0, 6, (40,))  # the last class is in no target
    weight = torch.rand(7) + 0.5 if weighted else None
    upstream = torch.rand(40) if reduction == "none" else torch.tensor(1.0)
    loss = small_loss(z, y, weight, reduction)
    assert loss is not None
    (gradient,) = torch.autograd.grad(loss, z, upstream.to(loss.dtype))
    exact = z.detach().double().requires_grad_()
    expected = plain(exact, y, None if weight is None else weight.double(), reduction)
    (expected_gradient,) = torch.autograd.grad(expected, exact, upstream.to(loss.dtype).double())
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert loss.dtype == gradient.dtype == dtype
    assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)


def test_second_derivative_is_that_of_the_plain_formula() -> None:
    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.autograd.gradgradcheck(lambda values: small_loss(values, y, None, "mean"), z)


def test_a_column_far_below_one_keeps_its_gradient() -> None:
    z = torch.randn(6, 4, dtype=torch.float64)
    z[:, 2] -= 900.0  # the class's summed predictions are below the smallest float64
    y = torch.tensor([0, 2, 1, 2, 3, 0])
    found, expected = (z.clone().requires_grad_() for _ in range(2))
    loss = small_loss(found, y, None, "mean")
    assert loss is not None
    loss.backward()
    plain(expected, y, None, "mean").backward()
    assert_close(found.grad, expected.grad)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_leaves_what_is_not_finite_to_the_general_path(value: float) -> None:
    z = torch.zeros(5, 3)
    z[:, 2] = value
    y = torch.tensor([1, 0, 1, 1, 0])
    assert small_loss(z, y, None, "mean") is None
    found, expected = (z.clone().requires_grad_() for _ in range(2))
    loss, by_plain = gence.gen_cross_entropy(found, y), plain(expected, y, None, "mean")
    assert_close(loss, by_plain, equal_nan=True)
    loss.backward()
    by_plain.backward()
    assert_close(found.grad, expected.grad, equal_nan=True)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(40, 7), (30, 300), (2, 128)], ids=str)
def test_the_recommended_call_equals_the_plain_formula(
    shape: tuple[int, int], dtype: torch.dtype, reduction: str
) -> None:
    n, K = shape
    z, y = (3 * torch.randn(shape)).to(dtype).requires_grad_(), torch.randint(0, K, (n,))
    loss = small_loss(z, y, None, reduction, anchor=0.1)
    assert loss is not None
    assert loss.dtype == dtype
    exact = z.detach().double().requires_grad_()
    with gence.set_backend("torch"):
        expected = gence.gen_cross_entropy(exact, y, anchor=0.1, reduction=reduction)
    tolerance = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    for factor in (1.0, -3.0):  # a second backward pass begins anew
        (found,) = torch.autograd.grad(loss, z, torch.tensor(factor, dtype=dtype), retain_graph=True)
        (true,) = torch.autograd.grad(expected, exact, torch.tensor(factor).double(), retain_graph=True)
        assert found.dtype == dtype
        assert_close(found.double(), true, rtol=tolerance, atol=tolerance)


def test_the_recommended_call_keeps_its_promises_to_autograd() -> None:
    z, y = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2, 3, 0, 1])

    def loss(values: torch.Tensor) -> torch.Tensor:
        return gence.gen_cross_entropy(values, y, anchor=0.3)

    assert torch.autograd.gradgradcheck(loss, z)
    (expected,) = torch.autograd.grad(loss(z), z)
    with torch.autograd.graph.save_on_cpu():
        kept = loss(z)
    assert_close(torch.autograd.grad(kept, z)[0], expected)
    recomputed = torch.utils.checkpoint.checkpoint(loss, z, use_reentrant=False)
    assert_close(torch.autograd.grad(recomputed, z)[0], expected)
    value = loss(z)
    many = torch.autograd.grad(value, z, torch.tensor([1.0, 2.0]).double(), is_grads_batched=True)[0]
    assert_close(many, torch.stack([expected, 2 * expected]))
    used = loss(z)
    used.backward()
    with pytest.raises(RuntimeError, match="second time"):
        used.backward()
    changed, labels = z.detach().clone().requires_grad_(), y.clone()
    value = gence.gen_cross_entropy(changed, labels, anchor=0.3)
    labels.copy_(labels.flip(0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), -1e9])
def test_the_recommended_call_leaves_masked_classes_to_the_general_path(value: float) -> None:
    z, y = torch.randn(5, 3), torch.tensor([1, 0, 1, 1, 0])
    z[:, 2] = value
    assert small_loss(z, y, None, "mean", anchor=0.1) is None
    found, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    loss = gence.gen_cross_entropy(found, y, anchor=0.1)
    with gence.set_backend("torch"):
        expected = gence.gen_cross_entropy(exact, y, anchor=0.1)
    assert_close(loss.double(), expected, equal_nan=True, rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad(loss, found)[0], torch.autograd.grad(expected, exact)[0]
    assert_close(gradients[0].double(), gradients[1], equal_nan=True, rtol=1e-5, atol=1e-6)
