"""Supervised contrast on frozen features: a hidden layer trained by SupCon, and a linear head on it.

As with networks, in two stages: SupCon trains the hidden layer through a projection of it, the projection is thrown
away, and cross-entropy trains a linear layer on the hidden one, which no longer moves. What comes out is a head of the
kind "mlp". There is one view of each row, so a row's positives are the other rows of its class in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gence.lab.features.heads.momentum import Momentum
from gence.lab.features.heads.problem import (
    HEAD_RECIPE,
    GroupRows,
    Head,
    HeadProblem,
    HeadRun,
    TrainedHead,
    check_head_recipe,
    rotates,
    unstacked,
)
from gence.lab.features.heads.stacks import create_stack
from gence.lab.features.heads.training import cohorts, order_of, per_step, steps_of, train_heads
from gence.lab.spec import LossSpec, learning_rates
from gence.losses import create_loss

PROJECTION = "projection"
"""What `HeadRun.head` is for these runs."""

WIDTH = 128
"""Dimensions of the projection."""

_CHUNK = 4096


def train_projections(
    problems: Sequence[HeadProblem], runs: Sequence[HeadRun], *, curves: bool = False
) -> list[TrainedHead]:
    """Train runs of the head "projection" with the loss "supcon"; the results are in the order of the runs.

    Learning rate and weight decay are those of the first stage; the second has the rates of `HEAD_RECIPE`.

    Args:
        problems: what `HeadRun.problem` counts in.
        runs: what to train.
        curves: there are none; the argument is there so that it is called as `train_heads` is.

    Raises:
        ValueError: another loss, another head, or recipe fields that do nothing on features.
    """
    del curves
    for run in runs:
        check_head_recipe(run.recipe)
        if run.loss.name != "supcon" or run.head != PROJECTION or run.recipe.optimizer != "sgd":
            raise ValueError(
                f"a projection is trained by supcon and SGD, got {run.loss}, {run.head} and {run.recipe.optimizer}"
            )
    found: dict[int, TrainedHead] = {}
    for cohort in cohorts(problems, runs):
        found |= _linear_stage(problems, runs, _contrast_stage(problems, runs, cohort))
    return [found[i] for i in range(len(runs))]


def contrast(z: Tensor, labels: Tensor, temperature: Tensor) -> Tensor:
    """SupCon's mean losses (G, M) of embeddings (G, B, M, d) with labels (G, B) at temperatures (G, M).

    A batch in which no row has a positive has the loss 0.
    """
    unit = F.normalize(z, dim=3).transpose(1, 2)  # (G, M, B, d)
    similarity = unit @ unit.mT / temperature[:, :, None, None]  # (G, M, B, B)
    itself = torch.eye(z.shape[1], dtype=torch.bool)
    positive = (labels[:, :, None] == labels[:, None, :]) & ~itself  # (G, B, B)
    count = positive.sum(2)[:, None]  # (G, 1, B)
    log_all = similarity.masked_fill(itself, -1e9).logsumexp(3)  # (G, M, B)
    mean_positive = (similarity * positive[:, None]).sum(3) / count.clamp_min(1)
    losses = torch.where(count > 0, log_all - mean_positive, 0.0)
    return losses.sum(2) / (count > 0).sum(2).clamp_min(1)


def _contrast_stage(
    problems: Sequence[HeadProblem], runs: Sequence[HeadRun], cohort: list[list[int]]
) -> dict[int, Head]:
    """Hidden layers with their projections, by the numbers of their runs."""
    first, own = runs[cohort[0][0]], [problems[runs[group[0]].problem] for group in cohort]
    recipe, seeds = first.recipe, [runs[group[0]].seed for group in cohort]
    rows = GroupRows.of(own, rotates(first, own[0]))
    B, steps = min(recipe.batch_size, len(own[0])), steps_of(recipe, len(own[0]))
    recipes = [[runs[i].recipe for i in group] for group in cohort]
    temperature = torch.tensor([[_temperature(runs[i].loss) for i in group] for group in cohort])
    M, D = len(cohort[0]), own[0].width
    stack = create_stack("mlp", seeds, M, D, WIDTH, False, torch.float32, rows.rotations)
    rates = per_step([[learning_rates(each, steps) for each in group] for group in recipes])
    mover = Momentum(stack, recipes)
    for epoch in range(recipe.epochs):
        order = torch.stack(
            [order_of(len(problem), B * steps, seed, epoch) for problem, seed in zip(own, seeds, strict=True)]
        )
        y = torch.stack([problem.labels[places] for problem, places in zip(own, order, strict=True)])
        for step in range(steps):
            batch = slice(step * B, step * B + B)
            x = rows.take(order[:, batch])
            z = stack.forward(x)
            with torch.enable_grad():
                leaf = z.detach().requires_grad_()
                (dz,) = torch.autograd.grad(contrast(leaf, y[:, batch], temperature).sum(), leaf)
            mover.step(stack.gradients(x, dz.contiguous()), rates[epoch * steps + step])
    return {
        i: head
        for g, group in enumerate(cohort)
        for i, head in zip(group, unstacked("mlp", stack, g, own[g].scaling), strict=True)
    }


def _temperature(loss: LossSpec) -> float:
    module: Any = create_loss(loss.name, **loss.params)
    return float(module.temperature)


def _linear_stage(
    problems: Sequence[HeadProblem], runs: Sequence[HeadRun], hidden: dict[int, Head]
) -> dict[int, TrainedHead]:
    """Linear layers on hidden ones, each on its own run's; the scaling in between becomes a part of the layer."""
    numbers = [i for i, head in hidden.items() if all(bool(each.isfinite().all()) for each in head.tensors.values())]
    inner = [
        HeadProblem(_hidden(hidden[i], problems[runs[i].problem]), own.labels, own.num_classes)
        for i in numbers
        for own in (problems[runs[i].problem],)
    ]
    ce, second = LossSpec(name="ce"), {"lr": HEAD_RECIPE.lr, "weight_decay": HEAD_RECIPE.weight_decay}
    linear = train_heads(
        inner,
        [
            replace(runs[i], problem=place, loss=ce, head="linear", recipe=runs[i].recipe.replace(**second))
            for place, i in enumerate(numbers)
        ],
        curves=False,
    )
    found = {}
    for i, own, made in zip(numbers, inner, linear, strict=True):
        weight = own.scaling.factor * made.head.tensors["weight"]
        bias = made.head.tensors["bias"] - own.scaling.mean @ weight
        kept = {name: hidden[i].tensors[name] for name in ("hidden_weight", "hidden_bias")}
        head = Head("mlp", {**kept, "weight": weight, "bias": bias}, hidden[i].scaling, own.num_classes)
        found[i] = TrainedHead(head, {}, made.diverged)
    for i in hidden.keys() - found.keys():  # logits that are no numbers, as those of any head that diverged
        own = problems[runs[i].problem]
        lost = torch.full((len(hidden[i].tensors["weight"]), own.num_classes), torch.nan)
        found[i] = TrainedHead(
            Head("mlp", {**hidden[i].tensors, "weight": lost, "bias": lost[:1]}, own.scaling, own.num_classes), {}, True
        )
    return found


def _hidden(head: Head, problem: HeadProblem) -> Tensor:
    """Outputs (n, H) of a hidden layer for a problem's rows."""
    pieces = []
    for start in range(0, len(problem), _CHUNK):
        rows = head.scaling(problem.rows(torch.arange(start, min(start + _CHUNK, len(problem)))))
        pieces.append((rows @ head.tensors["hidden_weight"] + head.tensors["hidden_bias"]).relu())
    return torch.cat(pieces)
