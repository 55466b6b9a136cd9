"""The loss on a CPU in blocks of rows that stay in a cache, without needless temporaries.

Forward, a block's softmax is written once, kept for the backward pass (as ``F.cross_entropy`` keeps its log-softmax),
and read again while it is hot, for the column sums. These are linear, and taken again in log space if a class that
counts sinks so low that they would underflow: on a CPU a look at the values costs nothing. Backward, the softmax
becomes the gradient where it lies, by PyTorch's own kernel for the gradient of a softmax: one pass, in place. The usual
batch is one block, of which nothing but labels and an anchor to them has to be known.

Over 300 lines, so that one call is read in one place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gence.losses.backends.second import differentiable_gradients, needs_plain_gradient
from gence.losses.formula import anchor_term, class_prior, marginal_divergence
from gence.losses.targets import Rows, class_mass, mean_denominator

_LOW = -60.0  # a little above the logarithm of the blocks' floor
_HUGE = -1e3  # below it, a logarithm loses digits in which the rows differ
FLOOR = 1e-30  # below it a probability, or a sum of them, has lost digits, and log space is needed
STEEP = 2.0**24  # an upstream gradient beyond it, divided by a probability at the floor, may overflow
ONE_BLOCK = 1 << 22  # logits up to which fewer operations save more than a cache does
BLOCK_BYTES = 2 << 20  # within a last-level cache, and large enough to drown the calls' own cost

# By its overload, because only that writes into a given tensor. It works row by row and reads before it writes.
_softmax_backward = torch.ops.aten._softmax_backward_data.out


def some_invalid(rows: Rows) -> Tensor | None:
    """Which rows take part (n,) bool; None where all do."""
    valid = rows.valid()
    return None if valid is None or bool(valid.all()) else valid


def blocks_loss(rows: Rows, anchor: float | Tensor, prior: Tensor | None, context: Tensor | None) -> Tensor | None:
    """The loss of rows with class indices or two-hot targets; None where plain operations have to compute it.

    That is where all rows mask a class that counts by a huge number, or one of weight 0 by minus infinity.
    """
    anchor = anchor.detach() if isinstance(anchor, Tensor) else anchor
    alone = rows.index is not None and rows.ignore_index is None and rows.weight is None and not rows.label_smoothing
    if (
        alone
        and prior is None
        and context is None
        and not isinstance(anchor, Tensor)
        and rows.reduction != "none"
        and rows.logits.numel() <= ONE_BLOCK
    ):
        loss: Tensor | None = _OneBlockLoss.apply(rows.logits, rows, anchor)
        if loss is not None:
            return loss
    return _BlocksLoss.apply(rows.logits, context, rows, anchor, prior)  # type: ignore[no-any-return]


class _OneBlockLoss(torch.autograd.Function):
    """Labels and an anchor to them alone, of so few rows that each step is one operation; None where sums sink low.

    With c = T / S the loss is sum_i log (S_y / p_iy) + anchor * sum_k T_k log c_k, and a softmax's own gradient
    (1 - anchor) * c_k - t_ik / p_ik, to which the mean adds a factor.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Rows, anchor: float) -> Tensor | None:
        index = rows.labels()[0][0]
        probs = torch.softmax(logits, 1, dtype=rows.computed)  # (n, K)
        sums, picked = _column_sums(probs), probs.gather(1, index[:, None])  # (K,), (n, 1)
        if not (sums.min().item() >= FLOOR and picked.min().item() > FLOOR):  # NaN included
            return None
        mass = class_mass(rows)  # (K,)
        c = mass / sums
        cost = (mass * sums.log()).sum() - picked.log().sum()
        if anchor > 0:
            cost = cost + anchor * torch.xlogy(mass, c).sum()
        ctx.rows, ctx.anchor = replace(rows, logits=logits.new_empty(0, len(c))), anchor
        ctx.kept = probs, picked, c
        ctx.save_for_backward(logits, rows.index)
        return (cost / len(logits) if rows.reduction == "mean" else cost).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        logits, index = ctx.saved_tensors
        if needs_plain_gradient(upstream):
            rows = replace(ctx.rows, logits=logits)
            return differentiable_gradients(rows, ctx.anchor, None, None, upstream, (True, False))[0], None, None
        probs, picked, c = ctx.kept
        factor = upstream.item() / (len(logits) if ctx.rows.reduction == "mean" else 1)
        # An upstream gradient divided by a probability at the floor may overflow.
        steep = abs(factor) if STEEP < abs(factor) < math.inf else 1.0
        c = c * ((1 - ctx.anchor) * factor / steep)
        grad = torch.empty_like(probs).copy_(c)
        grad.scatter_(1, index[:, None], c[index][:, None] - (factor / steep) / picked)
        _softmax_backward(grad, probs, 1, probs.dtype, grad_input=grad)
        return (grad if steep == 1.0 else grad.mul_(steep)).to(logits.dtype), None, None


class _BlocksLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, context: Tensor | None, rows: Rows, anchor: float | Tensor, prior: Tensor | None
    ) -> Tensor | None:
        n, K = logits.shape
        keep = ctx.needs_input_grad[0] or (context is not None and ctx.needs_input_grad[1])
        sums = logits.new_zeros(K, dtype=rows.computed)
        valid, weight, labels = some_invalid(rows), rows.weights(), rows.labels()
        probs, picked, spread = softmax_blocks(logits, [label for label, _ in labels], sums, keep, rows)
        context_probs = None
        if context is not None:
            context_probs = softmax_blocks(context.to(sums.dtype), [], sums, keep)[0]

        ones = sums.new_ones(n) if valid is None else valid.to(sums.dtype)
        anchored = isinstance(anchor, Tensor) or anchor > 0
        linear = sums.min().item() >= FLOOR  # no NaN either
        mass = class_mass(rows) if anchored or not linear else None
        pi = class_prior(mass, prior) if mass is not None and anchored else None
        low, beyond = None, sums
        if mass is not None and not linear:
            if rows.weight is not None and bool((rows.weight == 0).any()):
                return None
            needed = mass != 0 if pi is None else (mass != 0) | (pi > 0)
            if bool((needed & ~(sums >= FLOOR)).any()):
                low, beyond = sums_in_log_space(logits, context, valid, sums.dtype)
                if bool((low[needed] < _HUGE).any()):
                    return None
            else:
                beyond = torch.where(needed, sums, 1.0)
        eps = rows.label_smoothing
        log_s = beyond.log() if low is None else low + beyond.log()

        cost = spread
        high = all(p.min().item() > FLOOR for p in picked)
        for (label, share), p in zip(labels, picked, strict=True):
            part = log_s.index_select(0, label) - (p.log() if high else log_of_picked(logits, label, p))
            part = part if share is None else torch.where(share > 0, share * part, 0.0)
            part = part if weight is None else part * weight[label]
            part = part if eps == 0 else (1 - eps) * part
            cost = part if cost is None else cost + part
        assert cost is not None  # there is at least one label
        if eps > 0:
            cost = cost + (eps / K) * (log_s.sum() if weight is None else (weight * log_s).sum())
        tau = _target_mass(labels, weight, eps, ones)
        if pi is not None:
            total = ones.sum() + (0 if context is None else len(context))
            cost = cost + anchor_term(anchor, marginal_divergence(pi, log_s, total)) * tau
        if valid is not None:
            cost = torch.where(valid, cost, 0.0)
        denominator = mean_denominator(rows) if rows.reduction == "mean" else None
        ctx.rows = replace(rows, logits=logits.new_empty(0, K))  # the logits themselves are among what is saved
        ctx.anchor, ctx.denominator, ctx.picked = anchor, denominator, picked if high else None
        ctx.probs, ctx.context_probs = probs, context_probs
        # Constants are saved too: autograd then notices if somebody writes into them before the backward pass.
        constants = (
            rows.index,
            *(rows.two_hot or ()),
            rows.weight,
            prior,
            anchor if isinstance(anchor, Tensor) else None,
        )
        ctx.save_for_backward(logits, context, low, beyond, pi, tau, *constants)
        if denominator is None:
            return (cost if rows.reduction == "none" else cost.sum()).to(rows.dtype)
        return (cost.sum() / denominator.masked_fill(denominator == 0, torch.nan)).to(rows.dtype)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        logits, context, low, beyond, pi, tau, *_, prior, _ = ctx.saved_tensors
        rows: Rows = replace(ctx.rows, logits=logits)
        if needs_plain_gradient(upstream):
            needed = ctx.needs_input_grad
            return *differentiable_gradients(rows, ctx.anchor, prior, context, upstream, needed), None, None, None
        n = len(logits)
        valid = some_invalid(rows)
        of_row = upstream.to(tau.dtype)
        if ctx.denominator is not None:
            # The mean over nothing is NaN, and no row has a gradient.
            of_row = torch.where(ctx.denominator == 0, 0.0, of_row / ctx.denominator)
        common = None if rows.reduction == "none" else of_row.item()
        of_row = of_row.expand(n)
        if valid is not None:
            of_row = torch.where(valid, of_row, 0.0)
        steep = of_row.abs().max().item() if common is None else abs(common)
        if STEEP < steep < math.inf:
            of_row, common = of_row / steep, None if common is None else common / steep
        else:
            steep = 1.0
        # A number for all rows is multiplied once: counts are exact, and sums of fractions round.
        pull = class_mass(rows, of_row) if common is None else class_mass(rows) * common
        if pi is not None:
            pull = pull - ctx.anchor * (of_row * tau).sum() * pi
        if low is None:
            classes = tau.new_empty(0, dtype=torch.long)
            sunk, c = (classes, pull[:0], pull[:0]), torch.where(pull != 0, pull / beyond, 0.0)
        else:
            # A class without any probability, as one whose logits are all -inf, pulls at nothing.
            pulls = (pull != 0) & (beyond != 0)
            classes = (pulls & (low < _LOW)).nonzero().squeeze(1)
            sunk = (classes, pull[classes] / beyond[classes], low[classes])
            c = torch.where(pulls & ~(low < _LOW), pull / beyond * torch.exp(-low), 0.0)
        grad = of_context = None
        if ctx.needs_input_grad[0]:
            # The softmax becomes the gradient where it lies. A second backward pass computes it again.
            probs, ctx.probs = ctx.probs, None
            if probs is None:
                probs = softmax_blocks(logits, [], torch.zeros_like(beyond), True, rows)[0]
            if ctx.picked is not None and rows.label_smoothing == 0 and not len(classes):
                parts = zip(_label_pulls(rows, of_row), ctx.picked, strict=True)
                grad = pull_blocks(probs, c, [(label, part / -p) for (label, part), p in parts])
            else:
                grad = sunk_pull_blocks(logits, probs, c, sunk, of_row * tau, valid)
                _subtract_targets(grad, rows, of_row)
            grad = (grad if steep == 1.0 else grad.mul_(steep)).to(logits.dtype)
        if context is not None and ctx.needs_input_grad[1]:
            probs, ctx.context_probs = ctx.context_probs, None
            if probs is None:
                probs = softmax_blocks(context.to(tau.dtype), [], torch.zeros_like(beyond), True)[0]
            if len(classes):
                nothing = tau.new_zeros(len(context))
                of_context = sunk_pull_blocks(context, probs, c, sunk, nothing, None)
            else:
                of_context = pull_blocks(probs, c, [])
            of_context = (of_context if steep == 1.0 else of_context.mul_(steep)).to(context.dtype)
        return grad, of_context, None, None, None


def _target_mass(labels: list[tuple[Tensor, Tensor | None]], weight: Tensor | None, eps: float, ones: Tensor) -> Tensor:
    """tau_i (n,) without a look at all classes: a label's weights, and their mean for what is smoothed."""
    if weight is None:
        return ones
    tau = sum(weight[label] if share is None else share * weight[label] for label, share in labels)
    return ((1 - eps) * tau + eps * weight.mean()) * ones


def _label_pulls(rows: Rows, of_row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(class (n,), g_i w_k t_ik (n,)) of each label, without what smoothing gives to all classes."""
    weight, found = rows.weights(), []
    for label, share in rows.labels():
        part = (1 - rows.label_smoothing) * (of_row if share is None else share * of_row)
        found.append((label, part if weight is None else part * weight[label]))
    return found


def _subtract_targets(grad: Tensor, rows: Rows, of_row: Tensor) -> None:
    """Subtract g_i w_k t_ik in place."""
    for label, part in _label_pulls(rows, of_row):
        grad.scatter_add_(1, label[:, None], -part[:, None])
    if rows.label_smoothing > 0:
        spread, weight = (rows.label_smoothing / rows.num_classes) * of_row[:, None], rows.weights()
        grad.sub_(spread if weight is None else spread * weight)


def _rows_of_block(n: int, K: int, itemsize: int) -> int:
    """Rows of a block: more with more threads, which have a cache each, but no more than a quarter of the rows."""
    row = K * itemsize
    size = max(BLOCK_BYTES, min(n * row // 4, BLOCK_BYTES * torch.get_num_threads()))
    return min(n, max(1, size // row))


def _column_sums(p: Tensor) -> Tensor:
    """Sums over the rows (K,), each thread adding the rows that it has just written.

    Divided by columns, as ``p.sum(0)`` does it, half of the block would have to come out of the other core's cache.
    """
    rows, K = p.shape
    threads = torch.get_num_threads()
    share = rows // threads
    if threads == 1 or share < 2:
        return p.sum(0)
    total = p[: threads * share].view(threads, share, K).sum(1).sum(0)
    return total if threads * share == rows else total + p[threads * share :].sum(0)


def _product(rows: Tensor, values: Tensor) -> Tensor:
    """rows @ values (n,) in their own precision, also where autocast would have it in half."""
    with torch.autocast("cpu", enabled=False):
        return rows @ values


def softmax_blocks(
    logits: Tensor, indices: list[Tensor], sums: Tensor, keep: bool, rows: Rows | None = None
) -> tuple[Tensor | None, list[Tensor], Tensor | None]:
    """Softmax (n, K) if kept, the probabilities at ``indices`` (n,), and the smoothing's cost (n,); adds to ``sums``.

    ``rows`` says which rows take part, all by default, and whether labels are smoothed.
    """
    n, K = logits.shape
    dtype = sums.dtype
    valid = None if rows is None else some_invalid(rows)
    picked = [sums.new_empty(n) for _ in indices]
    spread = None if rows is None or rows.label_smoothing == 0 else sums.new_empty(n)
    weight = None if rows is None or spread is None else rows.weights()
    step = _rows_of_block(n, K, dtype.itemsize)
    probs = sums.new_empty((n if keep else step, K))
    for start in range(0, n, step):
        stop = min(start + step, n)
        z = logits[start:stop].to(dtype)
        if valid is not None:
            z = z.masked_fill(~valid[start:stop, None], 0.0)
        p = probs[start:stop] if keep else probs[: stop - start]
        torch.softmax(z, 1, out=p)
        for index, out in zip(indices, picked, strict=True):
            torch.gather(p, 1, index[start:stop, None], out=out[start:stop, None])
        if rows is not None and spread is not None:
            # The largest probability is 1 / sum exp(z - max): its log completes log p without another exponential.
            minus_log_p = (z.amax(1) - p.amax(1).log_())[:, None] - z
            weighted = minus_log_p.sum(1) if weight is None else _product(minus_log_p, weight)
            spread[start:stop] = (rows.label_smoothing / K) * weighted
        if valid is not None:
            p.mul_(valid[start:stop, None])
        sums.add_(_column_sums(p))
    if spread is not None and valid is not None:
        spread = torch.where(valid, spread, 0.0)
    return probs if keep else None, picked, spread


def log_of_picked(logits: Tensor, index: Tensor, probability: Tensor) -> Tensor:
    """Log-probabilities of labels (n,), exact where the probability itself is too small to tell."""
    log_p = probability.log()
    low = ~(probability > FLOOR)  # NaN included
    if bool(low.any()):
        at = low.nonzero().squeeze(1)
        exact = logits[at].to(log_p.dtype).log_softmax(1)
        log_p[at] = exact.gather(1, index[at, None]).squeeze(1)
    return log_p


def sums_in_log_space(
    logits: Tensor, context: Tensor | None, valid: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Each class's largest log-probability, and S relative to it (K,): S = beyond * exp(top).

    Not log S: where a class is masked by a huge number, log S has no digits left for what lies beyond.
    """
    log_p = logits.to(dtype).log_softmax(1)
    if valid is not None:
        log_p = log_p.masked_fill(~valid[:, None], -torch.inf)
    if context is not None:
        log_p = torch.cat([log_p, context.to(dtype).log_softmax(1)])
    top = log_p.amax(0)
    top = top.masked_fill(top == -torch.inf, 0.0)
    return top, (log_p - top).exp().sum(0)


def pull_blocks(probs: Tensor, c: Tensor, pulls: list[tuple[Tensor, Tensor]]) -> Tensor:
    """p_jk (tau_j + c_k - r_j) - w_k t_jk, written over p, where no label's probability is below ``FLOOR``.

    That is the gradient of a softmax whose own gradient is c_k - w_k t_jk / p_jk.

    Args:
        probs: softmax (n, K).
        c: T_k / S_k (K,).
        pulls: (class index (n,), -w_k t_jk / p_jk (n,)) of each label.
    """
    n, K = probs.shape
    rows = max(1, _rows_of_block(n, K, probs.element_size()) // 2)  # two tensors of this size share the cache
    of_p = c.repeat(rows, 1)
    changes = [(index[:, None], pull[:, None], c[index][:, None]) for index, pull in pulls]
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        p, block = probs[start:stop], of_p[: stop - start]
        for index, pull, _ in changes:
            block.scatter_add_(1, index[start:stop], pull[start:stop])
        _softmax_backward(block, p, 1, p.dtype, grad_input=p)
        for index, _, alone in changes:
            block.scatter_(1, index[start:stop], alone[start:stop])
    return probs


def sunk_pull_blocks(
    logits: Tensor,
    probs: Tensor,
    c: Tensor,
    sunk: tuple[Tensor, Tensor, Tensor],
    own: Tensor,
    valid: Tensor | None,
) -> Tensor:
    """p_jk (tau_j + c_k - r_j), written over p; classes whose sum has sunk are done in log space.

    Args:
        logits: (n, K).
        probs: softmax (n, K).
        c: T_k / S_k (K,), 0 in sunk classes.
        sunk: the sunk classes, their T_k / S_k relative to a log-probability, and that.
        own: tau_j (n,).
        valid: (n,) bool, None where all rows take part.
    """
    n, K = logits.shape
    classes, pull, low = sunk
    rows = _rows_of_block(n, K, probs.element_size())
    scratch = probs.new_empty((rows, K))
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        p = probs[start:stop]
        r = _product(p, c)
        q = None
        if classes.numel():
            z = logits[start:stop].to(p.dtype)
            if valid is not None:
                z = z.masked_fill(~valid[start:stop, None], 0.0)
            q = pull * torch.exp(z.log_softmax(1)[:, classes] - low)
            if valid is not None:
                q.masked_fill_(~valid[start:stop, None], 0.0)  # where there may be an infinity
            r = r + q.sum(1)
        p.mul_(torch.add((own[start:stop] - r)[:, None], c, out=scratch[: stop - start]))
        if q is not None:
            p[:, classes] += q
    return probs
