"""The gradients of stacked runs are those that autograd finds of the registry's losses."""

from __future__ import annotations

import pytest
import torch

from gence.lab.features.heads.gradients import StackedLoss, criterion
from gence.lab.spec import LossSpec
from gence.losses import LOSSES

READS_LOGITS = [name for name, info in LOSSES.items() if info.takes == "logits"]
VARIANTS = (
    "ce(label_smoothing=0.1)",
    "ce(weight=balanced)",
    "gence(anchor=0.1,weight=balanced)",
    "gence(label_smoothing=0.2)",
    "gence(anchor=0.1)",
    "gence(anchor=0.3,prior=train)",
    "gence(anchor=1,prior=uniform,label_smoothing=0.1)",
    "mae(label_smoothing=0.1)",
    "brier(label_smoothing=0.1)",
    "generalized_ce(q=0.3)",
    "generalized_ce(q=0.9,label_smoothing=0.1)",
    "focal(gamma=0.5)",
    "focal(gamma=0)",
    "focal(gamma=3,label_smoothing=0.1)",
    "logit_adjusted(prior=train)",
    "logit_adjusted(prior=train,tau=0.5)",
    "cosine(label_smoothing=0.1)",
    "mdca(beta=3,label_smoothing=0.1)",
    "poly1(epsilon=-1,label_smoothing=0.1)",
    "squentropy(label_smoothing=0.1)",
    "mbls(alpha=0.5,margin=0.5,label_smoothing=0.1)",
    "logit_norm(tau=1,label_smoothing=0.1)",
    "dual_focal(gamma=0)",
    "dual_focal(gamma=1.5,label_smoothing=0.1)",
)
G, B, K = 2, 12, 4


def problem(scale: float, M: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    z = scale * torch.randn(G, B, M, K, dtype=torch.float64, generator=draw)
    labels = torch.randint(K, (G, B), generator=draw)
    priors = torch.rand(G, K, dtype=torch.float64, generator=draw) + 0.1
    return z, labels, priors / priors.sum(1, keepdim=True)


def by_autograd(losses, z, labels, priors):
    gradient, values = torch.empty_like(z), torch.empty(G, len(losses), dtype=torch.float64)
    for g in range(G):
        for m, loss in enumerate(losses):
            run = z[g, :, m].clone().requires_grad_()
            value = criterion(loss, priors[g]).double()(run, labels[g])
            (gradient[g, :, m],) = torch.autograd.grad(value, run)
            values[g, m] = value.detach()
    return gradient, values


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("loss", [*READS_LOGITS, *VARIANTS])
def test_each_loss_has_the_gradient_of_the_registry(loss: str, scale: float) -> None:
    z, labels, priors = problem(scale, 2)
    losses = [LossSpec.parse(loss)] * 2
    found = StackedLoss([losses] * G, priors)(z, labels)
    for mine, expected in zip(found, by_autograd(losses, z, labels, priors), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


def test_all_losses_side_by_side_with_parameters_of_their_own() -> None:
    losses = [LossSpec.parse(text) for text in sorted([*READS_LOGITS, *VARIANTS])]
    z, labels, priors = problem(2.0, len(losses))
    stacked = StackedLoss([losses] * G, priors)
    for mine, expected in zip(stacked(z, labels), by_autograd(losses, z, labels, priors), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)
    assert stacked(z, labels, values=False)[1] is None


def test_a_share_of_the_anchor() -> None:
    z, labels, priors = problem(1.0, 2)
    full = StackedLoss([[LossSpec.parse("gence(anchor=0.4)")] * 2] * G, priors)
    half = StackedLoss([[LossSpec.parse("gence(anchor=0.2)")] * 2] * G, priors)
    torch.testing.assert_close(full(z, labels, anchor_share=torch.full((G, 2), 0.5))[0], half(z, labels)[0])


@pytest.mark.parametrize("loss", READS_LOGITS)
def test_extreme_logits_are_finite_in_float32(loss: str) -> None:
    z, labels, priors = problem(1e4, 1)
    gradient, values = StackedLoss([[LossSpec.parse(loss)]] * G, priors.float())(z.float(), labels)
    assert bool(gradient.isfinite().all())
    assert bool(values.isfinite().all())


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([["supcon"]] * G, "supcon: it trains an encoder, and the encoder is frozen"),
        ([["ce"], ["mae"]], "same losses in the same order"),
        ([["focal(q=1)"]] * G, "unknown parameter 'q'"),
        ([["gence(anchor=1,prior=tran)"]] * G, "expected 'train', 'uniform'"),
        ([["ce(weight=2)"]] * G, "weight is 2; expected 'balanced'"),
    ],
)
def test_losses_that_cannot_be_stacked(losses: list[list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StackedLoss([[LossSpec.parse(loss) for loss in group] for group in losses], torch.full((G, K), 1 / K))
