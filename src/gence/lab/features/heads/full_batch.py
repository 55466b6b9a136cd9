"""Heads on the full batch: the full-data equation, minimised by L-BFGS for all runs at once, in float64.

    minimise  mean loss over all n rows + weight_decay / 2 * sum of squared weights

Each run has its own memory, step length and end; a run that has converged stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gence.lab.features.heads.gradients import StackedLoss
from gence.lab.features.heads.problem import GroupRows, HeadProblem, HeadRun, TrainedHead, collected, rotates
from gence.lab.features.heads.stacks import create_stack

_MEMORY = 10
_TOLERANCE = 1e-7  # of the gradient's largest entry
_CHUNK = 8192


def solve(problems: Sequence[HeadProblem], runs: Sequence[HeadRun], cohort: list[list[int]]) -> dict[int, TrainedHead]:
    """Minimise the runs of a cohort."""
    objective = _Objective(problems, runs, cohort)
    most = runs[cohort[0][0]].recipe.epochs
    w, iterations = _minimise(objective, objective.begin, most)
    value, _ = objective(w)
    objective.fill(w)
    curves = [
        [{"epoch": [float(iterations)], "train_loss": [float(f"{v:.7g}")]} for v in group]
        for group in (value - objective.penalty(w)).reshape(len(cohort), -1).tolist()
    ]
    return collected(objective.stack, cohort, objective.own, runs[cohort[0][0]].head, curves)


class _Objective:
    """Value and gradient of all runs, as functions of their weights (R, P)."""

    def __init__(self, problems: Sequence[HeadProblem], runs: Sequence[HeadRun], cohort: list[list[int]]) -> None:
        first = runs[cohort[0][0]]
        self.own = [problems[runs[group[0]].problem] for group in cohort]
        self.rows = GroupRows.of(self.own, rotates(first, self.own[0]))
        self.G, self.M = len(cohort), len(cohort[0])
        seeds = [runs[group[0]].seed for group in cohort]
        K = self.own[0].num_classes
        self.stack = create_stack(
            first.head, seeds, self.M, self.own[0].width, K, first.recipe.head_bias, torch.float64, self.rows.rotations
        )
        self.loss = StackedLoss(
            [[runs[i].loss for i in group] for group in cohort],
            torch.stack([problem.prior for problem in self.own]).double(),
        )
        self.labels = torch.stack([problem.labels for problem in self.own])
        decay = torch.tensor([[runs[i].recipe.weight_decay for i in group] for group in cohort])
        sizes = {name: own.values[0].numel() // self.M for name, own in self.stack.parameters.items()}
        decays = [own.decays for own in self.stack.parameters.values()]
        self.decay = torch.cat(
            [
                (decay.double().reshape(-1, 1) * on).expand(-1, size)
                for on, size in zip(decays, sizes.values(), strict=True)
            ],
            1,
        )  # (R, P)
        self.begin = self._flat({name: own.values for name, own in self.stack.parameters.items()})

    def __call__(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Values (R,) and gradients (R, P)."""
        self.fill(w)
        n = self.labels.shape[1]
        positions = torch.arange(n).expand(self.G, -1)
        pieces = torch.split(positions, _CHUNK, 1)
        # A coupled loss needs all logits before any gradient: two passes over the rows where there are many.
        if len(pieces) == 1:
            x = self.rows.take(positions).double()
            dz, values = self.loss(self.stack.forward(x), self.labels)
            gradient = self._flat(self.stack.backward(x, dz))
        else:
            z = torch.cat([self.stack.forward(self.rows.take(piece).double()) for piece in pieces], 1)
            dz, values = self.loss(z, self.labels)
            gradient = torch.zeros_like(w)
            for piece, part in zip(pieces, torch.split(dz, _CHUNK, 1), strict=True):
                x = self.rows.take(piece).double()
                self.stack.forward(x)  # hidden layers keep what their gradients need
                gradient += self._flat(self.stack.backward(x, part.contiguous()))
        assert values is not None  # they were asked for
        return values.reshape(-1) + self.penalty(w), gradient + self.decay * w

    def penalty(self, w: Tensor) -> Tensor:
        """What weight decay adds to each run's value."""
        return (self.decay * w.square()).sum(1) / 2

    def fill(self, w: Tensor) -> None:
        """Put weights (R, P) into the stack."""
        start = 0
        for own in self.stack.parameters.values():
            G, rows, columns = own.values.shape
            size = rows * columns // self.M
            part = w[:, start : start + size].view(G, self.M, rows, columns // self.M)
            own.values.copy_(part.transpose(1, 2).reshape(G, rows, columns))
            start += size

    def _flat(self, tensors: dict[str, Tensor]) -> Tensor:
        """Stacked tensors as (R, P), in the order of the parameters."""
        parts = []
        for name in self.stack.parameters:
            G, rows, columns = tensors[name].shape
            parts.append(tensors[name].view(G, rows, self.M, columns // self.M).transpose(1, 2).reshape(G * self.M, -1))
        return torch.cat(parts, 1)


def _minimise(objective: _Objective, w: Tensor, most: int) -> tuple[Tensor, int]:
    """L-BFGS with backtracking, each run on its own; return the weights (R, P) and the iterations."""
    value, gradient = objective(w)
    moves: list[Tensor] = []
    turns: list[Tensor] = []
    curvatures: list[Tensor] = []
    stopped = torch.zeros(len(w), dtype=torch.bool)
    iterations = 0
    while iterations < most:
        iterations += 1
        stopped |= ~value.isfinite() | (gradient.abs().amax(1) <= _TOLERANCE)
        if bool(stopped.all()):
            break
        direction = -_inverse_times(gradient, moves, turns, curvatures)
        slope = (direction * gradient).sum(1)
        uphill = slope >= 0
        direction = torch.where(uphill[:, None], -gradient, direction)
        slope = torch.where(uphill, -gradient.square().sum(1), slope)
        # A run's first step has no curvature to go by.
        length = torch.ones_like(value) if moves else (1 / gradient.norm(dim=1)).clamp_max(1.0)
        searching, chosen = ~stopped, torch.zeros_like(value)
        new_value, new_gradient = value, gradient
        for _ in range(25):
            tried_value, tried_gradient = objective(w + torch.where(searching, length, chosen)[:, None] * direction)
            good = searching & (tried_value <= value + 1e-4 * length * slope)
            chosen = torch.where(good, length, chosen)
            new_value = torch.where(good, tried_value, new_value)
            new_gradient = torch.where(good[:, None], tried_gradient, new_gradient)
            searching &= ~good
            if not bool(searching.any()):
                break
            length = torch.where(searching, length / 2, length)
        stopped |= searching  # no step is downhill any more: at the precision of the numbers
        move, turn = chosen[:, None] * direction, new_gradient - gradient
        curvature = (move * turn).sum(1)
        kept = curvature > 1e-12 * turn.square().sum(1)
        moves.append(torch.where(kept[:, None], move, 0.0))
        turns.append(torch.where(kept[:, None], turn, 0.0))
        curvatures.append(torch.where(kept, curvature, torch.inf))
        del moves[:-_MEMORY], turns[:-_MEMORY], curvatures[:-_MEMORY]
        w, value, gradient = w + move, new_value, new_gradient
    return w, iterations


def _inverse_times(gradient: Tensor, moves: list[Tensor], turns: list[Tensor], curvatures: list[Tensor]) -> Tensor:
    """The inverse Hessian's estimate times the gradient (R, P), by the two loops; useless moves are skipped."""
    q, shares = gradient.clone(), []
    for move, turn, curvature in zip(reversed(moves), reversed(turns), reversed(curvatures), strict=True):
        shares.append((move * q).sum(1) / curvature)
        q -= shares[-1][:, None] * turn
    if moves:
        known = curvatures[-1].isfinite()
        scale = curvatures[-1] / turns[-1].square().sum(1).clamp_min(1e-300)
        q *= torch.where(known, scale, 1.0)[:, None]
    for move, turn, curvature, share in zip(moves, turns, curvatures, reversed(shares), strict=True):
        q += (share - (turn * q).sum(1) / curvature)[:, None] * move
    return q
