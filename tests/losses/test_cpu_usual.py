"""The usual call of the CPU path: rows, class indices and nothing else, small and in blocks."""

import pytest
import torch
from torch.testing import assert_close

import gence
from gence.losses.backends import cpu, cpu_small
from gence.losses.backends.dispatch import _usual_on_cpu


@pytest.fixture(params=["small", "one block", "blocks"])
def size(request, monkeypatch):
    if request.param != "small":
        monkeypatch.setattr(cpu_small, "SMALL", 0)
    if request.param == "blocks":
        monkeypatch.setattr(cpu, "BLOCK_BYTES", 400)
        monkeypatch.setattr(cpu, "ONE_BLOCK", 0)
    return request.param


def usual_loss(logits, labels, ignore_index, reduction):
    """The loss by the short way; None where the table is asked."""
    return _usual_on_cpu(logits, labels, None, ignore_index, reduction, 0.0, 0.0, None)


def reference(logits, labels, reduction):
    exact = logits.detach().double().requires_grad_()
    with gence.set_backend("torch"):
        loss = gence.gen_cross_entropy(exact, labels, reduction=reduction)
    return loss, torch.autograd.grad(loss, exact)[0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (33, 1), (2, 300)], ids=str)
def test_equals_the_plain_formula_in_float64(size, shape, dtype, reduction):
    n, K = shape
    logits = (3 * torch.randn(n, K)).to(dtype).requires_grad_()
    labels = torch.randint(0, K, (n,))
    loss = usual_loss(logits, labels, -100, reduction)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected, expected_gradient = reference(logits, labels, reduction)
    tolerance = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert loss.dtype == gradient.dtype == dtype
    assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)
    assert_close(gradient.double(), expected_gradient, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(300, 1000), (8192, 3)], ids=str)
def test_error_is_no_larger_than_the_plain_formulas(size, shape):
    n, K = shape
    logits, labels = 4 * torch.randn(n, K), torch.randint(0, K, (n,))
    _, exact = reference(logits, labels, "sum")
    z = logits.requires_grad_()
    (ours,) = torch.autograd.grad(usual_loss(z, labels, -100, "sum"), z)
    with gence.set_backend("torch"):
        (plain,) = torch.autograd.grad(gence.gen_cross_entropy(z, labels, reduction="sum"), z)
    assert (ours - exact).norm() <= 1.5 * (plain - exact).norm() + 1e-7 * exact.norm()


@pytest.mark.parametrize(("label", "ignore_index"), [(-100, -100), (1, 1), (3, -100), (3, 3), (-1, -100)])
def test_leaves_ignored_rows_and_wrong_indices_to_the_general_path(size, label, ignore_index):
    assert usual_loss(torch.zeros(4, 3), torch.tensor([0, label, 2, 1]), ignore_index, "mean") is None


def test_rows_are_ignored_by_an_index_that_is_a_class(size):
    z, y = torch.randn(6, 4), torch.tensor([0, 2, 1, 2, 3, 0])
    assert_close(gence.gen_cross_entropy(z, y, ignore_index=2), gence.gen_cross_entropy(z[y != 2], y[y != 2]))


def test_a_wrong_index_is_named(size):
    with pytest.raises(IndexError, match=r"target: expected class indices in \[0, 3\) or ignore_index = -100, got 3"):
        gence.gen_cross_entropy(torch.zeros(4, 3), torch.tensor([0, 3, 2, 1]))


@pytest.mark.parametrize("value", [-400.0, float("nan"), float("inf"), -float("inf")])
def test_columns_and_rows_beyond_linear_sums(size, value):
    z = torch.randn(40, 5)
    z[:, 2] = value
    y = torch.arange(40) % 5
    if value == -float("inf"):
        y[y == 2] = 1
    found, expected = (z.clone().requires_grad_() for _ in range(2))
    loss = gence.gen_cross_entropy(found, y)
    with gence.set_backend("torch"):
        by_plain = gence.gen_cross_entropy(expected, y)
    assert_close(loss, by_plain, equal_nan=True)
    loss.backward()
    by_plain.backward()
    assert_close(found.grad, expected.grad, equal_nan=True)


def test_backward_twice_with_another_factor_and_a_second_derivative(size):
    z = torch.randn(20, 5, dtype=torch.float64, requires_grad=True)
    y = torch.arange(20) % 5
    loss = usual_loss(z, y, -100, "mean")
    first, second = (torch.autograd.grad(loss, z, torch.tensor(f).double(), retain_graph=True)[0] for f in (1.0, -3.0))
    assert_close(second, -3 * first)
    assert torch.autograd.gradcheck(lambda values: usual_loss(values, y, -100, "sum"), z)
    assert torch.autograd.gradgradcheck(lambda values: usual_loss(values, y, -100, "mean"), z)


def test_gradient_is_a_tensor_of_its_own_and_the_logits_stay(size):
    z, y = torch.randn(20, 5), torch.arange(20) % 5
    before = z.clone()
    leaf = z.requires_grad_()
    loss = usual_loss(leaf, y, -100, "mean")
    (first,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    kept = first.clone()
    torch.autograd.grad(loss, leaf)
    assert_close(first, kept, rtol=0, atol=0)
    assert_close(z.detach(), before, rtol=0, atol=0)


def test_without_a_gradient_nothing_is_kept(size):
    z, y = torch.randn(20, 5), torch.arange(20) % 5
    loss = usual_loss(z, y, -100, "mean")
    assert not loss.requires_grad
    with torch.no_grad():
        assert_close(usual_loss(z.requires_grad_(), y, -100, "mean"), loss)


def test_strided_logits(size):
    wide, y = torch.randn(20, 12), torch.arange(20) % 6
    for z in (wide[:, ::2], wide[:, :6], wide.t()[:6].t()):
        found, expected = z.clone().requires_grad_(), z.detach().requires_grad_()
        pairs = [torch.autograd.grad(usual_loss(values, y, -100, "mean"), values)[0] for values in (found, expected)]
        assert_close(*pairs)


@pytest.mark.parametrize("anchor", [0.0, 0.1, 1.0, 2.5])
@pytest.mark.parametrize("factor", [1.0, -3.0, 1e30])
def test_an_anchored_gradient_of_any_steepness(size, anchor, factor):
    z, y = 20 * torch.randn(20, 5), torch.arange(20) % 5
    found, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    (ours,) = torch.autograd.grad(gence.gen_cross_entropy(found, y, anchor=anchor), found, torch.tensor(factor))
    with gence.set_backend("torch"):
        loss = gence.gen_cross_entropy(exact, y, anchor=anchor)
    (true,) = torch.autograd.grad(loss, exact, torch.tensor(factor).double())
    assert_close(ours.double() / factor, true / factor, rtol=1e-4, atol=1e-6)
