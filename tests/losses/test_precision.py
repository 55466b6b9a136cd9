"""In low precision no loss may be worse than the plain formula written in that precision, plus a few roundings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import gence
from gence import LOSSES, gen_cross_entropy

n, K = 64, 10


def _picked(values: Tensor, y: Tensor) -> Tensor:
    return values[torch.arange(len(y)), y]


def _plain_supcon(z: Tensor, y: Tensor) -> Tensor:
    z = z / z.norm(dim=1, keepdim=True)
    similarity = torch.exp(z @ z.T / 0.1)
    others = 1 - torch.eye(len(y), dtype=z.dtype)
    positive = (y[:, None] == y[None, :]).to(z.dtype) * others
    log_share = torch.log(similarity / (similarity * others).sum(1, keepdim=True))
    return -((positive * log_share).sum(1) / positive.sum(1)).mean()


def _plain_gap(z: Tensor, y: Tensor) -> Tensor:
    return (z.softmax(1).mean(0) - torch.nn.functional.one_hot(y, K).to(z.dtype).mean(0)).abs().mean()


def _plain_dual_focal(z: Tensor, y: Tensor) -> Tensor:
    p = z.softmax(1)
    right = _picked(p, y)
    smaller = (z < _picked(z, y)[:, None]).sum(1)
    below = _picked(p.gather(1, z.argsort(dim=1, stable=True)), smaller - 1) * (smaller > 0)
    return -((1 - right + below) ** 2 * right.log()).mean()


# The formulas as a textbook prints them: softmax, then the logarithm, all in the input's own type.
PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gence": lambda z, y: -(_picked(z.softmax(1), y) / z.softmax(1).sum(0)[y]).log().mean(),
    "ce": lambda z, y: -_picked(z.softmax(1), y).log().mean(),
    "mae": lambda z, y: (2 * (1 - _picked(z.softmax(1), y))).mean(),
    "brier": lambda z, y: (z.softmax(1) - torch.nn.functional.one_hot(y, K)).square().sum(1).mean(),
    "generalized_ce": lambda z, y: ((1 - _picked(z.softmax(1), y) ** 0.7) / 0.7).mean(),
    "focal": lambda z, y: (-((1 - _picked(z.softmax(1), y)) ** 2) * _picked(z.softmax(1), y).log()).mean(),
    "logit_adjusted": lambda z, y: -_picked(z.softmax(1), y).log().mean(),
    "cosine": lambda z, y: (1 - _picked(z, y) / z.norm(dim=1)).mean(),
    "supcon": _plain_supcon,
    "mdca": lambda z, y: PLAIN["ce"](z, y) + _plain_gap(z, y),
    "poly1": lambda z, y: PLAIN["ce"](z, y) + (1 - _picked(z.softmax(1), y)).mean(),
    "squentropy": lambda z, y: PLAIN["ce"](z, y) + ((z.square().sum(1) - _picked(z, y).square()) / (K - 1)).mean(),
    "mbls": lambda z, y: PLAIN["ce"](z, y) + 0.1 * (z.amax(1, keepdim=True) - z - 10).relu().sum(1).mean(),
    "logit_norm": lambda z, y: PLAIN["ce"](z / (0.04 * z.norm(dim=1, keepdim=True)), y),
    "dual_focal": _plain_dual_focal,
}


def value_and_gradient(loss: Callable[[Tensor, Tensor], Tensor], z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = z.detach().clone().requires_grad_()
    value = loss(z, y)
    (gradient,) = torch.autograd.grad(value, z)
    return value.detach().double(), gradient.double()


def test_every_loss_has_a_plain_form() -> None:
    assert set(PLAIN) == set(LOSSES)


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_no_worse_than_the_plain_formula(name: str, dtype: torch.dtype, scale: float) -> None:
    y = torch.arange(n) % K
    z = (scale * torch.randn(n, K, dtype=torch.float64)).to(dtype)
    exact, exact_gradient = value_and_gradient(PLAIN[name], z.double(), y)
    plain, plain_gradient = value_and_gradient(PLAIN[name], z, y)
    mine, my_gradient = value_and_gradient(LOSSES[name].function, z, y)
    rounding = 4 * torch.finfo(dtype).eps  # a few operations, each rounded once
    # Where the plain formula underflows to NaN any finite number is better.
    error, plain_error = (abs(value - exact).nan_to_num(torch.inf) for value in (mine, plain))
    assert error <= plain_error + rounding * abs(exact)
    error, plain_error = ((g - exact_gradient).abs().max().nan_to_num(torch.inf) for g in (my_gradient, plain_gradient))
    assert error <= plain_error + rounding * exact_gradient.abs().max()
    assert error.isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("anchor", [0.0, 0.1, 1.0])
def test_anchored_loss_is_as_exact_as_its_type_allows(dtype: torch.dtype, anchor: float) -> None:
    y = torch.arange(n) % K
    z = (4 * torch.randn(n, K, dtype=torch.float64)).to(dtype)
    weight = 0.5 + torch.rand(K)

    def loss(input: Tensor, target: Tensor) -> Tensor:
        return gen_cross_entropy(input, target, weight, label_smoothing=0.1, anchor=anchor)

    mine, gradient = value_and_gradient(loss, z, y)
    exact, exact_gradient = value_and_gradient(loss, z.double(), y)
    eps = torch.finfo(dtype).eps
    assert_close(mine, exact, rtol=4 * eps, atol=0)
    assert_close(gradient, exact_gradient, rtol=0, atol=4 * eps * float(exact_gradient.abs().max()))


def test_improbable_columns_keep_their_digits() -> None:
    """Where the plain formula divides 0 by 0, float32 agrees with float64 as far as it resolves log p = -700."""
    z = torch.randn(n, K, dtype=torch.float64)
    z[:, 3] -= 700
    y = torch.arange(n) % K
    z32 = z.float()
    assert not PLAIN["gence"](z32, y).isfinite()
    exact, exact_gradient = value_and_gradient(gen_cross_entropy, z32.double(), y)
    mine, gradient = value_and_gradient(gen_cross_entropy, z32, y)
    assert_close(mine, exact, rtol=1e-5, atol=0)
    assert_close(gradient, exact_gradient, rtol=0, atol=1e-4 * float(exact_gradient.abs().max()))


def test_generalized_cross_entropy_keeps_its_digits_near_cross_entropy() -> None:
    """(1 - p^q) / q at q -> 0 is cross-entropy; written plainly, float32 loses all digits."""
    z, y = torch.randn(n, K), torch.arange(n) % K
    exact = LOSSES["ce"].function(z, y)
    assert_close(LOSSES["generalized_ce"].function(z, y, q=1e-7), exact, rtol=1e-6, atol=0)
    plain = ((1 - _picked(z.softmax(1), y) ** 1e-7) / 1e-7).mean()
    assert abs(plain - exact) > 0.01


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("gap", [0.0, 5.0, 18.0, 40.0, 1000.0])
def test_focal_gradient_stays_finite_and_right_as_p_nears_one(gamma: float, gap: float) -> None:
    focal = LOSSES["focal"].function
    y = torch.tensor([0])
    z = torch.tensor([[gap, 0.0]], dtype=torch.float64)
    u = torch.log1p(torch.exp(-z[0, 0]))  # -log p
    rest = torch.exp(-z[0, 0]) / (1 + torch.exp(-z[0, 0]))  # 1 - p
    value, gradient = value_and_gradient(lambda v, t: focal(v, t, gamma=gamma), z, y)
    assert_close(value, rest**gamma * u, rtol=1e-6, atol=1e-16)
    slope = -(rest ** (gamma + 1)) - gamma * u * (1 - rest) * rest**gamma if gap < 700 else torch.tensor(0.0).double()
    assert_close(gradient[0, 0], slope, rtol=1e-6, atol=1e-15)


def test_an_adjustment_of_half_logits_is_added_in_float32() -> None:
    torch.manual_seed(0)
    logits, target = (torch.randn(64, 100) * 4 + 300).bfloat16(), torch.randint(100, (64,))
    prior = torch.rand(100).softmax(0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = gence.logit_adjusted_loss(logits, target, prior=prior)
    expected = gence.logit_adjusted_loss(logits.double(), target, prior=prior.double())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
