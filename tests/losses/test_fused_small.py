"""The few-operations path of small CPU batches, held against the plain formula in float64."""

import pytest
import torch
from torch.testing import assert_close

import gence
from gence.losses.fused_small import small_loss


def plain(z: torch.Tensor, y: torch.Tensor, mean: bool) -> torch.Tensor:
    with gence.set_backend("torch"):
        return gence.gen_cross_entropy(z, y, reduction="mean" if mean else "sum")


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_equals_the_plain_formula(dtype: torch.dtype, mean: bool) -> None:
    z = (3 * torch.randn(40, 7)).to(dtype).requires_grad_()
    y = torch.randint(0, 6, (40,))  # the last class is in no target
    loss = small_loss(z, y, mean)
    assert loss is not None
    (gradient,) = torch.autograd.grad(loss, z)
    exact = z.detach().double().requires_grad_()
    expected = plain(exact, y, mean)
    (expected_gradient,) = torch.autograd.grad(expected, exact)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert loss.dtype == gradient.dtype == dtype
    assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)


def test_second_derivative_is_that_of_the_plain_formula() -> None:
    z = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.autograd.gradgradcheck(lambda values: small_loss(values, y, True), z)


@pytest.mark.parametrize("value", [1e4, float("nan"), float("inf")])
def test_leaves_the_extreme_to_the_general_path(value: float) -> None:
    z = torch.zeros(5, 3)
    z[0, 0] = value
    y = torch.tensor([1, 0, 2, 1, 0])
    assert small_loss(z, y, True) is None
    found, expected = gence.gen_cross_entropy(z, y), plain(z, y, True)
    assert_close(found, expected, equal_nan=True)
