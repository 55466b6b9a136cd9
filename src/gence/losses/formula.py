"""The paper's loss and its anchor over rows of logits, by plain operations: what every faster path is tested against.

With p = softmax(z) over the K classes, S_k = sum_j p_jk over all rows of the batch and T_k = sum_i w_k t_ik,

    l_i = sum_k w_k t_ik (log S_k - log p_ik)  +  anchor * tau_i * KL(pi || S / total),    tau_i = sum_k w_k t_ik.

Differentiable any number of times. `targets` says what ``Rows`` are and how a target is summed over.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gence.losses import targets
from gence.losses.targets import Rows, class_mass, column_logsumexp, target_mass, target_sum

_HUGE = -1e3  # below it a logarithm loses digits in which the rows differ


def generative_loss(rows: Rows, anchor: float | Tensor, prior: Tensor | None, context: Tensor | None) -> Tensor:
    """The loss of one batch, reduced as ``rows`` says; ``context`` (m, K) enters S and has no loss of its own."""
    z, valid = rows.values(), rows.valid()  # (n, K), (n,)
    others = None if context is None else targets.flatten_logits(context).to(z.dtype)  # (m, K)
    shift = class_shift(z.detach(), valid, None if others is None else others.detach())  # (K,)
    log_p = shifted_log_softmax(z, shift)  # (n, K)
    log_s = log_marginal(log_p, valid, None if others is None else shifted_log_softmax(others, shift))  # (K,)
    losses = target_sum(rows, log_s - log_p)  # (n,)
    if isinstance(anchor, Tensor) or anchor > 0:
        total = rows.count() + (0 if others is None else others.shape[0])
        divergence = marginal_divergence(class_prior(class_mass(rows), prior), log_s + shift, total)
        losses = losses + anchor_term(anchor, divergence) * target_mass(rows)
    return targets.reduce_rows(rows, losses)


def log_marginal(log_p: Tensor, valid: Tensor | None, log_context: Tensor | None) -> Tensor:
    """log S_k, the log of the summed predictions, in log space so that no class underflows -> (K,)."""
    log_p = log_p if valid is None else log_p.masked_fill(~valid[:, None], -torch.inf)
    log_p = log_p if log_context is None else torch.cat([log_p, log_context])
    return log_p.new_full((log_p.shape[1],), -torch.inf) if log_p.shape[0] == 0 else column_logsumexp(log_p)


def class_prior(mass: Tensor, prior: Tensor | None) -> Tensor:
    """The anchor's prior: the given one, or the batch's own (weighted) label distribution -> (K,)."""
    if prior is not None:
        return prior.to(mass.dtype)
    return mass / mass.sum().clamp_min(torch.finfo(mass.dtype).tiny)


def marginal_divergence(pi: Tensor, log_s: Tensor, total: Tensor) -> Tensor:
    """KL(pi || S/total) in nats; 0 where no row takes part."""
    # Classes without prior mass add 0, also where log S is -inf; the slope of their log would be infinite.
    cross = torch.where(pi > 0, pi * log_s.masked_fill(pi <= 0, 0.0), 0.0).sum()
    divergence = (pi * pi.masked_fill(pi <= 0, 1.0).log()).sum() - cross + pi.sum() * total.clamp_min(1).log()
    return torch.where(total > 0, divergence, 0.0)


def anchor_term(anchor: float | Tensor, divergence: Tensor) -> Tensor:
    """anchor * KL, and 0 where a scheduled anchor is 0, however far the marginal is."""
    if isinstance(anchor, Tensor):
        divergence = divergence.masked_fill((anchor == 0) & (divergence == torch.inf), 0.0)
    return anchor * divergence


def class_shift(z: Tensor, valid: Tensor | None, others: Tensor | None) -> Tensor:
    """The largest logit of each class that all rows mask by a huge number, which no ratio needs; else 0 -> (K,)."""
    below = z - z.amax(1, keepdim=True)  # (n, K)
    if valid is not None:
        z, below = (values.masked_fill(~valid[:, None], -torch.inf) for values in (z, below))
    top, below = z.amax(0), below.amax(0)  # (K,)
    if others is not None and others.numel():
        top = top.maximum(others.amax(0))
        below = below.maximum((others - others.amax(1, keepdim=True)).amax(0))
    return torch.where((below < _HUGE) & (top > -torch.inf), top, 0.0)


def shifted_log_softmax(z: Tensor, shift: Tensor) -> Tensor:
    """``z.log_softmax(1) - shift`` with all digits: what is huge is taken off first."""
    peak = z.detach().amax(1, keepdim=True)
    return (z - shift - peak) - (z - peak).exp().sum(1, keepdim=True).log()
