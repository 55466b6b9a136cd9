"""Every identity that the specification's first section states, as a test."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import gence
from gence import gen_cross_entropy

n, K = 12, 5


def logits(scale: float = 3.0) -> Tensor:
    return scale * torch.randn(n, K, dtype=torch.float64)


def weights() -> Tensor:
    return 0.2 + torch.rand(K, dtype=torch.float64)


def targets() -> dict[str, Tensor]:
    return {
        "index": torch.randint(K, (n,)),
        "probabilities": torch.randn(n, K, dtype=torch.float64).softmax(1),
    }


@pytest.mark.parametrize("kind", ["index", "probabilities"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_is_cross_entropy_plus_the_coupling_of_one_vector(kind: str, weighted: bool, smoothing: float) -> None:
    z, target = logits(), targets()[kind]
    w = weights() if weighted else None
    ones = torch.ones(K, dtype=torch.float64) if w is None else w
    t = target if kind == "probabilities" else F.one_hot(target, K).double()
    t = (1 - smoothing) * t + smoothing / K
    T, S = ones * t.sum(0), z.softmax(1).sum(0)  # (K,), (K,)
    D = ones[target].sum() if kind == "index" else torch.tensor(float(n), dtype=torch.float64)
    coupled = F.cross_entropy(z, target, w, label_smoothing=smoothing) + (T * S.log()).sum() / D
    assert_close(gen_cross_entropy(z, target, w, label_smoothing=smoothing), coupled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["index", "probabilities"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_has_the_closed_form(kind: str, weighted: bool) -> None:
    z, target = logits().requires_grad_(), targets()[kind]
    w = weights() if weighted else torch.ones(K, dtype=torch.float64)
    t = target if kind == "probabilities" else F.one_hot(target, K).double()
    D = w[target].sum() if kind == "index" else float(n)
    gen_cross_entropy(z, target, w).backward()
    with torch.no_grad():
        p = z.softmax(1)  # (n, K)
        ratio = w * t.sum(0) / p.sum(0)  # (K,) T / S
        tau = (w * t).sum(1, keepdim=True)  # (n, 1)
        r = (ratio * p).sum(1, keepdim=True)  # (n, 1)
        expected = (p * (tau + ratio - r) - w * t) / D  # (n, K)
    assert_close(z.grad, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0])
def test_is_not_negative_for_hard_targets(scale: float) -> None:
    losses = gen_cross_entropy(logits(scale), targets()["index"], reduction="none")
    assert_close(losses, losses.clamp_min(0.0), rtol=0, atol=0)


@pytest.mark.parametrize("value", [0.0, -7.0])
def test_uniform_logits_give_log_n(value: float) -> None:
    z = torch.full((n, K), value, dtype=torch.float64)
    losses = gen_cross_entropy(z, targets()["index"], reduction="none")
    assert_close(losses, torch.full((n,), math.log(n), dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:gen_cross_entropy on one row")
@pytest.mark.parametrize("shape", [(K,), (1, K), (1, K, 1)])
def test_one_row_is_zero_with_zero_gradient(shape: tuple[int, ...]) -> None:
    z = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    target = torch.full((() if len(shape) == 1 else (1, *shape[2:])), 2)
    loss = gen_cross_entropy(z, target)
    loss.backward()
    assert_close(loss, torch.zeros_like(loss))
    assert_close(z.grad, torch.zeros_like(z), rtol=0, atol=1e-15)


@pytest.mark.parametrize("anchor", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["index", "probabilities"])
def test_each_rows_gradient_sums_to_zero(kind: str, anchor: float) -> None:
    z = logits().requires_grad_()
    gen_cross_entropy(z, targets()[kind], weights(), anchor=anchor, label_smoothing=0.1).backward()
    assert z.grad is not None
    assert_close(z.grad.sum(1), torch.zeros(n, dtype=torch.float64), rtol=0, atol=1e-14)
    assert float(z.grad.abs().max()) > 1e-4  # the sums vanish, the gradient does not


def test_a_constant_added_to_a_row_changes_nothing() -> None:
    z, y = logits(), targets()["index"]
    shifted = z + 50 * torch.randn(n, 1, dtype=torch.float64)
    for anchor in (0.0, 0.5):
        mine, moved = (gen_cross_entropy(v, y, reduction="none", anchor=anchor) for v in (z, shifted))
        assert_close(moved, mine, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", ["index", "probabilities"])
def test_permuted_rows_have_permuted_losses(kind: str) -> None:
    z, target, w, order = logits(), targets()[kind], weights(), torch.randperm(n)
    losses = gen_cross_entropy(z, target, w, reduction="none", anchor=0.2)
    permuted = gen_cross_entropy(z[order], target[order], w, reduction="none", anchor=0.2)
    assert_close(permuted, losses[order], rtol=1e-12, atol=1e-12)


def test_a_class_absent_from_the_targets_adds_nothing() -> None:
    z, y = logits(), torch.randint(K - 1, (n,))
    log_p = z.log_softmax(1)
    present = log_p[:, : K - 1]  # the absent class's column is never read
    by_hand = (present.logsumexp(0)[y] - present[torch.arange(n), y]).mean()
    assert_close(gen_cross_entropy(z, y), by_hand, rtol=1e-12, atol=1e-12)
    probabilities = F.one_hot(y, K).double()
    assert_close(gen_cross_entropy(z, probabilities), by_hand, rtol=1e-12, atol=1e-12)


def test_is_cross_entropy_over_the_batch_of_the_transposed_log_probabilities() -> None:
    z, y = logits(), targets()["index"]
    transposed = z.log_softmax(1).T[y]  # (n, n)
    for reduction in ("mean", "sum", "none"):
        expected = F.cross_entropy(transposed, torch.arange(n), reduction=reduction)
        assert_close(gen_cross_entropy(z, y, reduction=reduction), expected, rtol=1e-12, atol=1e-12)


def test_cross_entropy_exceeds_it_by_the_divergence_of_the_marginals() -> None:
    """CE = GenCE + KL(T/D || S/n) + const: GenCE lacks the pressure on the marginal."""
    y = targets()["index"]
    label_share = F.one_hot(y, K).double().mean(0)  # T/D
    constants = []
    for _ in range(3):
        z = logits()
        marginal = z.softmax(1).mean(0)
        divergence = (torch.xlogy(label_share, label_share) - label_share * marginal.log()).sum()
        constants.append(F.cross_entropy(z, y) - gen_cross_entropy(z, y) - divergence)
    assert_close(torch.stack(constants), constants[0].expand(3), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("context_rows", [0, 7])
def test_anchor_adds_the_divergence_from_the_prior(context_rows: int) -> None:
    z, y = logits(), targets()["index"]
    prior = torch.rand(K, dtype=torch.float64).softmax(0)
    context = torch.randn(context_rows, K, dtype=torch.float64)
    marginal = torch.cat([z, context]).softmax(1).mean(0)
    divergence = (prior * (prior / marginal).log()).sum()
    plain = gen_cross_entropy(z, y, context=context)
    anchored = gen_cross_entropy(z, y, context=context, anchor=0.7, prior=prior)
    assert_close(anchored, plain + 0.7 * divergence, rtol=1e-12, atol=1e-12)
    as_tensor = gen_cross_entropy(z, y, context=context, anchor=torch.tensor(0.7, dtype=torch.float64), prior=prior)
    assert_close(as_tensor, anchored, rtol=1e-12, atol=1e-12)


def test_context_enters_the_marginal_alone_and_receives_a_gradient_unless_detached() -> None:
    z, y = logits(), targets()["index"]
    context = torch.randn(7, K, dtype=torch.float64, requires_grad=True)
    everything = torch.cat([z, context])
    ignoring = torch.cat([y, torch.full((7,), -100)])
    marginal = everything.softmax(1).sum(0)
    expected = -(z.softmax(1)[torch.arange(n), y] / marginal[y]).log()
    losses = gen_cross_entropy(z, y, context=context, reduction="none")
    assert_close(losses, expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(losses.sum(), context, retain_graph=True)
    (by_hand,) = torch.autograd.grad(expected.sum(), context)
    assert_close(gradient, by_hand, rtol=1e-10, atol=1e-13)
    assert not gen_cross_entropy(z, y, context=context.detach()).requires_grad
    # Ignored rows are not context: they take no part in S at all.
    ignored = gen_cross_entropy(everything.detach(), ignoring)
    assert_close(ignored, gen_cross_entropy(z, y), rtol=1e-12, atol=1e-12)


def test_reductions_of_weighted_indices_divide_by_the_weights_of_the_labels() -> None:
    z, y, w = logits(), targets()["index"], weights()
    total = gen_cross_entropy(z, y, w, reduction="sum")
    assert_close(gen_cross_entropy(z, y, w), total / w[y].sum())
    probabilities = F.one_hot(y, K).double()
    assert_close(gen_cross_entropy(z, probabilities, w), total / n)


def test_module_and_function_agree_with_context() -> None:
    z, y, context = logits(), targets()["index"], torch.randn(4, K, dtype=torch.float64)
    prior = torch.full((K,), 1 / K, dtype=torch.float64)
    criterion = gence.GenCELoss(weights(), anchor=0.2, prior=prior, label_smoothing=0.1, reduction="sum")
    expected = gen_cross_entropy(
        z, y, criterion.weight, reduction="sum", label_smoothing=0.1, anchor=0.2, prior=prior, context=context
    )
    assert_close(criterion(z, y, context), expected, rtol=0, atol=0)


def test_gradient_of_weights_where_a_class_is_absent() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    logits, target = torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    assert torch.autograd.gradcheck(lambda w: gence.gen_cross_entropy(logits, target, w, anchor=0.1), weight + 0.5)
    gence.gen_cross_entropy(logits, target, weight, anchor=0.1).backward()
    assert weight.grad is not None
    assert bool(weight.grad.isfinite().all())
