"""PyTorch as the oracle of the anchored loss, and a naive double loop as the oracle of everything."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

import gence
from tests.losses import naive
from tests.losses.problems import Call, as_rows, calls

pytestmark = pytest.mark.filterwarnings("ignore:gen_cross_entropy on one row")


@settings(max_examples=600)
@given(call=calls(), reduction=st.sampled_from(["mean", "sum", "none"]))
def test_full_anchor_has_exactly_the_gradient_of_cross_entropy(call: Call, reduction: str) -> None:
    ours, theirs = (call.input.clone().requires_grad_() for _ in range(2))
    mine = gence.gen_cross_entropy(ours, call.target, reduction=reduction, anchor=1.0, **call.options())
    expected = F.cross_entropy(theirs, call.as_pytorch_target(), reduction=reduction, **call.options())
    assert mine.shape == expected.shape
    mine.sum().backward()
    expected.sum().backward()
    assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


@settings(max_examples=500)
@given(
    call=calls(),
    anchor=st.sampled_from([0.0, 0.1, 1.0, 2.5]),
    prior_kind=st.sampled_from(["batch", "random", "zeros"]),
    context_rows=st.sampled_from([None, 0, 1, 4]),
    seed=st.integers(0, 2**31),
)
def test_matches_the_naive_double_loop(
    call: Call, anchor: float, prior_kind: str, context_rows: int | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    K = call.num_classes
    prior = None
    if prior_kind != "batch":
        prior = torch.rand(K, generator=generator, dtype=torch.float64) + 0.1
        if prior_kind == "zeros" and K > 1:
            prior[0] = 0.0
        prior = prior / prior.sum()
    context = None
    if context_rows is not None:
        context = 3 * torch.randn(context_rows, K, generator=generator, dtype=torch.float64)
    problem = call.as_naive(
        anchor=anchor,
        prior=None if prior is None else prior.tolist(),
        context=[] if context is None else as_rows(context),
    )

    def loss(reduction: str) -> torch.Tensor:
        return gence.gen_cross_entropy(
            call.input,
            call.target,
            reduction=reduction,
            anchor=anchor,
            prior=prior,
            context=context,
            **call.options(),
        )

    expected = torch.tensor(naive.losses(problem), dtype=torch.float64)
    assert_close(loss("none").flatten(), expected, rtol=1e-10, atol=1e-10)
    for reduction in ("sum", "mean"):
        expected = torch.tensor(naive.reduced(problem, reduction), dtype=torch.float64)
        assert_close(loss(reduction), expected, rtol=1e-10, atol=1e-10)


@settings(max_examples=200)
@given(
    call=calls(),
    name=st.sampled_from(["ce", "focal", "logit_adjusted"]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
)
def test_cross_entropy_and_its_special_cases_are_pytorchs(call: Call, name: str, reduction: str) -> None:
    params = {"focal": {"gamma": 0.0}}.get(name, {})
    mine = gence.loss_info(name).function(call.input, call.target, reduction=reduction, **params, **call.options())
    expected = F.cross_entropy(call.input, call.as_pytorch_target(), reduction=reduction, **call.options())
    assert_close(mine, expected, rtol=1e-10, atol=1e-12)


def test_the_naive_loop_knows_a_case_worked_by_hand() -> None:
    # p = (1/2, 1/2) and (3/4, 1/4): S = (5/4, 3/4); labels 0 and 1 give l = log(5/2) and log 3.
    problem = naive.NaiveProblem(
        logits=[[0.0, 0.0], [torch.tensor(3.0).double().log().item(), 0.0]],
        targets=[[1.0, 0.0], [0.0, 1.0]],
        weight=[1.0, 1.0],
        row_weights=[1.0, 1.0],
    )
    assert naive.losses(problem) == pytest.approx([0.9162907318741551, 1.0986122886681098], rel=1e-12)
