"""Tensors beside the logits (labels, weights, prior, anchor): written into, of half types, under a default device."""

from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

import gence
from gence import TwoHot

N, K = 300, 40


def arguments(two_hot: bool) -> dict[str, torch.Tensor | TwoHot]:
    labels = torch.randint(0, K, (N,))
    target = TwoHot(labels, torch.randint(0, K, (N,)), torch.rand(N)) if two_hot else labels
    prior = torch.full((K,), 1.0 / K)
    return {"target": target, "weight": torch.rand(K), "prior": prior, "anchor": torch.tensor(0.3)}


@pytest.mark.parametrize(
    ("changed", "two_hot"),
    [
        ("target", False),
        ("first", True),
        ("second", True),
        ("share", True),
        ("weight", False),
        ("prior", False),
        ("anchor", False),
    ],
)
def test_a_constant_written_before_backward_is_an_error_and_not_a_wrong_gradient(changed, two_hot):
    given = arguments(two_hot)
    logits = torch.randn(N, K, requires_grad=True)
    loss = gence.gen_cross_entropy(logits, **given)
    value = getattr(given["target"], changed) if two_hot else given[changed]
    value.add_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("n", [8, 300, 3000])
def test_a_reused_label_buffer_is_noticed_by_the_plain_call(n):
    labels = torch.randint(0, K, (n,))
    loss = gence.gen_cross_entropy(torch.randn(n, K, requires_grad=True), labels)
    labels.copy_(labels.flip(0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("extra", [{}, {"weight": torch.rand(K)}, {"anchor": 0.1}, {"label_smoothing": 0.1}])
@pytest.mark.parametrize("n", [8, 3000])
def test_the_default_device_does_not_matter(n, extra):
    logits, labels = torch.randn(n, K), torch.randint(0, K, (n,))

    def gradient() -> torch.Tensor:
        z = logits.clone().requires_grad_()
        return torch.autograd.grad(gence.gen_cross_entropy(z, labels, **extra), z)[0]

    expected = gradient()
    with torch.device("meta"):
        found = gradient()
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [3, 7, 12, 1000])
def test_a_prior_may_be_of_a_half_type(dtype, classes):
    criterion = gence.GenCELoss(anchor=0.1, prior=torch.full((classes,), 1.0 / classes)).to(dtype)
    loss = criterion(torch.randn(8, classes, dtype=dtype), torch.randint(0, classes, (8,)))
    assert bool(loss.isfinite())


def test_an_anchor_may_be_a_fraction() -> None:
    logits, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = gence.gen_cross_entropy(logits, target, anchor=0.25)
    assert_close(gence.gen_cross_entropy(logits, target, anchor=Fraction(1, 4)), expected)
    assert_close(gence.GenCELoss(anchor=Fraction(1, 4))(logits, target), expected)
