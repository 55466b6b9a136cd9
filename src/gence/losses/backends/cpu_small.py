r"""A small batch with class indices on a CPU, where the number of operations is the cost, not the logits.

For class indices the loss is :math:`-\log (p_{i y_i} / \sum_j p_{j y_i})`: the log-softmax over the classes, normalised
once more over the rows. Without anchor and smoothing it is cross-entropy's own graph with one ``log_softmax`` more, in
PyTorch's native nodes, which no function in Python can beat at this size. With them, the same operations are one node
here: the anchor changes nothing but each class's coefficient in the gradient. With the anchor alone, the gradient is
made in the forward pass, where no graph is built. Over the rows of a large batch this normalisation is slow.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from gence.losses.backends.second import differentiable_gradients, needs_plain_gradient
from gence.losses.targets import Rows, compute_dtype, loss_dtype

SMALL = 1 << 16  # logits: up to here fewer operations are faster, beyond it fewer passes over memory
MOST_ROWS = 256  # PyTorch adds over the rows one by one, in float32: more of them would round too often
_LOWEST = -60.0  # of the first row's log-probabilities, by which log S is read off, without losing digits
_MASKED = -1e3  # below it float32 loses digits of a class that all rows mask

_NOTHING = -(1 << 63)  # no row is ignored here, and a number that is not a label keeps PyTorch from thinking otherwise
_NO_GRADIENTS = (None,) * 6
_TINY = 1e-37
_FEW_CLASSES = 32
_MOST_CLASSES = 128  # of which a table of one-hot rows is kept
_INFORMATION = [0.0, *(count * math.log(count) for count in range(1, MOST_ROWS + 1))]
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
_log_softmax, _nll_loss = torch.log_softmax, cast(Any, torch._C._nn.nll_loss_nd)


def small_loss(
    logits: Tensor,
    index: Tensor,
    weight: Tensor | None,
    reduction: str,
    smoothing: float = 0.0,
    anchor: float = 0.0,
    prior: Tensor | None = None,
) -> Tensor | None:
    """The loss of rows (n, K), or None where another path has to look.

    That is where an index is out of range (ignored rows included), or a class may have no probability in any row.

    Args:
        logits: (n, K), finite or not.
        index: class indices (n,), int64.
        weight: class weights (K,).
        reduction: "mean", "sum" or "none".
        smoothing: label smoothing.
        anchor: strength of the anchor.
        prior: its class distribution (K,); by default the batch's own.
    """
    try:
        if 0 < anchor < 1 and weight is None and prior is None and not smoothing and reduction != "none":
            return _anchored_loss(logits, index, reduction, anchor)
        if anchor or smoothing:
            return _small_loss(logits, index, weight, reduction, smoothing, anchor, prior)
        if logits.dtype is torch.float32 or logits.dtype is torch.float64:
            log_p = _log_softmax(logits, 1)  # (n, K)
        else:
            log_p = _log_softmax(logits, 1, torch.float32)
        # NaN included: the general path says what becomes of it. A class masked in the first row may be in all.
        if not log_p.data[0].min().item() > _MASKED:
            return None
        if weight is not None:
            weight = weight.to(log_p.dtype)
        loss: Tensor = _nll_loss(_log_softmax(log_p, 0), index, weight, _REDUCTIONS[reduction], _NOTHING)
    except IndexError:
        return None
    return loss if logits.dtype is log_p.dtype else loss.to(loss_dtype(logits))


class _AnchoredLoss(torch.autograd.Function):
    """The recommended call: an anchor to the batch's own labels and nothing else."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, reduction: str, anchor: float) -> Tensor | None:
        n, K = logits.shape
        dtype = compute_dtype(logits)
        log_p = _log_softmax(logits, 1, dtype)  # (n, K)
        if not log_p[0].min().item() > _MASKED:  # NaN included
            return None
        log_q = _log_softmax(log_p, 0)  # (n, K) log (p / S)
        kind, share = _REDUCTIONS[reduction], 1 / n if reduction == "mean" else 1.0
        cost: Tensor = _nll_loss(log_q, index, None, kind, _NOTHING)
        ce = _nll_loss(log_p, index, None, kind, _NOTHING).item()
        cost.fill_((1 - anchor) * cost.item() + anchor * (ce + share * _information(index, K)))
        if ctx.needs_input_grad[0]:
            log_q.add_(_shift(anchor, dtype))  # all that the anchor changes in the gradient
            if K <= _MOST_CLASSES:
                grad = _one_hot(K, -share, dtype).index_select(0, index)
            else:
                grad = torch.zeros_like(log_p).scatter_(1, index.unsqueeze(1), -share)
            grad = torch._log_softmax_backward_data(grad, log_q, 0, dtype)
            ctx.grad = torch._log_softmax_backward_data(grad, log_p, 1, dtype)
            ctx.save_for_backward(logits, index)
            ctx.terms = reduction, anchor
        return cost if logits.dtype is dtype else cost.to(loss_dtype(logits))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        logits, index = ctx.saved_tensors
        if needs_plain_gradient(upstream):
            reduction, anchor = ctx.terms
            rows = Rows(logits, index, None, None, None, None, 0.0, reduction, index.shape, ctx.grad.dtype)
            return differentiable_gradients(rows, anchor, None, None, upstream, (True, False))[0], None, None, None
        grad = ctx.grad * upstream
        return grad if grad.dtype is logits.dtype else grad.to(logits.dtype), None, None, None


class _SmallLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        index: Tensor,
        weight: Tensor | None,
        reduction: str,
        smoothing: float,
        anchor: float,
        prior: Tensor | None,
    ) -> Tensor | None:
        n, K = logits.shape
        dtype = compute_dtype(logits)
        log_p = _log_softmax(logits, 1, dtype)  # (n, K)
        first = log_p[0]  # (K,)
        if not first.min().item() > _LOWEST:  # NaN included
            return None
        log_q = _log_softmax(log_p, 0)  # (n, K) log (p / S)
        kind = _REDUCTIONS[reduction]
        weights = None if weight is None else weight.to(dtype)
        cost: Tensor = _nll_loss(log_q, index, weights, kind, _NOTHING)
        mass = torch.bincount(index, minlength=K).to(dtype)  # (K,)
        if weights is not None:
            mass = mass * weights
        denominator = float(n) if weights is None else mass.sum().item()
        if denominator == 0:
            return None  # all labels have weight 0
        whole = denominator
        if smoothing:
            spread = log_q.sum(1) if weights is None else (log_q * weights).sum(1)  # (n,)
            if kind:
                spread = spread.sum() / (denominator if kind == 1 else 1)
            cost.mul_(1 - smoothing).sub_(spread, alpha=smoothing / K)
            mass = _smoothed(mass, weights, smoothing, n)
            whole = float(n) if weights is None else mass.sum().item()
        if anchor:
            pi = mass / whole if prior is None else prior.to(dtype)  # (K,)
            relative = pi.clamp_min(_TINY).log_().sub_(first).add_(log_q[0])  # (K,) log pi - log S
            divergence = torch.dot(pi, relative).item()
            divergence += math.log(n) * (1.0 if prior is None else pi.sum().item())
            if kind:
                cost.add_(anchor * divergence * (whole / denominator if kind == 1 else whole))
            else:
                cost.add_(_row_mass(index, weights, smoothing, mass), alpha=anchor * divergence)
        if prior is None and kind and 0 < anchor < 1:
            log_q.add_(_shift(anchor, dtype))  # all that the anchor changes in the gradient
        # Constants are saved too: autograd then notices if somebody writes into them before the backward pass.
        ctx.save_for_backward(logits, index, weight, prior)
        ctx.kept = log_p, log_q, weights, mass, whole, denominator
        ctx.terms = reduction, smoothing, anchor
        return cost if logits.dtype is dtype else cost.to(loss_dtype(logits))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits, index, weight, prior = ctx.saved_tensors
        log_p, log_q, weights, mass, whole, denominator = ctx.kept
        reduction, smoothing, anchor = ctx.terms
        if needs_plain_gradient(upstream):
            shape = torch.Size((len(index),))
            rows = Rows(logits, index, None, None, weight, None, smoothing, reduction, shape, log_p.dtype)
            return differentiable_gradients(rows, anchor, prior, None, upstream, (True, False))[0], *_NO_GRADIENTS
        K = log_p.shape[1]
        of_row = upstream.to(log_p.dtype) if reduction == "none" else None  # (n,)
        factor = upstream.item() / (denominator if reduction == "mean" else 1) if of_row is None else 1.0
        # First minus the weighted target of each row, which is the gradient of the loss in log (p / S) ...
        grad = torch.zeros_like(log_p)
        share: float | Tensor = (smoothing - 1) * factor
        if weights is not None:
            share = weights[index].mul_(share).unsqueeze(1)
        if of_row is not None:
            share = of_row[:, None] * share
        grad.scatter_(1, index.unsqueeze(1), share)
        if smoothing:
            spread = (factor if of_row is None else of_row[:, None]) * (smoothing / K)
            grad.sub_(spread if weights is None else spread * weights)
        # ... then through the normalisation over the rows, then through that over the classes.
        if prior is None and of_row is None and anchor <= 1:
            if anchor < 1:
                grad = torch._log_softmax_backward_data(grad, log_q, 0, log_q.dtype)
        else:
            pull, pi = -grad.sum(0), prior  # (K,)
            if of_row is None:
                whole = whole * factor
            elif weights is None:
                whole = of_row.sum()
            else:
                whole = torch.dot(of_row, _row_mass(index, weights, smoothing, mass))
            pi = mass / (mass.sum()) if pi is None else pi.to(pull.dtype)
            grad.addcmul_(log_q.exp(), pull - pi * (anchor * whole))
        grad = torch._log_softmax_backward_data(grad, log_p, 1, log_p.dtype)
        return grad.to(logits.dtype), *_NO_GRADIENTS


# Without what `apply` does for function transforms, under which other paths compute the loss.
_small_loss: Callable[..., Tensor | None] = super(torch.autograd.Function, _SmallLoss).apply
_anchored_loss: Callable[..., Tensor | None] = super(torch.autograd.Function, _AnchoredLoss).apply


@functools.lru_cache(maxsize=8)
def _shift(anchor: float, dtype: torch.dtype) -> Tensor:
    """log (1 - anchor) as a tensor, because a number would be made one in each call."""
    return torch.tensor(math.log1p(-anchor), dtype=dtype, device="cpu")


@functools.lru_cache(maxsize=8)
def _one_hot(K: int, value: float, dtype: torch.dtype) -> Tensor:
    """The one-hot rows of all classes, from which those of a batch are taken by one operation."""
    return torch.eye(K, dtype=dtype, device="cpu").mul_(value)


def _information(index: Tensor, K: int) -> float:
    """sum_k T_k log T_k of the labels (n,), in Python: of few numbers that is faster than by tensors."""
    counts = torch.bincount(index).tolist() if K <= _FEW_CLASSES else Counter(index.tolist()).values()
    return sum(map(_INFORMATION.__getitem__, counts))


def _smoothed(mass: Tensor, weights: Tensor | None, smoothing: float, rows: float | Tensor) -> Tensor:
    """Weighted label mass (K,) after smoothing over ``rows`` rows."""
    each = rows * (smoothing / len(mass))
    return mass * (1 - smoothing) + (each if weights is None else weights * each)


def _row_mass(index: Tensor, weights: Tensor | None, smoothing: float, like: Tensor) -> Tensor:
    """tau_i (n,)."""
    if weights is None:
        return like.new_ones(len(index))
    tau = weights[index]
    return tau if not smoothing else (1 - smoothing) * tau + smoothing * weights.mean()
