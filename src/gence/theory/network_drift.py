"""Curvature along class biases, measured on a small network while it learns digits: the toy's closed form, for real."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gence.losses import gen_cross_entropy, marginal_offset
from gence.theory._checks import checked_count, checked_seed
from gence.theory.drift import bias_curvature, checked_target
from gence.theory.scores import kl_from_logs


@dataclass(frozen=True, kw_only=True)
class MeasuredCurvature:
    """A network's predictions on its training digits, after some steps, and how GenCE holds their marginal.

    "Balanced" is said of the same predictions once offsets have put their marginal right. Curvature is that along class
    biases, and its ratio GenCE's trace over cross-entropy's: r^2 on the toy.

    Attributes:
        step: optimiser steps done.
        confidence: mean probability of the true class.
        divergence: KL(labels || predicted marginal).
        ratio: GenCE's curvature over cross-entropy's.
        balanced_ratio: the same, balanced.
        smallest: smallest eigenvalue of GenCE's curvature; 0 belongs to the direction that no loss feels.
        balanced_smallest: the same, balanced; never below 0.
        pull: slope of GenCE along the straight line from the balanced offsets to the network's own, outward. Positive:
            it pulls back. NaN where the marginal is right already, and no way leads out.
        curvature_outward: its curvature along that line. Negative: the further off, the weaker the pull.
    """

    step: int
    confidence: float
    divergence: float
    ratio: float
    balanced_ratio: float
    smallest: float
    balanced_smallest: float
    pull: float
    curvature_outward: float


def measure(step: int, logits: Tensor, target: Tensor) -> MeasuredCurvature:
    """Measure predictions (n, K), whose labels are class indices (n,) and show every class; ``step`` is only noted."""
    target = checked_target(logits, target)
    n, K = logits.shape
    z = logits.detach().double()
    labels = torch.bincount(target, minlength=K).double() / n  # (K,)
    if bool((labels == 0).any()):
        raise ValueError(f"target: expected labels of all {K} classes, got none of class {int(labels.argmin())}.")
    log_s = z.log_softmax(1).logsumexp(0) - math.log(n)  # (K,)
    offset = marginal_offset(z, labels)  # (K,)
    balanced = z + offset
    plain, discriminative = (bias_curvature(z, target, anchor=a) for a in (0.0, 1.0))
    balanced_plain, balanced_discriminative = (bias_curvature(balanced, target, anchor=a) for a in (0.0, 1.0))
    slope = torch.func.grad(lambda b: gen_cross_entropy(z + b, target))(torch.zeros_like(offset))
    outward = offset.mean() - offset  # b = 0 is the network's own; the direction in which all move together is left out
    outward = outward / outward.norm()
    return MeasuredCurvature(
        step=step,
        confidence=z.softmax(1)[torch.arange(n), target].mean().item(),
        divergence=kl_from_logs(labels, log_s).item(),
        ratio=(plain.trace() / discriminative.trace()).item(),
        balanced_ratio=(balanced_plain.trace() / balanced_discriminative.trace()).item(),
        smallest=torch.linalg.eigvalsh(plain)[0].item(),
        balanced_smallest=torch.linalg.eigvalsh(balanced_plain)[0].item(),
        pull=(slope @ outward).item(),
        curvature_outward=(outward @ plain @ outward).item(),
    )


def curvature_while_training(
    *, seed: int = 0, anchor: float = 0.0, steps: int = 120, every: int = 8
) -> list[MeasuredCurvature]:
    """Train two layers on 300 centred digits, the whole set a step, and measure the curvature on the way.

    In float64 and without a random draw but the first weights, so that the numbers repeat.

    Args:
        seed: of the first weights.
        anchor: strength of the anchor to the labels that the network is trained with; what is measured is plain GenCE.
        steps: optimiser steps.
        every: steps from one measurement to the next; the first is before any step.

    >>> first, last = curvature_while_training(every=120)
    >>> first.ratio < 0.01, last.ratio > 0.8
    (True, True)
    """
    steps, every = checked_count("steps", steps, 0), checked_count("every", every, 1)
    x, y, _, _ = centred_digits()
    x = x.double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(checked_seed(seed))
        network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    found = []
    for step in range(steps + 1):
        logits = network(x)
        if step % every == 0:
            found.append(measure(step, logits, y))
        loss = gen_cross_entropy(logits, y, anchor=anchor)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return found


def centred_digits(per_class: int = 30) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scikit-learn's digits: ``per_class`` of each to train on, and all others, less the mean of the first.

    Returns:
        Inputs (n, 64) in float32 and labels (n,) to train on, then those of the rest.
    """
    from sklearn.datasets import load_digits

    per_class = checked_count("per_class", per_class, 1)
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    chosen = torch.cat([torch.nonzero(y == k)[:per_class, 0] for k in range(10)])
    rest = torch.ones(len(y), dtype=torch.bool)
    rest[chosen] = False
    x = x - x[chosen].mean(0)
    return x[chosen], y[chosen], x[rest], y[rest]
