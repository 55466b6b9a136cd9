"""What ``reduction="none"`` needs beyond the kernels: a loss for each row, and a gradient weighted by row."""

from __future__ import annotations

import torch
from torch import Tensor

from gence.losses.kernels.layout import padded_classes
from gence.losses.kernels.problem import INDEX, WITHOUT_ANCHOR, Problem

_TINY = torch.finfo(torch.float32).tiny


def row_losses(problem: Problem, logits: Tensor, m: int, classes: Tensor, stats: Tensor) -> Tensor:
    """Each row's loss (n,), float32."""
    n, K = logits.shape
    padded = padded_classes(K)
    log_s = classes[2 * padded : 2 * padded + K]
    tau = stats[3 * n : 4 * n]
    losses = stats[2 * n : 3 * n] + problem.target_of(logits, log_s)
    if problem.anchor_kind == WITHOUT_ANCHOR:
        return losses
    pi = _prior(problem, K)
    total = _taking_part(problem, n) + m
    divergence = torch.xlogy(pi, pi).sum() - (pi * log_s).sum() + pi.sum() * torch.log(total.clamp_min(1.0))
    return losses + problem.anchor * tau * torch.where(total > 0, divergence, 0.0)


def row_weighted_classes(problem: Problem, logits: Tensor, classes: Tensor, stats: Tensor, of_row: Tensor) -> Tensor:
    """The class coefficients for a gradient that differs between rows: T_k = w_k sum_i g_i t_ik."""
    n, K = logits.shape
    padded = padded_classes(K)
    pull = problem.masses(K, of_row)
    if problem.anchor_kind != WITHOUT_ANCHOR:
        pull = pull - problem.anchor * (of_row * stats[3 * n : 4 * n]).sum() * _prior(problem, K)
    beyond = classes[3 * padded : 3 * padded + K]
    weighted = classes.clone()
    weighted[:K] = torch.where(beyond == 0, 0.0, pull / beyond)
    return weighted


def _prior(problem: Problem, K: int) -> Tensor:
    if problem.prior is not None:
        return problem.prior.float()
    mass = problem.masses(K)
    return mass / mass.sum().clamp_min(_TINY)


def _taking_part(problem: Problem, n: int) -> Tensor:
    if problem.mode == INDEX:
        return (problem.first != problem.ignore_index).sum().float()
    return torch.full((), float(n), device=problem.first.device)
