"""The later losses against their papers' equations, row by row, and at the settings where they are other losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.testing import assert_close

import gence
from gence import create_loss, loss_info
from tests.losses.naive import softmax
from tests.losses.problems import Call, calls

RIVALS = ("mdca", "poly1", "squentropy", "mbls", "logit_norm", "dual_focal")


def log(p: float) -> float:
    return float(torch.tensor(p, dtype=torch.float64).log())


def poly1(z: list[float], y: int) -> float:
    p = softmax(z)
    return -log(p[y]) + 1.5 * (1 - p[y])


def squentropy(z: list[float], y: int) -> float:
    others = [v * v for k, v in enumerate(z) if k != y]
    return -log(softmax(z)[y]) + (sum(others) / len(others) if others else 0.0)


def mbls(z: list[float], y: int) -> float:
    return -log(softmax(z)[y]) + 0.2 * sum(max(0.0, max(z) - v - 0.5) for v in z)


def logit_norm(z: list[float], y: int) -> float:
    length = sum(v * v for v in z) ** 0.5
    return -log(softmax([v / (0.5 * length) for v in z])[y])


def dual_focal(z: list[float], y: int) -> float:
    p = softmax(z)
    below = max((q for q in p if q < p[y]), default=0.0)
    return float(-((1 - p[y] + below) ** 3)) * log(p[y])


BY_HAND: dict[str, tuple[Callable[[list[float], int], float], dict[str, Any]]] = {
    "poly1": (poly1, {"epsilon": 1.5}),
    "squentropy": (squentropy, {}),
    "mbls": (mbls, {"alpha": 0.2, "margin": 0.5}),
    "logit_norm": (logit_norm, {"tau": 0.5}),
    "dual_focal": (dual_focal, {"gamma": 3.0}),
}


@settings(max_examples=150)
@given(call=calls(), name=st.sampled_from(sorted(BY_HAND)), reduction=st.sampled_from(["mean", "sum"]))
def test_is_the_papers_equation_class_by_class(call: Call, name: str, reduction: str) -> None:
    """Each is linear in the target: the equation of every class, weighted by the target and the class weights."""
    equation, params = BY_HAND[name]
    problem = call.as_naive()
    K, smoothing = call.num_classes, call.label_smoothing
    total = 0.0
    for row, target in zip(problem.logits, problem.targets, strict=True):
        for k in range(K if target is not None else 0):
            share = problem.weight[k] * ((1 - smoothing) * target[k] + smoothing / K)
            total += share * equation(list(row), k) if share else 0.0
    rows = sum(w for w, target in zip(problem.row_weights, problem.targets, strict=True) if target is not None)
    expected = torch.tensor(total / rows if reduction == "mean" else total, dtype=torch.float64)
    found = loss_info(name).function(call.input, call.target, reduction=reduction, **params, **call.options())
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
@given(call=calls(), beta=st.sampled_from([0.0, 1.0, 3.0]))
def test_mdca_is_cross_entropy_and_one_gap_for_the_batch(call: Call, beta: float) -> None:
    problem = call.as_naive()
    K, smoothing = call.num_classes, call.label_smoothing
    used = [(softmax(list(z)), t) for z, t in zip(problem.logits, problem.targets, strict=True) if t is not None]
    gap = 0.0
    for k in range(K):
        confidence = sum(p[k] for p, _ in used) / len(used)
        frequency = sum((1 - smoothing) * t[k] + smoothing / K for _, t in used) / len(used)
        gap += abs(confidence - frequency) / K
    mass = sum(
        problem.weight[k] * ((1 - smoothing) * t[k] + smoothing / K)
        for t in problem.targets
        if t is not None
        for k in range(K)
    )
    arguments = (call.input, call.target)
    found = gence.mdca_loss(*arguments, reduction="sum", beta=beta, **call.options())
    plain = gence.cross_entropy(*arguments, reduction="sum", **call.options())
    assert_close(found, plain + beta * gap * mass, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "params", "other", "theirs"),
    [
        ("mdca", {"beta": 0}, "ce", {}),
        ("poly1", {"epsilon": 0}, "ce", {}),
        ("mbls", {"alpha": 0, "margin": 0}, "ce", {}),
        ("mbls", {"alpha": 1, "margin": 100}, "ce", {}),
        ("dual_focal", {"gamma": 0}, "ce", {}),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_is_another_loss_at(
    name: str, params: dict[str, float], other: str, theirs: dict[str, float], reduction: str
) -> None:
    z, y = torch.randn(9, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0, -100, 1, 1])
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1, "weight": torch.rand(5).double() + 0.1}
    mine, expected = create_loss(name, **params, **options)(z, y), create_loss(other, **theirs, **options)(z, y)
    assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_logit_norm_at_the_length_of_the_logits_is_cross_entropy() -> None:
    z, y = 7.0 * torch.nn.functional.normalize(torch.randn(6, 4, dtype=torch.float64)), torch.tensor([0, 1, 2, 3, 0, 1])
    assert_close(gence.logit_norm_loss(z, y, tau=1 / 7), gence.cross_entropy(z, y), rtol=1e-12, atol=1e-12)
    assert_close(gence.logit_norm_loss(9 * z, y), gence.logit_norm_loss(z, y))


@pytest.mark.parametrize("name", ["logit_norm", "cosine"])
def test_zero_logits_have_a_gradient_of_ordinary_size(name: str) -> None:
    """Heads begin at zero weights: a gradient of 1e12 there would leave them at their first step."""
    z = torch.zeros(3, 4, requires_grad=True)
    loss_info(name).function(z, torch.tensor([0, 1, 2])).backward()
    assert z.grad is not None
    assert 0.1 < float(z.grad.norm()) < 100


def test_dual_focal_is_focal_where_no_class_is_below() -> None:
    z, y = torch.tensor([[0.0, 1.0, 1.0], [-2.0, 3.0, 0.0]], dtype=torch.float64), torch.tensor([0, 0])
    assert_close(gence.dual_focal_loss(z, y, gamma=2.0), gence.focal_loss(z, y, gamma=2.0))


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("gap", [0.0, 5.0, 18.0, 40.0, 1000.0])
def test_dual_focal_gradient_stays_finite_as_p_nears_one(gamma: float, gap: float) -> None:
    z = torch.tensor([[gap, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(gence.dual_focal_loss(z, torch.tensor([0]), gamma=gamma), z)
    assert_close(gradient.isfinite().all(), torch.tensor(True))


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize(("n", "K"), [(1, 3), (3, 1), (1, 1)])
def test_one_row_and_one_class(name: str, n: int, K: int) -> None:
    z: Tensor = torch.randn(n, K, requires_grad=True)
    loss = loss_info(name).function(z, torch.zeros(n, dtype=torch.long))
    loss.backward()
    assert bool(loss.isfinite())
    assert z.grad is not None
    if K == 1:
        assert_close(loss.detach(), torch.tensor(0.0))
        assert_close(z.grad, torch.zeros(n, K))
    else:
        assert bool(z.grad.isfinite().all())
