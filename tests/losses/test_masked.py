"""Classes that all rows mask, by a huge number or by minus infinity: no digit is lost, and no share of them adds."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import gence
from gence import LOSSES, TwoHot, gen_cross_entropy

MASKED = 3


def by_loops(z, shares, smoothing, weight, anchor):
    """The mean loss, and nothing of the package, in Python's floats (with index-like targets, the mean's own rule)."""
    n, K = len(z), len(z[0])
    log_sums = [max(row) + math.log(math.fsum(math.exp(v - max(row)) for v in row)) for row in z]
    t = [[(1 - smoothing) * v + smoothing / K for v in row] for row in shares]
    mass = [weight[k] * math.fsum(t[i][k] for i in range(n)) for k in range(K)]
    total = divergence = 0.0
    for k in range(K):
        top = max(row[k] for row in z)  # taken off first: what is left are small numbers
        below = [z[i][k] - top - log_sums[i] for i in range(n)]
        high = max(below)
        log_s = high + math.log(math.fsum(math.exp(v - high) for v in below))
        total += math.fsum(weight[k] * t[i][k] * (log_s - below[i]) for i in range(n))
        pi = mass[k] / math.fsum(mass)
        divergence += pi * (math.log(pi) - (log_s + top - math.log(n))) if pi > 0 else 0.0
    return total + anchor * math.fsum(mass) * divergence


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize(("n", "K"), [(8, 10), (257, 6)], ids=["few", "blocks"])
@pytest.mark.parametrize("by", [-9e3, -1e9])
@pytest.mark.parametrize("kind", ["smoothed", "label", "probabilities", "two_hot"])
@pytest.mark.parametrize("anchor", [0.0, 0.1])
def test_a_class_masked_in_every_row_keeps_float64s_digits(backend, n, K, by, kind, anchor):
    z, y = torch.randn(n, K) * 2, torch.arange(n) % K
    z[:, MASKED] = by
    smoothing = 0.1 if kind == "smoothed" else 0.0
    y[y == MASKED] = MASKED + (kind == "smoothed")
    target = {
        "probabilities": torch.nn.functional.one_hot(y, K).float(),
        "two_hot": TwoHot(y, y.flip(0), torch.rand(n)),
    }
    shares = torch.nn.functional.one_hot(y, K).double()
    if kind == "two_hot":
        share = target[kind].share.double()[:, None]
        shares = share * shares + (1 - share) * shares.flip(0)
    weight = torch.rand(K) + 0.5
    a, b = z.clone().requires_grad_(), z.double().requires_grad_()
    with gence.set_backend(backend):
        loss = gen_cross_entropy(
            a, target.get(kind, y), weight, reduction="sum", label_smoothing=smoothing, anchor=anchor
        )
        loss.backward()
    expected = by_loops(z.double().tolist(), shares.tolist(), smoothing, weight.double().tolist(), anchor)
    assert_close(loss.item(), expected, rtol=1e-5, atol=0)
    with gence.set_backend("torch"):
        in_float64 = gen_cross_entropy(
            b, shares, weight.double(), reduction="sum", label_smoothing=smoothing, anchor=anchor
        )
        in_float64.backward()
    assert_close(in_float64.item(), expected, rtol=1e-9, atol=0)
    assert_close(a.grad.double(), b.grad, rtol=0, atol=1e-5 * b.grad.abs().max().item())


@pytest.mark.parametrize("by", [-9e3, -1e9])
@pytest.mark.parametrize("kind", ["smoothed", "label", "probabilities"])
@pytest.mark.parametrize("anchor", [0.0, 0.1])
@pytest.mark.parametrize("sizes", [(7, 5), (1, 0, 11)], ids=["two", "an_empty_one"])
def test_parts_of_a_batch_keep_float64s_digits_of_a_masked_class(by, kind, anchor, sizes):
    K, n = 6, sum(sizes)
    z, y, context = torch.randn(n, K) * 2, torch.arange(n) % K, torch.randn(3, K)
    z[:, MASKED] = context[:, MASKED] = by
    smoothing = 0.1 if kind == "smoothed" else 0.0
    y[y == MASKED] = MASKED + (kind == "smoothed")
    shares = torch.nn.functional.one_hot(y, K)
    target = shares.float() if kind == "probabilities" else y
    criterion = gence.GenCELoss(anchor=anchor, label_smoothing=smoothing, reduction="sum")
    a, c = z.clone().requires_grad_(), context.clone().requires_grad_()
    marginal = criterion.batch_marginal()
    pieces = list(zip(a.split(sizes), target.split(sizes), [c, None, None], strict=False))
    for rows, own, more in pieces:
        marginal.update(rows, own, more)
    loss = sum(criterion(rows, own, marginal=marginal, context=more) for rows, own, more in pieces)
    loss.backward()
    b, d = z.double().requires_grad_(), context.double().requires_grad_()
    with gence.set_backend("torch"):
        expected = gen_cross_entropy(
            b, shares.double(), reduction="sum", label_smoothing=smoothing, anchor=anchor, context=d
        )
    expected.backward()
    assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    for found, exact in ((a.grad, b.grad), (c.grad, d.grad)):
        assert_close(found.double(), exact, rtol=0, atol=1e-5 * b.grad.abs().max().item())


def test_a_masked_class_with_mass_is_refused_where_the_marginal_is_kept_in_float32():
    z, y = torch.randn(8, 5), torch.arange(8) % 3
    z[:, MASKED] = -1e9
    with pytest.raises(ValueError, match=r"input: all rows mask class 3 by a huge number.*logits in float64"):
        gen_cross_entropy(z, y, label_smoothing=0.1, marginal=gence.RunningMarginal(5))
    gen_cross_entropy(z, y, marginal=gence.RunningMarginal(5))  # nobody gives the class any mass
    gen_cross_entropy(z.double(), y, label_smoothing=0.1, marginal=gence.RunningMarginal(5).double())


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("n", [12, 300])
def test_a_class_at_minus_infinity_without_mass_adds_nothing(backend, reduction, n):
    """As a share, a weight or a scheduled anchor of 0 says: value and gradient are those without the class."""
    z, y, masked = torch.randn(n, 4), torch.arange(n) % 3, torch.full((n,), 3)
    weight, prior = torch.tensor([1.0, 2.0, 0.5, 0.0]), torch.tensor([0.2, 0.3, 0.4, 0.1])
    calls = {
        "share 1": (TwoHot(y, masked, torch.ones(n)), {}, y, {}),
        "share 0": (TwoHot(masked, y, torch.zeros(n)), {}, y, {}),
        "probability 0": (torch.nn.functional.one_hot(y, 4).float(), {}, y, {}),
        "anchor 0": (y, {"anchor": torch.tensor(0.0), "prior": prior}, y, {}),
        "weight 0": (TwoHot(y, masked, torch.full((n,), 0.5)), {"weight": weight},
                     0.5 * torch.nn.functional.one_hot(y, 3), {"weight": weight[:3]}),
        "weight 0, smoothed": (y, {"weight": weight, "label_smoothing": 0.2, "reduction": "sum"},
                               0.8 * torch.nn.functional.one_hot(y, 3) + 0.05,
                               {"weight": weight[:3], "reduction": "sum"}),
    }  # fmt: skip
    for name, (target, options, without, options_without) in calls.items():
        a, b = (
            torch.cat([z[:, :3], torch.full((n, 1), -torch.inf)], 1).requires_grad_(),
            z[:, :3].double().requires_grad_(),
        )
        without = without.double() if without.is_floating_point() else without
        options_without = {k: v.double() if k == "weight" else v for k, v in options_without.items()}
        with gence.set_backend(backend):
            loss = gen_cross_entropy(a, target, **{"reduction": reduction, **options})
            loss.sum().backward()
        expected = gen_cross_entropy(b, without, **{"reduction": reduction, **options_without})
        expected.sum().backward()
        assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6, msg=name)
        assert_close(a.grad[:, :3].double(), b.grad, rtol=1e-4, atol=1e-6, msg=name)
        assert_close(a.grad[:, 3], torch.zeros(n), msg=name)


@pytest.mark.parametrize("name", [name for name, info in LOSSES.items() if info.masks_classes])
def test_no_loss_has_a_gradient_through_a_class_without_share(name):
    y = torch.arange(6) % 3
    a = torch.cat([torch.randn(6, 3), torch.full((6, 1), -torch.inf)], 1).requires_grad_()
    for target in (torch.nn.functional.one_hot(y, 4).float(), TwoHot(y, torch.full((6,), 3), torch.ones(6))):
        (gradient,) = torch.autograd.grad(LOSSES[name].function(a, target), a)
        (expected,) = torch.autograd.grad(LOSSES[name].function(a, y), a)
        assert_close(gradient, expected)


@pytest.mark.parametrize("name", [name for name, info in LOSSES.items() if info.masks_classes])
def test_no_loss_counts_a_class_at_minus_infinity_without_share(name):
    z, p = torch.randn(6, 3, dtype=torch.float64), torch.rand(6, 3, dtype=torch.float64).softmax(1)
    a = torch.cat([z, torch.full((6, 1), -torch.inf, dtype=torch.float64)], 1)
    found = LOSSES[name].function(a, torch.cat([p, torch.zeros(6, 1, dtype=torch.float64)], 1))
    assert_close(found, LOSSES[name].function(z, p))
    weight = torch.tensor([1.0, 2.0, 0.5, 0.0])
    assert LOSSES[name].function(a, torch.arange(6) % 3, weight, label_smoothing=0.1).isfinite()


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("n", [5, 300])
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.5},
        {"anchor": 0.1, "weight": torch.tensor([0.5, 1.0, 2.0])},
        {"context": torch.randn(4, 3)},
    ],
    ids=["smoothed", "anchored", "context"],
)
def test_the_mean_over_no_row_is_nan_without_a_gradient(backend, n, options):
    z = torch.randn(n, 3, requires_grad=True)
    # No row takes part, or all labels are of weight 0: then smoothing alone gives the rows a loss.
    nothing = {"weight": torch.tensor([1.0, 0.0, 2.0])}
    for label, more in ((-100, {}), (1, nothing), (1, {**nothing, "label_smoothing": 0.5})):
        with gence.set_backend(backend):
            loss = gen_cross_entropy(z, torch.full((n,), label), **{**options, **more})
        assert loss.isnan()
        assert_close(torch.autograd.grad(loss, z)[0], torch.zeros(n, 3))


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_labels_of_weight_0_have_no_loss_under_an_anchor(backend):
    with gence.set_backend(backend):
        loss = gen_cross_entropy(
            torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), torch.tensor([0.0, 0.0, 1.0]), anchor=2.5, reduction="none"
        )
    assert_close(loss, torch.zeros(4))


def test_a_prior_of_single_precision_adjusts_in_double():
    z, prior = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0.2, 0.3, 0.5])
    expected = gence.cross_entropy(z + prior.double().log(), torch.arange(6) % 3)
    assert_close(gence.logit_adjusted_loss(z, torch.arange(6) % 3, prior=prior), expected, rtol=1e-13, atol=0)
