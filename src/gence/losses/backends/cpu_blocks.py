"""The two passes of the CPU path over the logits, in blocks of rows that stay in a cache.

Forward, a block's softmax is written once and read again while it is hot, for the column sums. Backward, the softmax
becomes the gradient where it lies, by PyTorch's own kernel for the gradient of a softmax: one pass, in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gence.losses.backends.cpu_labels import Labels

FLOOR = 1e-30  # below it a probability, or a sum of them, has lost digits, and log space is needed
STEEP = 2.0**24  # an upstream gradient beyond it, divided by a probability at the floor, may overflow
BLOCK_BYTES = 2 << 20  # within a last-level cache, and large enough to drown the calls' own cost

# By its overload, because only that writes into a given tensor. It works row by row and reads before it writes.
_softmax_backward = torch.ops.aten._softmax_backward_data.out


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
    logits: Tensor, indices: list[Tensor], sums: Tensor, keep: bool, problem: Labels | None = None
) -> tuple[Tensor | None, list[Tensor], Tensor | None]:
    """Softmax (n, K) if kept, the probabilities at ``indices`` (n,), and the smoothing's cost (n,); adds to ``sums``.

    ``problem`` says which rows take part, all by default, and whether labels are smoothed.
    """
    n, K = logits.shape
    dtype = sums.dtype
    valid = None if problem is None else problem.valid
    picked = [sums.new_empty(n) for _ in indices]
    spread = None if problem is None or problem.smoothing == 0 else sums.new_empty(n)
    rows = _rows_of_block(n, K, dtype.itemsize)
    probs = sums.new_empty((n if keep else rows, K))
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        z = logits[start:stop].to(dtype)
        if valid is not None:
            z = z.masked_fill(~valid[start:stop, None], 0.0)
        p = probs[start:stop] if keep else probs[: stop - start]
        torch.softmax(z, 1, out=p)
        for index, out in zip(indices, picked, strict=True):
            torch.gather(p, 1, index[start:stop, None], out=out[start:stop, None])
        if problem is not None and spread is not None:
            # The largest probability is 1 / sum exp(z - max): its log completes log p without another exponential.
            minus_log_p = (z.amax(1) - p.amax(1).log_())[:, None] - z
            weighted = minus_log_p.sum(1) if problem.weight is None else _product(minus_log_p, problem.weight)
            spread[start:stop] = (problem.smoothing / K) * weighted
        if valid is not None:
            p.mul_(valid[start:stop, None])
        sums.add_(_column_sums(p))
    if spread is not None and valid is not None:
        spread = torch.where(valid, spread, 0.0)
    return probs if keep else None, picked, spread


def log_of_picked(logits: Tensor, problem: Labels, picked: list[Tensor]) -> list[Tensor]:
    """Log-probabilities of the labels (n,), exact where the probability itself is too small to tell."""
    found = []
    for (index, _), probability in zip(problem.labels, picked, strict=True):
        log_p = probability.log()
        low = ~(probability > FLOOR)  # NaN included
        if bool(low.any()):
            rows = low.nonzero().squeeze(1)
            exact = logits[rows].to(log_p.dtype).log_softmax(1)
            log_p[rows] = exact.gather(1, index[rows, None]).squeeze(1)
        found.append(log_p)
    return found


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
    rows = _rows_of_block(n, K, probs.element_size())
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


def subtract_targets(grad: Tensor, problem: Labels, of_row: Tensor) -> None:
    """Subtract g_i w_k t_ik in place."""
    K = grad.shape[1]
    for index, part in problem.parts(of_row):
        grad.scatter_add_(1, index[:, None], -part[:, None])
    if problem.smoothing > 0:
        rows = (problem.smoothing / K) * of_row * problem.taking_part(of_row)
        weights = of_row.new_ones(K) if problem.weight is None else problem.weight
        grad.sub_(rows[:, None] * weights)
