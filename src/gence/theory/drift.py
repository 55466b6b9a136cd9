"""Why the class marginal is almost free under GenCE: curvature and loss along the class-bias directions z -> z + b.

Adding b to every row's logits multiplies column k by exp(b_k) and then divides each row by its new sum. GenCE does not
see the scale of a column, so it feels b only through those sums, as far as they differ between rows: not at all where
all rows are alike. The Hessian in b is, with A_j = diag(p_j) - p_j p_j^T and omega_jk = p_jk / S_k,

    H = (1/n) sum_j A_j - sum_k rho_k [ sum_j omega_jk A_j - Cov_{omega_k}(p_j) ],      rho_k = T_k/n - anchor * pi_k,

where cross-entropy has rho = 0. Once the marginal is right (S = T), the A_j cancel and only the covariances are left:
there GenCE is convex in b. Away from it, it need not be. Below, the same is measured on a small network while it learns
digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gence.losses import check_number, gen_cross_entropy, marginal_offset, prior_divergence
from gence.theory._checks import check_tensor, checked_anchor, checked_count, checked_prior, checked_seed


def bias_curvature(logits: Tensor, target: Tensor, *, anchor: float = 0.0, prior: Tensor | None = None) -> Tensor:
    """Hessian (K, K) of anchored GenCE along class-bias directions, at b = 0, for any batch of logits.

    Args:
        logits: (n, K), of a network or a toy; no gradient is kept.
        target: class indices (n,).
        anchor: 0 for the paper's loss; 1 with ``prior=None`` gives cross-entropy's curvature.
        prior: (K,) of the anchor; the batch's own label distribution when None.

    Returns:
        Symmetric float64 matrix with the all-ones vector in its null space. It may have negative eigenvalues where the
        marginal is off its place: GenCE is not convex in b.

    >>> logits = torch.eye(3).repeat(4, 1)
    >>> target = torch.arange(3).repeat(4)
    >>> plain, anchored = (bias_curvature(logits, target, anchor=a).trace().item() for a in (0.0, 1.0))
    >>> round(plain, 3), round(anchored, 3)
    (0.077, 0.578)
    """
    target = checked_target(logits, target)
    n, K = logits.shape
    anchor, prior = checked_anchor(anchor), checked_prior(prior, K)
    p = logits.detach().double().softmax(1)  # (n, K)
    labels = torch.bincount(target, minlength=K).double() / n  # (K,)
    rho = labels - anchor * (labels if prior is None else prior)  # (K,)
    omega = logits.detach().double().log_softmax(1).softmax(0)  # (n, K): each column sums to 1, no S that underflows
    omega = torch.where(rho == 0, 0.0, omega)  # such a column has no say; if it is masked out, all -inf, it is NaN
    row_weight = 1 / n - omega @ rho  # (n,): what is left of A_j
    within = torch.diag(row_weight @ p) - p.T @ (row_weight[:, None] * p)
    centre = omega.T @ p  # (K, K): row k is the mean of p_j under omega_k
    second = p.T @ ((omega @ rho)[:, None] * p)  # sum_k rho_k sum_j omega_jk p_j p_j^T
    between = second - centre.T @ (rho[:, None] * centre)
    return within + between


def bias_profile(
    logits: Tensor, target: Tensor, offsets: Tensor, *, anchor: float = 0.0, prior: Tensor | None = None, index: int = 0
) -> Tensor:
    """Loss of a batch when offset b is added to the logit of class ``index``, for each b of ``offsets``, float64.

    Args:
        logits: (n, K); no gradient is kept.
        target: class indices (n,).
        offsets: any shape, which is that of the result.
        anchor: 0 for the paper's loss; 1 with ``prior=None`` gives cross-entropy up to a constant.
        prior: (K,) of the anchor; the batch's own label distribution when None.
        index: the class whose logits are moved.
    """
    target = checked_target(logits, target)
    K = logits.shape[1]
    check_tensor("offsets", offsets, "of any shape")
    index = checked_count("index", index, 0)
    if index >= K:
        raise ValueError(f"index: expected a class from 0 to {K - 1}, got {index}.")
    anchor, prior = checked_anchor(anchor), checked_prior(prior, K)
    direction = torch.nn.functional.one_hot(torch.tensor(index), K).double()
    z = logits.detach().double()
    found = offsets.double()
    losses = [gen_cross_entropy(z + b * direction, target, anchor=anchor, prior=prior) for b in found.flatten()]
    return torch.stack(losses).view(offsets.shape) if losses else found


def toy_logits(classes: int, sharpness: float, per_class: int = 1) -> tuple[Tensor, Tensor]:
    """The symmetric toy: each sample gives its own class probability ``sharpness`` and shares the rest evenly.

    Returns:
        Logits (classes * per_class, classes) in float64 and targets.
    """
    classes, sharpness = _check_toy(classes, sharpness)
    per_class = checked_count("per_class", per_class, 1)
    margin = math.log(sharpness) - math.log((1 - sharpness) / (classes - 1))
    target = torch.arange(classes).repeat(per_class)
    return margin * torch.nn.functional.one_hot(target, classes).double(), target


def toy_curvature(classes: int, sharpness: float, *, anchor: float = 0.0) -> float:
    """Closed form of the toy's curvature in any direction b with sum_k b_k = 0 and |b| = 1.

    With r = p - (1 - p)/(K - 1), which is 0 for a guess and 1 for certainty,

        CE: (1 - r^2) / K        GenCE: r^2 (1 - r^2) / K        anchored: (1 - a) GenCE + a CE.

    GenCE has a fraction r^2 of CE's curvature: none while the network guesses. All three vanish as p -> 1; there the
    difference is in how far the flat part reaches (``toy_plateau``).

    >>> toy_curvature(10, 0.1), toy_curvature(10, 0.1, anchor=1.0)
    (0.0, 0.1)
    """
    classes, sharpness = _check_toy(classes, sharpness)
    anchor = checked_anchor(anchor)
    r = sharpness - (1 - sharpness) / (classes - 1)
    discriminative = (1 - r * r) / classes
    return (1 - anchor) * r * r * discriminative + anchor * discriminative


def toy_profile(classes: int, sharpness: float, offsets: Tensor, *, anchor: float = 0.0) -> Tensor:
    """Closed form of the toy's loss when b is added to one class's logit, less its value at b = 0, for each b.

    Args:
        classes: K.
        sharpness: probability p of the own class at b = 0.
        offsets: any shape.
        anchor: 0 for GenCE, 1 for CE (batch's own prior).
    """
    classes, sharpness = _check_toy(classes, sharpness)
    check_tensor("offsets", offsets, "of any shape")
    anchor = checked_anchor(anchor)
    K, b = classes, offsets.double()
    b = torch.cat([b.flatten(), b.new_zeros(1)])  # the last entry is the reference
    m = torch.full_like(b, math.log(sharpness) - math.log((1 - sharpness) / (K - 1)))
    zero = torch.zeros_like(b)
    log_others = math.log(K - 1)
    log_z_own = torch.logaddexp(m + b, zero + log_others)  # a sample of the shifted class
    rest = torch.logaddexp(m, zero + math.log(K - 2)) if K > 2 else m
    log_z_other = torch.logaddexp(b, rest)  # a sample of any other class
    log_s_own = torch.logaddexp(m + b - log_z_own, b + log_others - log_z_other)
    log_s_other = torch.logaddexp(-log_z_own, rest - log_z_other)
    cross_entropy = ((log_z_own - m - b) + (K - 1) * (log_z_other - m)) / K
    marginal = (log_s_own + (K - 1) * log_s_other) / K
    loss = cross_entropy + (1 - anchor) * marginal
    return (loss[:-1] - loss[-1]).view(offsets.shape)


def toy_plateau(classes: int, *, anchor: float = 0.0) -> float:
    """What it costs a perfectly sharp toy to call everything one class: (log K) / K, or infinity with an anchor.

    As b grows, the other K - 1 columns keep their shape and pay nothing; the winning column becomes constant over all
    samples and pays log K, for 1/K of the samples. A bounded cost has no restoring force at its far end.

    >>> round(toy_plateau(10), 3)
    0.23
    """
    classes = checked_count("classes", classes, 2)
    return math.log(classes) / classes if checked_anchor(anchor) == 0 else math.inf


def checked_target(logits: Tensor, target: Tensor) -> Tensor:
    """Return ``target`` as int64 after checking that it holds a class index for each row of ``logits`` (n, K)."""
    check_tensor("logits", logits, "(n, K)")
    check_tensor("target", target, "(n,)")
    if logits.dim() != 2 or target.shape != logits.shape[:1]:
        raise ValueError(
            f"logits, target: expected (n, K) and (n,), got {tuple(logits.shape)} and {tuple(target.shape)}; "
            "flatten dense inputs to rows first."
        )
    n, K = logits.shape
    if n == 0 or K == 0:
        raise ValueError(f"logits: expected at least one row and one class, got shape {tuple(logits.shape)}.")
    integers = not target.is_floating_point() and target.dtype != torch.bool
    indices = target.long()  # K may be more than a byte holds, and bytes that index a tensor are a mask
    if not integers or bool((indices < 0).any()) or bool((indices >= K).any()):
        seen = f"{int(indices.min())} to {int(indices.max())}" if integers else target.dtype
        raise ValueError(f"target: expected class indices from 0 to {K - 1}, got {seen}.")
    return indices


def _check_toy(classes: int, sharpness: float) -> tuple[int, float]:
    classes = checked_count("classes", classes, 2)
    check_number("sharpness", sharpness, "a probability strictly between 0 and 1")
    if not 0 < sharpness < 1:
        raise ValueError(f"sharpness: expected a probability strictly between 0 and 1, got {sharpness}.")
    return classes, float(sharpness)


@dataclass(frozen=True, kw_only=True)
class MeasuredCurvature:
    """A network's predictions on its training digits, after some steps, and how GenCE holds their marginal.

    "Balanced" means the same predictions once offsets have put their marginal right. Curvature is that along class
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
    outward = offset.mean() - offset  # b = 0 is the network's own; the direction in which all move together is omitted
    outward = outward / outward.norm()
    return MeasuredCurvature(
        step=step,
        confidence=z.softmax(1)[torch.arange(n), target].mean().item(),
        divergence=prior_divergence(labels, log_s).item(),
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
