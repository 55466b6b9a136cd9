"""Repairing a drifted class marginal after training: K offsets, and where to put them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gence.losses import _checks
from gence.losses.targets import flatten_logits

_DENSE = 2048  # classes up to which Newton's step is solved with its matrix
_BLOCK, _BLOCK_ON_CPU = 1 << 22, 1 << 18  # logits taken to float64 at a time; few stay in a CPU's caches
_CONJUGATE_STEPS = 20
_TINY = 1e-200  # a sum below it is made in log space

_KEEPS_LOGITS = (nn.Identity, nn.Dropout, nn.Flatten, nn.Softmax, nn.LogSoftmax)
"""What may stand behind the layer that makes the logits."""


def marginal_offset(
    logits: Tensor, prior: Tensor | None = None, *, tolerance: float = 1e-9, max_steps: int = 500
) -> Tensor:
    r"""The K offsets b with :math:`\frac1n \sum_i \mathrm{softmax}(z_i + b) = \pi` over the given logits.

    GenCE leaves a network's class marginal almost free, so it drifts while the ranking within each class stays good.
    Adding b to the logits puts the marginal back. It needs the training logits only: no labels, no validation data.

    b minimises the convex :math:`\frac1n\sum_i \mathrm{lse}(z_i + b) - \sum_k \pi_k b_k`, whose gradient is the
    difference of the two marginals. Damped Newton steps in float64; the matching step
    :math:`b_k \mathrel{+}= \log(\pi_k / m_k)` where a class is so far off that Newton's model says nothing. With many
    classes Newton's step is found by conjugate gradients, without its K x K matrix.

    Args:
        logits: (n, K) or (N, K, d1, ...), of the training set, without gradient.
        prior: the wanted marginal (K,); uniform by default. A class with prior 0 gets the offset -inf.
        tolerance: largest difference between the marginals that counts as solved.
        max_steps: an upper bound on Newton steps.

    Returns:
        b (K,) in the logits' dtype (float32 for half types), shifted so that its finite entries sum to 0.

    Raises:
        RuntimeError: if the marginal cannot be matched to 1e-4, which happens when predictions are so sharp that it
            moves in jumps of 1/n.

    >>> import torch, gence
    >>> drifted = torch.randn(500, 4) + torch.tensor([9.0, 0.0, 0.0, -5.0])
    >>> b = gence.marginal_offset(drifted)
    >>> torch.testing.assert_close((drifted + b).softmax(1).mean(0), torch.full((4,), 0.25), atol=1e-5, rtol=0)
    """
    _checks.check_logits(logits, "logits")
    _checks.check_number("tolerance", tolerance, "a difference of marginals, such as 1e-9")
    _checks.check_number("max_steps", max_steps, "a number of steps >= 1")
    if not max_steps >= 1:
        raise ValueError(f"max_steps: expected a number of steps >= 1, got {max_steps}")
    z = flatten_logits(logits.detach())  # (n, K)
    if not all(bool(end.isfinite()) for end in z.aminmax()):  # NaN is both ends then; a mask would be as large as z
        raise ValueError("logits: expected finite values, got NaN or infinity")
    K = z.shape[1]
    _checks.check_prior(prior, K)
    pi = torch.full((K,), 1.0 / K, dtype=torch.float64) if prior is None else prior.detach().double()
    pi = pi.to(z.device)
    pi = pi / pi.sum()
    kept = pi > 0
    b = torch.full_like(pi, -torch.inf)
    b[kept] = _solve(z if bool(kept.all()) else z[:, kept], pi[kept], tolerance, max_steps)
    dtype = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    return b.to(dtype)


def fold_offset(module: nn.Module, offset: Tensor) -> nn.Linear:
    """Add offsets to the bias of a model's last linear layer, in place, and return that layer.

    A layer without a bias gets one. The model then predicts what it predicted for ``logits + offset``.

    Args:
        module: the ``nn.Linear`` that makes the logits, or a model in which it is plain which one does: the last of an
            ``nn.Sequential`` with nothing behind it that changes logits, or the only one with K outputs.
        offset: (K,), as :func:`marginal_offset` returns it.

    >>> import torch, gence
    >>> model = torch.nn.Sequential(torch.nn.Linear(5, 3, bias=False))
    >>> x = torch.randn(100, 5)
    >>> before, b = model(x), gence.marginal_offset(model(x))
    >>> layer = gence.fold_offset(model, b)
    >>> torch.testing.assert_close(model(x), before + b)
    """
    if not isinstance(offset, Tensor):
        raise TypeError(f"offset: expected a tensor (K,), as marginal_offset returns it, got {type(offset).__name__}")
    layer = _logit_layer(module, tuple(offset.shape))
    with torch.no_grad():
        offset = offset.to(layer.weight)
        if layer.bias is None:
            layer.bias = nn.Parameter(offset.clone())
        else:
            layer.bias.add_(offset)
    return layer


def _logit_layer(module: nn.Module, shape: tuple[int, ...]) -> nn.Linear:
    """The layer that makes the logits; raise `ValueError` where that is a guess."""
    while isinstance(module, nn.Sequential):  # here the order of the layers is that of the computation
        with_linear = [child for child in module if any(isinstance(m, nn.Linear) for m in child.modules())]
        if not with_linear:
            break
        children = list(module)
        for behind in children[children.index(with_linear[-1]) + 1 :]:
            if not isinstance(behind, _KEEPS_LOGITS):
                raise ValueError(
                    f"module: {type(behind).__name__} comes behind the last linear layer, so that layer's outputs may "
                    "not be the logits; give the layer that makes them, as in fold_offset(model.head, offset)"
                )
        module = with_linear[-1]
    linears = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    if not linears:
        raise ValueError(f"module: expected a model with an nn.Linear layer, got {type(module).__name__} without one")
    fitting = {name: layer for name, layer in linears.items() if shape == (layer.out_features,)}
    if not fitting:
        last = list(linears.values())[-1]
        raise ValueError(f"offset: expected shape ({last.out_features},), the layer's outputs, got {shape}")
    if len(fitting) > 1:
        raise ValueError(
            f"module: {len(fitting)} linear layers of {type(module).__name__} have {shape[0]} outputs "
            f"({', '.join(fitting)}); give the one that makes the logits, as in fold_offset(model.head, offset)"
        )
    return next(iter(fitting.values()))


def _solve(z: Tensor, pi: Tensor, tolerance: float, max_steps: int) -> Tensor:
    n, K = z.shape
    b = torch.zeros_like(pi)
    value, damping, gap = torch.inf, 1e-12, torch.inf
    candidates = [b]
    # Of many classes, the probabilities of the last look: a matrix as large as the logits, made once.
    probs = torch.empty_like(z, dtype=torch.float32) if K > _DENSE else None
    for step_number in range(max_steps + 1):  # the last time round is for the gap that the last step left
        looks, values = [], []
        for step in candidates:
            looks.append(_look(z, b + step, probs))
            values.append(looks[-1].mean_lse - float((pi * (b + step)).sum()))
            if probs is not None and values[-1] < value:
                break  # a look at many classes takes seconds, and Newton's step is nearly always the better
        best = min(range(len(values)), key=values.__getitem__)
        if len(values) > 1:
            damping = max(damping / 10, 1e-13) if best == 0 else damping * 10
        if values[best] > value:  # rounding: nothing left to gain
            break
        value, log_m = values[best], looks[best].log_marginal
        b = b + candidates[best]
        b = b - b.mean()
        m = log_m.exp()
        gap = float((m - pi).abs().max())
        if gap <= tolerance or step_number == max_steps:
            break
        ridge = max(damping, 1e-13)
        if probs is not None and best + 1 < len(looks):
            _look(z, b, probs)
        step = _dense_step(z, b, m, pi - m, ridge) if probs is None else _conjugate_step(probs, m, pi - m, ridge)
        # The second one never increases the objective: a step of expectation maximisation.
        candidates = [*([step] if bool(step.isfinite().all()) else []), pi.log() - log_m]
    if not gap <= 1e-4:
        raise RuntimeError(
            f"marginal_offset: after {step_number} steps the predicted marginal is still {gap:.2g} from the prior. "
            f"Where predictions are so sharp that it moves in jumps of 1/n = {1 / n:.2g}, give more rows, or soften "
            f"the logits first; otherwise raise max_steps, which is {max_steps}."
        )
    return b


class _Look(NamedTuple):
    """What one pass over the rows says of some offsets."""

    mean_lse: float  # of the rows' log-sum-exp
    log_marginal: Tensor  # (K,)


def _look(z: Tensor, b: Tensor, probs: Tensor | None) -> _Look:
    """The objective's first part and the marginal of z + b, a block of rows at a time, in float64.

    ``probs`` gets the softmax, in float32.
    """
    total, sums = 0.0, torch.zeros_like(b)
    kept = () if probs is None else _blocks(probs)
    for at, block in enumerate(_blocks(z)):
        shifted = block.double() + b
        top = shifted.amax(1, keepdim=True)
        parts = shifted.sub_(top).exp_()  # (rows, K)
        whole = parts.sum(1, keepdim=True)
        total += float((top + whole.log()).sum())
        parts.div_(whole)
        sums += parts.sum(0)
        if kept:
            kept[at].copy_(parts)
    log_sums = sums.log() if float(sums.min()) > _TINY else _log_sums(z, b)
    return _Look(total / len(z), log_sums - math.log(len(z)))


def _log_sums(z: Tensor, b: Tensor) -> Tensor:
    """The log of the summed softmax of z + b, in log space, where a class may be far below any number -> (K,)."""
    found = torch.full_like(b, -torch.inf)
    for block in _blocks(z):
        found = torch.logaddexp(found, (block.double() + b).log_softmax(1).logsumexp(0))
    return found


def _blocks(values: Tensor) -> tuple[Tensor, ...]:
    return torch.split(values, max(1, (_BLOCK_ON_CPU if values.is_cpu else _BLOCK) // values.shape[1]))


def _dense_step(z: Tensor, b: Tensor, m: Tensor, gradient: Tensor, ridge: float) -> Tensor:
    """Newton's step with its matrix diag(m) - P'P / n, singular along the all-ones direction."""
    K = len(m)
    hessian = torch.diag(m)
    for block in _blocks(z):
        p = (block.double() + b).softmax(1)
        hessian -= p.T @ p / len(z)
    step, info = torch.linalg.solve_ex(
        hessian + ridge * torch.eye(K, dtype=b.dtype, device=b.device) + 1 / K**2, gradient
    )
    return step if int(info) == 0 else torch.full_like(step, torch.nan)


def _conjugate_step(p: Tensor, m: Tensor, gradient: Tensor, ridge: float) -> Tensor:
    """Newton's step by conjugate gradients with the matrix's diagonal as preconditioner.

    Probabilities (n, K) are in float32: the direction need not be exact, and in float64 they would be twice the logits.
    """

    def product(v: Tensor) -> Tensor:
        return (m + ridge) * v - (p.T @ (p @ v.float())).double() / len(p)

    diagonal = m + ridge
    step, residual = torch.zeros_like(m), gradient.clone()
    direction = scaled = residual / diagonal
    size = start = float(residual @ scaled)
    for _ in range(_CONJUGATE_STEPS):
        along = product(direction)
        curvature = float(direction @ along)
        if curvature <= 0 or size <= 1e-4 * start:
            break
        step = step + (size / curvature) * direction
        residual = residual - (size / curvature) * along
        scaled = residual / diagonal
        size, before = float(residual @ scaled), size
        direction = scaled + (size / before) * direction
    return step
