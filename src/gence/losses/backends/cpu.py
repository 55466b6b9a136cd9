"""The loss on a CPU without needless temporaries.

What is kept for the backward pass is the softmax, as ``F.cross_entropy`` keeps its log-softmax. Column sums are linear,
and taken again in log space if a class that counts sinks so low that they would underflow: on a CPU a look at the
values costs nothing. The passes over the logits are in :mod:`gence.losses.backends.cpu_blocks`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gence.losses.backends import cpu_blocks as blocks
from gence.losses.backends.cpu_labels import Labels
from gence.losses.backends.cpu_small import is_small, small_loss
from gence.losses.targets import Target, TwoHot, compute_dtype, loss_dtype, needs_plain_gradient

_LOW = -60.0  # a little above the logarithm of the blocks' floor
_HUGE = -1e5  # below it, sums of logarithms over the classes have lost the digits of their differences


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
) -> Tensor | None:
    """The loss of checked rows (n, K) with class indices or two-hot targets; None where it takes plain operations.

    That is where labels are smoothed over a class that all rows mask by a huge number.
    """
    dtype = compute_dtype(logits)
    valid = None
    anchored = isinstance(anchor, Tensor) or anchor > 0
    if isinstance(target, TwoHot):
        share = target.share.reshape(-1).to(dtype)
        labels = [(target.first.reshape(-1).long(), share), (target.second.reshape(-1).long(), 1 - share)]
    else:
        index = target.reshape(-1).long()
        ignored = index == ignore_index
        if bool(ignored.any()):
            valid = ~ignored
            index = index.masked_fill(ignored, 0)
        elif not anchored and label_smoothing == 0 and context is None and is_small(logits):
            small = small_loss(logits, index, weight, reduction)
            if small is not None:
                return small
        labels = [(index, torch.ones_like(index, dtype=dtype) if valid is None else valid.to(dtype))]
    problem = Labels(
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


class _CPULoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, context: Tensor | None, problem: Labels, dtype: torch.dtype) -> Tensor | None:
        n, K = logits.shape
        keep = ctx.needs_input_grad[0] or (context is not None and ctx.needs_input_grad[1])
        sums = logits.new_zeros(K, dtype=compute_dtype(logits))
        probs, picked, spread = blocks.softmax_blocks(logits, problem.indices, sums, keep, problem)
        context_probs = None
        if context is not None:
            context_probs = blocks.softmax_blocks(context.to(sums.dtype), [], sums, keep)[0]

        mass = problem.masses(sums.new_ones(n), K)
        pi = None
        if isinstance(problem.anchor, Tensor) or problem.anchor > 0:
            pi = (
                problem.prior
                if problem.prior is not None
                else mass / mass.sum().clamp_min(torch.finfo(mass.dtype).tiny)
            )
        needed = mass != 0 if pi is None else (mass != 0) | (pi > 0)
        if bool((needed & ~(sums >= blocks.FLOOR)).any()):
            low, beyond = blocks.sums_in_log_space(logits, context, problem.valid, sums.dtype)
        else:
            low, beyond = torch.zeros_like(sums), torch.where(needed, sums, 1.0)
        if problem.smoothing > 0 and low.min().item() < _HUGE:
            return None
        log_s = low + beyond.log()

        cost = sums.new_zeros(n) if spread is None else spread
        tau = problem.tau()
        for (index, share), log_p in zip(problem.labels, blocks.log_of_picked(logits, problem, picked), strict=True):
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
        denominator = problem.denominator()
        ctx.problem, ctx.denominator, ctx.picked = problem, denominator, picked
        ctx.probs, ctx.context_probs = probs, context_probs
        # Constants are saved too: autograd then notices if somebody writes into them before the backward pass.
        ctx.save_for_backward(logits, context, low, beyond, pi, tau, *problem.tensors())
        if problem.valid is not None:
            cost = torch.where(problem.valid, cost, 0.0)
        if problem.reduction == "none":
            return cost.to(dtype)
        total = cost.sum()
        return (total / denominator if problem.reduction == "mean" else total).to(dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        logits, context, low, beyond, pi, tau, *_ = ctx.saved_tensors
        problem: Labels = ctx.problem
        if needs_plain_gradient(upstream):
            return *problem.differentiable_gradients(logits, context, upstream, ctx.needs_input_grad), None, None
        n, K = logits.shape
        of_row = upstream.to(tau.dtype)
        if problem.reduction == "mean":
            of_row = of_row / ctx.denominator
        of_row = of_row.expand(n)
        if problem.valid is not None:
            of_row = torch.where(problem.valid, of_row, 0.0)
        steep = of_row.abs().max().item()
        if blocks.STEEP < steep < math.inf:
            of_row = of_row / steep
        else:
            steep = 1.0
        pull = problem.masses(of_row, K)
        if pi is not None:
            pull = pull - problem.anchor * (of_row * tau).sum() * pi
        # A class without any probability, as one whose logits are all -inf, pulls at nothing.
        pulls = (pull != 0) & (beyond != 0)
        classes = (pulls & (low < _LOW)).nonzero().squeeze(1)
        sunk = (classes, pull[classes] / beyond[classes], low[classes])
        c = torch.where(pulls & ~(low < _LOW), pull / beyond * torch.exp(-low), 0.0)
        grad = None
        if ctx.needs_input_grad[0]:
            # The softmax becomes the gradient where it lies. A second backward pass computes it anew.
            probs, ctx.probs = ctx.probs, None
            if probs is None:
                probs = blocks.softmax_blocks(logits, [], torch.zeros_like(beyond), True, problem)[0]
            high = all(bool((p > blocks.FLOOR).all()) for p in ctx.picked)
            if high and problem.smoothing == 0 and not len(classes):
                parts = zip(problem.parts(of_row), ctx.picked, strict=True)
                grad = blocks.pull_blocks(probs, c, [(index, part / -p) for (index, part), p in parts])
            else:
                grad = blocks.sunk_pull_blocks(logits, probs, c, sunk, of_row * tau, problem.valid)
                blocks.subtract_targets(grad, problem, of_row)
            grad = (grad if steep == 1.0 else grad.mul_(steep)).to(logits.dtype)
        of_context = None
        if context is not None and ctx.needs_input_grad[1]:
            probs, ctx.context_probs = ctx.context_probs, None
            if probs is None:
                probs = blocks.softmax_blocks(context.to(tau.dtype), [], torch.zeros_like(beyond), True)[0]
            if len(classes):
                nothing = tau.new_zeros(context.shape[0])
                of_context = blocks.sunk_pull_blocks(context, probs, c, sunk, nothing, None)
            else:
                of_context = blocks.pull_blocks(probs, c, [])
            of_context = (of_context if steep == 1.0 else of_context.mul_(steep)).to(context.dtype)
        return grad, of_context, None, None
