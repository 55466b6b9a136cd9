"""What every loss in the registry owes its callers. A new loss is tested by being registered."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import gence
from gence import LOSSES, LossInfo, TwoHot
from tests.losses.problems import probabilities

K = 4
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 0])
n = len(LABELS)
ALL = [pytest.param(info, id=name) for name, info in LOSSES.items()]
OF_LOGITS = [pytest.param(info, id=name) for name, info in LOSSES.items() if info.takes == "logits"]
HALF = (torch.float16, torch.bfloat16)


def prior() -> Tensor:
    return torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


def own_params(info: LossInfo) -> list[dict[str, Any]]:
    """The loss's defaults, and a setting of each of its own parameters."""
    settings: dict[str, list[dict[str, Any]]] = {
        "gence": [{"anchor": 0.5}, {"anchor": 0.5, "prior": prior()}],
        "generalized_ce": [{"q": 0.3}],
        "focal": [{"gamma": 0.5}, {"gamma": 0.0}, {"gamma": 10.0}],
        "logit_adjusted": [{"prior": prior(), "tau": 0.7}],
        "supcon": [{"temperature": 0.5}],
        "mdca": [{"beta": 0.0}, {"beta": 5.0}],
        "poly1": [{"epsilon": -1.0}, {"epsilon": 4.0}],
        "mbls": [{"alpha": 0.5, "margin": 0.5}, {"alpha": 0.3, "margin": 0.0}],
        "logit_norm": [{"tau": 1.0}],
        "dual_focal": [{"gamma": 0.5}, {"gamma": 0.0}, {"gamma": 10.0}],
    }
    return [{}, *settings.get(info.name, [])]


WITH_PARAMS = [
    pytest.param(info, params, id="-".join([name, *params]) + ("" if i < 2 else str(i)))
    for name, info in LOSSES.items()
    for i, params in enumerate(own_params(info))
]


def inputs(scale: float = 2.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return (scale * torch.randn(n, K, dtype=torch.float64)).to(dtype)


def value_and_gradient(info: LossInfo, input: Tensor, target: Any, **params: Any) -> tuple[Tensor, Tensor]:
    input = input.detach().clone().requires_grad_()
    loss = info.function(input, target, **params)
    (gradient,) = torch.autograd.grad(loss.sum(), input)
    return loss.detach(), gradient


@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_first_and_second_derivatives(info: LossInfo, params: dict[str, Any], reduction: str) -> None:
    target = LABELS.clone()
    target[3] = -100
    weight = torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=torch.float64)
    smoothing = 0.1 if info.takes == "logits" else 0.0

    def loss(input: Tensor) -> Tensor:
        return info.function(input, target, weight, reduction=reduction, label_smoothing=smoothing, **params)

    input = inputs().requires_grad_()
    torch.autograd.gradcheck(loss, (input,))
    torch.autograd.gradgradcheck(loss, (input,))


@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_reductions_agree(info: LossInfo, params: dict[str, Any]) -> None:
    input = inputs()
    losses, total, mean = (info.function(input, LABELS, reduction=r, **params) for r in ("none", "sum", "mean"))
    assert losses.shape == LABELS.shape
    assert_close(losses.sum(), total)
    counted = n if info.takes == "logits" else n - 1  # label 3 has one member: no positive, not counted
    assert_close(total / counted, mean)


@pytest.mark.parametrize("info", OF_LOGITS)
def test_certain_probabilities_are_labels(info: LossInfo) -> None:
    input, hard = inputs(), torch.nn.functional.one_hot(LABELS, K).double()
    assert_close(info.function(input, hard, reduction="none"), info.function(input, LABELS, reduction="none"))


@pytest.mark.parametrize("info", OF_LOGITS)
def test_linearity_in_the_target_is_as_declared(info: LossInfo) -> None:
    input = inputs()
    one, other = (torch.randn(n, K, dtype=torch.float64).softmax(1) for _ in range(2))
    mixed = info.function(input, 0.3 * one + 0.7 * other, reduction="none")
    parts = [info.function(input, t, reduction="none") for t in (one, other)]
    if not info.linear:
        assert float((mixed - 0.3 * parts[0] - 0.7 * parts[1]).abs().max()) > 1e-3
        return
    assert_close(mixed, 0.3 * parts[0] + 0.7 * parts[1])
    by_class = torch.stack([info.function(input, torch.full((n,), k), reduction="none") for k in range(K)], 1)
    assert_close(info.function(input, one, reduction="none"), (one * by_class).sum(1))


@pytest.mark.parametrize("info", OF_LOGITS)
def test_smoothing_mixes_with_the_uniform_target(info: LossInfo) -> None:
    input = inputs()
    smooth = 0.8 * torch.nn.functional.one_hot(LABELS, K).double() + 0.2 / K
    expected = info.function(input, smooth)
    assert_close(info.function(input, LABELS, label_smoothing=0.2), expected)


@pytest.mark.parametrize("info", OF_LOGITS)
def test_two_hot_means_the_mixture(info: LossInfo) -> None:
    target = TwoHot(LABELS, LABELS.roll(3), torch.rand(n, dtype=torch.float64))
    weight = torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=torch.float64)
    for reduction in ("none", "sum", "mean"):
        options = {"weight": weight, "reduction": reduction, "label_smoothing": 0.1}
        mine = value_and_gradient(info, inputs_once := inputs(), target, **options)
        expected = value_and_gradient(info, inputs_once, probabilities(target, K), **options)
        assert_close(mine, expected)


@pytest.mark.parametrize("info", OF_LOGITS)
def test_dense_and_unbatched_inputs_are_rows(info: LossInfo) -> None:
    input, target = torch.randn(2, K, 3, 2, dtype=torch.float64), torch.randint(K, (2, 3, 2))
    rows = input.movedim(1, -1).reshape(-1, K)
    losses = info.function(input, target, reduction="none")
    assert losses.shape == target.shape
    assert_close(losses.flatten(), info.function(rows, target.flatten(), reduction="none"))
    assert_close(info.function(input, target), info.function(rows, target.flatten()))
    if not info.coupled:
        alone = info.function(rows[0], target.flatten()[0], reduction="none")
        assert_close(alone, losses.flatten()[0])


@pytest.mark.parametrize("info", ALL)
def test_shift_invariance_is_as_declared(info: LossInfo) -> None:
    input = inputs()
    shifted = input + 3 * torch.randn(n, 1, dtype=torch.float64)
    before, after = (info.function(v, LABELS, reduction="none") for v in (input, shifted))
    if info.shift_invariant:
        assert_close(after, before)
    else:
        assert float((after - before).abs().max()) > 1e-3


@pytest.mark.parametrize("info", ALL)
def test_permuted_rows_have_permuted_losses(info: LossInfo) -> None:
    input, order = inputs(), torch.randperm(n)
    losses = info.function(input, LABELS, reduction="none")
    assert_close(info.function(input[order], LABELS[order], reduction="none"), losses[order])


@pytest.mark.parametrize("info", ALL)
def test_coupling_is_as_declared(info: LossInfo) -> None:
    input = inputs()
    changed = input.clone()
    changed[0] = torch.randn(K, dtype=torch.float64)
    before, after = (info.function(v, LABELS, reduction="none")[1:] for v in (input, changed))
    if info.coupled:
        assert float((after - before).abs().max()) > 1e-3
    else:
        assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_finite_at_extreme_logits(info: LossInfo, params: dict[str, Any], dtype: torch.dtype) -> None:
    signs = torch.randint(2, (n, K)) * 2.0 - 1
    right = torch.nn.functional.one_hot(LABELS, K) * 2.0 - 1
    one_class = torch.tensor([1.0, -1.0, -1.0, -1.0]).expand(n, K)  # as a drifted network predicts
    # Its squares of 1e4 are right and no float16.
    size = 1e2 if info.name == "squentropy" and dtype is torch.float16 else 1e4
    for pattern in (signs, right, -right, one_class):
        loss, gradient = value_and_gradient(info, (size * pattern).to(dtype), LABELS, **params)
        assert_close(loss.isfinite(), torch.tensor(True), msg=f"loss is {loss}")
        assert_close(gradient.isfinite().all(), torch.tensor(True), msg=f"gradient is {gradient}")


@pytest.mark.parametrize("log_probability", [-500.0, -900.0])  # below 1e-200, and below what float64 can hold
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_finite_where_a_whole_class_is_improbable(
    info: LossInfo, params: dict[str, Any], dtype: torch.dtype, log_probability: float
) -> None:
    input = inputs(0.1)
    input[:, 0] += log_probability
    loss, gradient = value_and_gradient(info, input.to(dtype), LABELS, **params)
    assert_close(loss.isfinite(), torch.tensor(True), msg=f"loss is {loss}")
    assert_close(gradient.isfinite().all(), torch.tensor(True), msg=f"gradient is {gradient}")


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_ignored_rows_have_no_effect(info: LossInfo, params: dict[str, Any], junk: float) -> None:
    ignored = torch.tensor([False, True, False, False, True, False, False, False])
    target = torch.where(ignored, -7, LABELS)
    input = inputs()
    with_junk = torch.where(ignored[:, None], junk, input)
    weight = torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=torch.float64)
    for reduction in ("mean", "sum", "none"):
        options = {"weight": weight, "reduction": reduction, **params}
        loss, gradient = value_and_gradient(info, with_junk, target, ignore_index=-7, **options)
        without = value_and_gradient(info, input[~ignored], LABELS[~ignored], **options)
        if reduction == "none":
            assert_close(loss[ignored], torch.zeros(2, dtype=torch.float64))
            loss = loss[~ignored]
        assert_close((loss, gradient[~ignored]), without)
        if info.function not in (gence.cross_entropy, gence.logit_adjusted_loss):  # PyTorch's own: 0 * NaN stays there
            assert_close(gradient[ignored], torch.zeros(2, K, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_nan_in_gives_nan_out(info: LossInfo, params: dict[str, Any]) -> None:
    input = inputs()
    input[2, 1] = torch.nan
    for reduction in ("mean", "sum"):
        loss = info.function(input, LABELS, reduction=reduction, **params)
        assert_close(loss, torch.full_like(loss, torch.nan), equal_nan=True)
    losses = info.function(input, LABELS, reduction="none", **params)
    assert_close(losses[2], torch.full_like(losses[2], torch.nan), equal_nan=True)


@pytest.mark.parametrize("info", OF_LOGITS)
def test_nan_in_the_target_or_the_weight_gives_nan_out(info: LossInfo) -> None:
    target = torch.randn(n, K, dtype=torch.float64).softmax(1)
    target[0, 0] = torch.nan
    weight = torch.tensor([torch.nan, 1.0, 1.0, 1.0], dtype=torch.float64)
    for loss in (info.function(inputs(), target), info.function(inputs(), LABELS, weight)):
        assert_close(loss, torch.full_like(loss, torch.nan), equal_nan=True)


@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_all_rows_ignored(info: LossInfo, params: dict[str, Any]) -> None:
    target = torch.full((n,), -100)
    mean = info.function(inputs(), target, **params)
    assert_close(mean, torch.full_like(mean, torch.nan), equal_nan=True)
    total, gradient = value_and_gradient(info, inputs(), target, reduction="sum", **params)
    assert_close(total, torch.zeros_like(total))
    assert_close(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("info", [pytest.param(i, id=i.name) for i in LOSSES.values() if i.masks_classes])
def test_masked_classes_that_no_target_names(info: LossInfo) -> None:
    """A logit of -inf rules a class out, as in ``F.cross_entropy``: the others behave as if it were not there."""
    input, target = inputs(), LABELS.clamp_max(K - 2)
    masked = input.clone()
    masked[:, K - 1] = -torch.inf
    loss, gradient = value_and_gradient(info, masked, target)
    expected, expected_gradient = value_and_gradient(info, input[:, : K - 1], target)
    assert_close(loss, expected)
    assert_close(gradient[:, : K - 1], expected_gradient)
    assert_close(gradient[:, K - 1], torch.zeros(n, dtype=torch.float64), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_loss_and_gradient_have_the_inputs_dtype(info: LossInfo, params: dict[str, Any], dtype: torch.dtype) -> None:
    for reduction in ("mean", "none"):
        loss, gradient = value_and_gradient(info, inputs().to(dtype), LABELS, reduction=reduction, **params)
        assert loss.dtype is dtype
        assert gradient.dtype is dtype


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int8, torch.int16], ids=str)
@pytest.mark.parametrize("info", ALL)
def test_any_integer_type_names_classes(info: LossInfo, dtype: torch.dtype) -> None:
    input = inputs()
    for weight in (None, torch.arange(1.0, 1 + K).double()):
        assert_close(info.function(input, LABELS.to(dtype), weight), info.function(input, LABELS, weight))


@pytest.mark.parametrize("info", ALL)
def test_input_and_target_are_left_alone(info: LossInfo) -> None:
    input, target = inputs().requires_grad_(), LABELS.clone()
    target[0] = -100
    copies = input.detach().clone(), target.clone()
    info.function(input, target).backward()
    assert_close((input.detach(), target), copies, rtol=0, atol=0)


@pytest.mark.parametrize(("info", "params"), WITH_PARAMS)
def test_module_is_the_function(info: LossInfo, params: dict[str, Any]) -> None:
    weight = torch.tensor([1.0, 0.5, 2.0, 1.5], dtype=torch.float64)
    smoothing = 0.1 if info.takes == "logits" else 0.0
    options = {"weight": weight, "ignore_index": 2, "reduction": "sum", "label_smoothing": smoothing, **params}
    input = inputs()
    criterion = gence.create_loss(info.name, **options)
    assert isinstance(criterion, torch.nn.CrossEntropyLoss)
    expected = info.function(input, LABELS, **options)
    assert_close(criterion(input, LABELS), expected, rtol=0, atol=0)

    assert_close(pickle.loads(pickle.dumps(criterion))(input, LABELS), expected, rtol=0, atol=0)
    assert_close(copy.deepcopy(criterion)(input, LABELS), expected, rtol=0, atol=0)
    buffer = io.BytesIO()
    torch.save(criterion.state_dict(), buffer)
    buffer.seek(0)
    changed = {key: torch.full_like(value, 1 / K) for key, value in options.items() if isinstance(value, Tensor)}
    fresh = gence.create_loss(info.name, **{**options, **changed})
    fresh.load_state_dict(torch.load(buffer))
    assert_close(fresh(input, LABELS), expected, rtol=0, atol=0)
    tensors = {name for name, value in options.items() if isinstance(value, Tensor)}
    assert set(criterion.state_dict()) == tensors
    assert {v.dtype for v in criterion.to(torch.float32).state_dict().values()} == {torch.float32}


# What minimises each loss:

POSTERIOR = torch.tensor(
    [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6], [0.4, 0.4, 0.2], [0.5, 0.1, 0.4]], dtype=torch.float64
)  # five equally likely points, three classes, rank three: the paper's completeness holds


def minimiser(info: LossInfo, posterior: Tensor, **params: Any) -> Tensor:
    """The predictions that minimise the population risk: a finite space is a batch, its posterior the soft target."""
    logits = torch.randn(posterior.shape, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [logits], lr=1.0, max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = info.function(logits, posterior, **params)
        loss.backward()
        return loss

    optimizer.step(closure)
    return logits.detach().softmax(1)


@pytest.mark.parametrize("info", OF_LOGITS)
def test_properness_is_as_declared(info: LossInfo) -> None:
    params = {"mbls": {"margin": 0.5}}.get(info.name, {})  # odds of e^10 cost nothing by default, and none are here
    found = minimiser(info, POSTERIOR, **params)
    if info.proper:
        assert_close(found, POSTERIOR, rtol=0, atol=1e-4)
    else:
        assert float((found - POSTERIOR).abs().max()) > 0.02


def test_the_anchor_makes_the_loss_proper_where_completeness_fails() -> None:
    # Two points cannot tell three class scales apart: the plain loss has many minimisers, the anchored one has one.
    posterior = POSTERIOR[:2]
    gence_info = LOSSES["gence"]
    plain, anchored = minimiser(gence_info, posterior), minimiser(gence_info, posterior, anchor=0.1)
    assert float((plain - posterior).abs().max()) > 0.02
    risks = [gence_info.function(p.log(), posterior) for p in (plain, posterior)]
    assert_close(risks[0], risks[1], rtol=0, atol=1e-6)
    assert_close(anchored, posterior, rtol=0, atol=1e-4)


def test_logit_adjustment_elicits_the_balanced_posterior() -> None:
    prior = POSTERIOR.mean(0)
    found = minimiser(LOSSES["logit_adjusted"], POSTERIOR, prior=prior)
    balanced = POSTERIOR / prior
    assert_close(found, balanced / balanced.sum(1, keepdim=True), rtol=0, atol=1e-4)
