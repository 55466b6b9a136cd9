"""The loss on a CPU without needless temporaries.

Rows are taken in blocks that stay in the last-level cache; what is kept for the backward pass is the softmax, as
``F.cross_entropy`` keeps its log-softmax. Column sums are linear, and taken again in log space if a class that counts
sinks so low that they would underflow: on a CPU a look at the values costs nothing. Over 300 lines, because the forward
and the backward pass of each kind of target share their blocks and in-place buffers and are read side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gence.losses.fused_small import small_loss
from gence.losses.targets import Target, TwoHot, compute_dtype, loss_dtype

SMALL = 1 << 16  # logits: up to here fewer operations are faster, beyond it fewer passes over memory
BLOCK_BYTES = 2 << 20  # of logits: within a last-level cache, and large enough to drown the calls' own cost
_FLOOR = 1e-30
_LOW = -60.0  # a little above log(_FLOOR)


@dataclass
class _Labels:
    """Targets of the rows as labels: one, or two that share a row."""

    labels: list[tuple[Tensor, Tensor]]  # (class index (n,), share of the row (n,)); shares are 0 where ignored
    valid: Tensor | None  # (n,) bool, None where all rows take part
    weight: Tensor | None  # (K,)
    smoothing: float
    reduction: str
    anchor: float | Tensor
    prior: Tensor | None
    two_hot: bool

    def tau(self) -> Tensor:
        """Weighted label mass of each row (n,)."""
        total = sum(share if self.weight is None else share * self.weight[index] for index, share in self.labels)
        assert isinstance(total, Tensor)  # there is at least one label
        if self.smoothing > 0:
            mean_weight = 1.0 if self.weight is None else self.weight.mean()
            total = (1 - self.smoothing) * total + self.smoothing * mean_weight * self.taking_part(total)
        return total

    def taking_part(self, like: Tensor) -> Tensor:
        """1 for rows that take part, 0 for the others (n,)."""
        return torch.ones_like(like) if self.valid is None else self.valid.to(like.dtype)

    def masses(self, of_row: Tensor, num_classes: int) -> Tensor:
        """T_k = w_k sum_i g_i t_ik (K,)."""
        mass = of_row.new_zeros(num_classes)
        for index, share in self.labels:
            mass.scatter_add_(0, index, share * of_row)
        if self.smoothing > 0:
            rows = (self.taking_part(of_row) * of_row).sum()
            mass = (1 - self.smoothing) * mass + (self.smoothing / num_classes) * rows
        return mass if self.weight is None else mass * self.weight


def loss(
    logits: Tensor,
    target: Target,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    anchor: float | Tensor,
    prior: Tensor | None,
    context: Tensor | None,
) -> Tensor:
    """The loss of checked rows (n, K) with class indices or two-hot targets."""
    dtype = compute_dtype(logits)
    valid = None
    if isinstance(target, TwoHot):
        share = target.share.reshape(-1).to(dtype)
        labels = [(target.first.reshape(-1).long(), share), (target.second.reshape(-1).long(), 1 - share)]
    else:
        index = target.reshape(-1).long()
        ignored = index == ignore_index
        if bool(ignored.any()):
            valid = ~ignored
            index = index.masked_fill(ignored, 0)
        elif _is_small(logits, weight, reduction, label_smoothing, anchor, context):
            small = small_loss(logits, index, reduction == "mean")
            if small is not None:
                return small
        ones = torch.ones(index.shape, dtype=dtype)
        labels = [(index, ones if valid is None else valid.to(dtype))]
    problem = _Labels(
        labels,
        valid,
        None if weight is None else weight.detach().to(dtype),
        float(label_smoothing),
        reduction,
        anchor.detach() if isinstance(anchor, Tensor) else anchor,
        None if prior is None else prior.detach().to(dtype),
        isinstance(target, TwoHot),
    )
    return _CPULoss.apply(logits, context, problem, loss_dtype(logits))  # type: ignore[no-any-return]


def _is_small(
    logits: Tensor, weight: Any, reduction: str, label_smoothing: float, anchor: float | Tensor, context: Any
) -> bool:
    """Whether the batch is one block and nothing but the plain loss is asked for."""
    usual = weight is None and context is None and label_smoothing == 0 and reduction != "none"
    return usual and not isinstance(anchor, Tensor) and anchor == 0 and logits.numel() <= SMALL


class _CPULoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, context: Tensor | None, problem: _Labels, dtype: torch.dtype) -> Tensor:
        n, K = logits.shape
        keep = ctx.needs_input_grad[0] or (context is not None and ctx.needs_input_grad[1])
        sums = torch.zeros(K, dtype=compute_dtype(logits))
        probs, picked, spread = _softmax_blocks(logits, problem, sums, keep)
        context_probs = None
        if context is not None:
            context_probs = _softmax_blocks(context.to(sums.dtype), None, sums, keep)[0]

        ones = torch.ones(n, dtype=sums.dtype)
        mass = problem.masses(ones, K)
        anchored = isinstance(problem.anchor, Tensor) or problem.anchor > 0
        pi = None
        if anchored:
            pi = (
                problem.prior
                if problem.prior is not None
                else mass / mass.sum().clamp_min(torch.finfo(mass.dtype).tiny)
            )
        needed = mass != 0 if pi is None else (mass != 0) | (pi > 0)
        if bool((needed & ~(sums >= _FLOOR)).any()):
            log_s = _log_sums(logits, context, problem.valid, sums.dtype)
        else:
            log_s = torch.where(needed, sums, 1.0).log()

        cost = spread
        tau = problem.tau()
        for (index, share), log_p in zip(problem.labels, picked, strict=True):
            part = share * (log_s[index] - log_p)
            part = part if problem.weight is None else part * problem.weight[index]
            cost = cost + (1 - problem.smoothing) * part
        if problem.smoothing > 0:
            weights = 1.0 if problem.weight is None else problem.weight
            cost = cost + (problem.smoothing / K) * (weights * log_s).sum() * problem.taking_part(cost)
        if pi is not None:
            rows = float(problem.taking_part(cost).sum()) + (0 if context is None else context.shape[0])
            if rows > 0:
                relative = torch.where(pi > 0, pi * log_s, 0.0).sum()
                divergence = torch.xlogy(pi, pi).sum() - relative + pi.sum() * math.log(rows)
                cost = cost + problem.anchor * tau * divergence
        denominator = _denominator(problem, n)
        ctx.problem, ctx.denominator, ctx.anchored = problem, denominator, anchored
        ctx.probs, ctx.context_probs = probs, context_probs
        ctx.save_for_backward(logits, context, log_s, pi, tau)
        if problem.reduction == "none":
            return torch.where(problem.valid, cost, 0.0).to(dtype) if problem.valid is not None else cost.to(dtype)
        if problem.valid is not None:
            cost = torch.where(problem.valid, cost, 0.0)
        total = cost.sum()
        return (total / denominator if problem.reduction == "mean" else total).to(dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        logits, context, log_s, pi, tau = ctx.saved_tensors
        problem: _Labels = ctx.problem
        if torch.is_grad_enabled():
            return *_differentiable(problem, logits, context, upstream, ctx.needs_input_grad), None, None
        n, K = logits.shape
        of_row = upstream.to(tau.dtype)
        if problem.reduction == "mean":
            of_row = of_row / ctx.denominator
        of_row = of_row.expand(n)
        if problem.valid is not None:
            of_row = torch.where(problem.valid, of_row, 0.0)
        pull = problem.masses(of_row, K)
        if pi is not None:
            pull = pull - problem.anchor * (of_row * tau).sum() * pi
        sunk = ((pull != 0) & (log_s < _LOW)).nonzero().squeeze(1)
        log_c = (sunk, pull[sunk], log_s[sunk])
        c = torch.where((pull != 0) & (log_s >= _LOW), pull * torch.exp(-log_s), 0.0)
        grad = None
        if ctx.needs_input_grad[0]:
            # The softmax becomes the gradient where it lies. A second backward pass computes it anew.
            probs, ctx.probs = ctx.probs, None
            if probs is None:
                probs = _softmax_blocks(logits, problem, torch.zeros_like(log_s), True)[0]
            grad = _gradient_blocks(logits, probs, c, log_c, of_row * tau, problem.valid)
            _subtract_targets(grad, problem, of_row)
            grad = grad.to(logits.dtype)
        of_context = None
        if context is not None and ctx.needs_input_grad[1]:
            nothing = tau.new_zeros(context.shape[0])
            probs, ctx.context_probs = ctx.context_probs, None
            if probs is None:
                probs = _softmax_blocks(context.to(tau.dtype), None, torch.zeros_like(log_s), True)[0]
            of_context = _gradient_blocks(context, probs, c, log_c, nothing, None).to(context.dtype)
        return grad, of_context, None, None


def _rows_of_block(K: int, itemsize: int) -> int:
    return max(1, BLOCK_BYTES // (K * itemsize))


def _softmax_blocks(
    logits: Tensor, problem: _Labels | None, sums: Tensor, keep: bool
) -> tuple[Tensor | None, list[Tensor], Tensor]:
    """Softmax (n, K) if kept, log-probabilities of the labels, and the smoothing's own cost; adds to ``sums``."""
    n, K = logits.shape
    dtype = sums.dtype
    labels = [] if problem is None else problem.labels
    valid = None if problem is None else problem.valid
    smooth = problem is not None and problem.smoothing > 0
    picked = [torch.empty(n, dtype=dtype) for _ in labels]
    spread = torch.zeros(n, dtype=dtype)
    rows = _rows_of_block(K, dtype.itemsize)
    probs = torch.empty((n, K), dtype=dtype) if keep else None
    scratch = None if keep else torch.empty((min(rows, n), K), dtype=dtype)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        z = logits[start:stop].to(dtype)
        if valid is not None:
            z = z.masked_fill(~valid[start:stop, None], 0.0)
        p = scratch[: stop - start] if probs is None else probs[start:stop]  # type: ignore[index]
        torch.softmax(z, 1, out=p)
        if problem is not None:
            for (index, _), out in zip(labels, picked, strict=True):
                torch.gather(p, 1, index[start:stop, None], out=out[start:stop, None])
            base = None
            if smooth or not all(bool((out[start:stop] > _FLOOR).all()) for out in picked):
                # The largest probability is 1 / sum exp(z - max): its log completes log p without another exponential.
                base = p.amax(1).log_().sub_(z.amax(1))
            for (index, _), out in zip(labels, picked, strict=True):
                if base is None:
                    out[start:stop].log_()
                else:
                    torch.add(z.gather(1, index[start:stop, None]).squeeze(1), base, out=out[start:stop])
            if smooth and base is not None:
                minus_log_p = -(z + base[:, None])
                weighted = minus_log_p.sum(1) if problem.weight is None else minus_log_p @ problem.weight
                spread[start:stop] = (problem.smoothing / K) * weighted
        if valid is not None:
            p.mul_(valid[start:stop, None])
        sums.add_(p.sum(0))
    if valid is not None:
        spread = torch.where(valid, spread, 0.0)
    return probs, picked, spread


def _log_sums(logits: Tensor, context: Tensor | None, valid: Tensor | None, dtype: torch.dtype) -> Tensor:
    """log S in log space (K,)."""
    log_p = logits.to(dtype).log_softmax(1)
    if valid is not None:
        log_p = log_p.masked_fill(~valid[:, None], -torch.inf)
    if context is not None:
        log_p = torch.cat([log_p, context.to(dtype).log_softmax(1)])
    return log_p.logsumexp(0)


def _gradient_blocks(
    logits: Tensor,
    probs: Tensor,
    c: Tensor,
    sunk: tuple[Tensor, Tensor, Tensor],
    own: Tensor,
    valid: Tensor | None,
) -> Tensor:
    """p_jk (own_j + c_k - r_j), written over p; classes whose sum has sunk are done in log space."""
    n, K = logits.shape
    classes, pull, log_s = sunk
    rows = _rows_of_block(K, probs.element_size())
    scratch = torch.empty((min(rows, n), K), dtype=probs.dtype)
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        p = probs[start:stop]
        r = p @ c
        q = None
        if classes.numel():
            z = logits[start:stop].to(p.dtype)
            if valid is not None:
                z = z.masked_fill(~valid[start:stop, None], 0.0)
            q = pull * torch.exp(z.log_softmax(1)[:, classes] - log_s)
            if valid is not None:
                q.masked_fill_(~valid[start:stop, None], 0.0)  # where there may be an infinity
            r = r + q.sum(1)
        p.mul_(torch.add((own[start:stop] - r)[:, None], c, out=scratch[: stop - start]))
        if q is not None:
            p[:, classes] += q
    return probs


def _subtract_targets(grad: Tensor, problem: _Labels, of_row: Tensor) -> None:
    """Subtract g_i w_k t_ik in place."""
    K = grad.shape[1]
    for index, share in problem.labels:
        part = (1 - problem.smoothing) * share * of_row
        part = part if problem.weight is None else part * problem.weight[index]
        grad.scatter_add_(1, index[:, None], -part[:, None])
    if problem.smoothing > 0:
        rows = (problem.smoothing / K) * of_row * problem.taking_part(of_row)
        weights = of_row.new_ones(K) if problem.weight is None else problem.weight
        grad.sub_(rows[:, None] * weights)


def _denominator(problem: _Labels, n: int) -> Tensor:
    index, share = problem.labels[0]
    if problem.two_hot:
        return share.new_full((), float(n))
    return share.sum() if problem.weight is None else (share * problem.weight[index]).sum()


def _differentiable(
    problem: _Labels, logits: Tensor, context: Tensor | None, upstream: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient by plain operations, for a second derivative."""
    from gence.losses.backend import get_backend, set_backend
    from gence.losses.generative import gen_cross_entropy

    (index, share), *more = problem.labels
    target: Target = index if problem.valid is None else index.masked_fill(~problem.valid, -100)
    if more:
        target = TwoHot(index, more[0][0], share)
    before = get_backend()
    set_backend("torch")
    try:
        value = gen_cross_entropy(
            logits,
            target,
            problem.weight,
            -100,
            problem.reduction,
            problem.smoothing,
            anchor=problem.anchor,
            prior=problem.prior,
            context=context,
        )
    finally:
        set_backend(before)
    wanted = [t for t, need in ((logits, needed[0]), (context, needed[1])) if need and t is not None]
    grads = list(torch.autograd.grad(value, wanted, upstream.to(value.dtype), create_graph=True))
    return grads.pop(0) if needed[0] else None, grads.pop(0) if needed[1] else None
