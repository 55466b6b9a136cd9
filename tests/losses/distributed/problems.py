"""One training problem for each argument of the loss, made alike in the test process and in the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import gence

CLASSES = 5
FEATURES = 6
ROWS = 23
STEPS = 5


@dataclass(frozen=True)
class Case:
    """What is special about a problem."""

    target: str = "index"
    ignored: bool = False
    context: bool = False
    weighted: bool = False
    given_prior: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


CASES = {
    "plain": Case(),
    "sum": Case(arguments={"reduction": "sum"}),
    "ignore_index": Case(ignored=True),
    "weight": Case(weighted=True),
    "smoothing": Case(arguments={"label_smoothing": 0.2}),
    "probabilities": Case(target="probs"),
    "two_hot": Case(target="two_hot"),
    "anchor_batch_prior": Case(arguments={"anchor": 0.3}),
    "anchor_given_prior": Case(given_prior=True, arguments={"anchor": 0.7}),
    "context": Case(context=True),
    "all": Case(
        ignored=True,
        weighted=True,
        context=True,
        given_prior=True,
        arguments={"anchor": 0.5, "label_smoothing": 0.1},
    ),
    "all_probabilities": Case(
        target="probs", weighted=True, context=True, arguments={"anchor": 0.5, "label_smoothing": 0.1}
    ),
}


@dataclass(frozen=True)
class Batch:
    """Inputs, target and unlabelled inputs; a part of it is a batch again."""

    inputs: Tensor
    target: Any
    unlabelled: Tensor | None

    def part(self, which: slice, unlabelled: slice) -> Batch:
        target = (
            gence.TwoHot(*(t[which] for t in self.target)) if type(self.target) is gence.TwoHot else self.target[which]
        )
        return Batch(self.inputs[which], target, None if self.unlabelled is None else self.unlabelled[unlabelled])


def batches(case: Case, dtype: torch.dtype) -> Iterator[Batch]:
    """The batches of all steps."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        inputs = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
        index = torch.randint(CLASSES, (ROWS,), generator=generator)
        other = torch.randint(CLASSES, (ROWS,), generator=generator)
        share = torch.rand(ROWS, generator=generator, dtype=torch.float64)
        probs = torch.rand(ROWS, CLASSES, generator=generator, dtype=torch.float64)
        unlabelled = torch.randn(9, FEATURES, generator=generator, dtype=torch.float64)
        if case.ignored:
            index[::4] = -100
        target: Any = index
        if case.target == "probs":
            target = (probs / probs.sum(1, keepdim=True)).to(dtype)
        if case.target == "two_hot":
            target = gence.TwoHot(index, other, share.to(dtype))
        yield Batch(inputs.to(dtype), target, unlabelled.to(dtype) if case.context else None)


def cuts(ranks: int, step: int) -> list[tuple[slice, slice]]:
    """Who has which rows and which unlabelled rows: uneven, and in one step the last rank has no row at all."""
    edges = {2: [0, 17, ROWS], 3: [0, 4, 9, ROWS]}[ranks]
    if step == 3:
        edges = [*edges[:-2], ROWS, ROWS]
    extra = {2: [0, 2, 9], 3: [0, 2, 2, 9]}[ranks]
    return [(slice(a, b), slice(c, d)) for a, b, c, d in zip(edges[:-1], edges[1:], extra[:-1], extra[1:], strict=True)]


def criterion(case: Case, dtype: torch.dtype, **more: Any) -> gence.GenCELoss:
    """The case's loss."""
    weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5], dtype=dtype) if case.weighted else None
    prior = torch.tensor([0.3, 0.1, 0.2, 0.0, 0.4], dtype=dtype) if case.given_prior else None
    return gence.GenCELoss(weight, prior=prior, **case.arguments, **more)


def network(dtype: torch.dtype, kind: str = "plain") -> nn.Sequential:
    """A small network with the same weights in every process."""
    torch.manual_seed(3)
    middle = {"plain": nn.Tanh(), "batch_norm": nn.BatchNorm1d(16), "dropout": nn.Dropout(0.4)}[kind]
    return nn.Sequential(nn.Linear(FEATURES, 16), middle, nn.Linear(16, CLASSES)).to(dtype)


def optimiser(model: nn.Module, case: Case) -> torch.optim.SGD:
    """SGD with momentum, at a rate that suits the reduction."""
    return torch.optim.SGD(
        model.parameters(), lr=0.01 if case.arguments.get("reduction") == "sum" else 0.3, momentum=0.9
    )


def loss_of(model: nn.Module, loss: gence.GenCELoss, batch: Batch, marginal: Any = None) -> Tensor:
    """Forward pass of a batch and its unlabelled rows."""
    logits = model(batch.inputs)
    # The network itself, so that a wrapper sees one forward pass a step.
    inner = getattr(model, "module", model)
    context = None if batch.unlabelled is None else inner(batch.unlabelled)
    return loss(logits, batch.target, context=context, marginal=marginal)


def improbable() -> tuple[Tensor, Tensor]:
    """Logits and target with log S far below what a float can hold in one class that has targets."""
    generator = torch.Generator().manual_seed(1)
    logits = 300 * torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    logits[:, 3] -= 3000
    return logits, torch.arange(ROWS) % CLASSES


def watched() -> tuple[Tensor, Tensor]:
    """Logits and labels for a monitor."""
    return torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(2)), torch.arange(ROWS) % (CLASSES - 1)


def windows(ranks: int, rank: int) -> list[list[tuple[Tensor, Tensor | None]]]:
    """Per window what a rank's monitor sees: rows on all, on the first alone, and labels on the first alone."""
    logits, target = watched()
    own = cuts(ranks, 0)[rank][0]
    labelled: list[tuple[Tensor, Tensor | None]] = [(logits[own], target[own])]
    far = torch.tensor([10.0] + [0.0] * (CLASSES - 1))  # from the others, so that they would be seen in the result
    return [labelled, labelled if rank == 0 else [], labelled if rank == 0 else [(logits[own] + far, None)]]


@dataclass
class Course:
    """What a run went through: the loss of every step, the first gradients, the last weights."""

    losses: list[Tensor]
    gradients: list[Tensor]
    weights: list[Tensor]


def single_process(case: Case, dtype: torch.dtype) -> Course:
    """The reference: one process, whole batches, the plain loss."""
    model = network(dtype)
    loss_function = criterion(case, dtype)
    steps = optimiser(model, case)
    losses: list[Tensor] = []
    gradients: list[Tensor] = []
    for batch in batches(case, dtype):
        steps.zero_grad()
        loss = loss_of(model, loss_function, batch)
        loss.backward()
        gradients = gradients or [p.grad.clone() for p in model.parameters() if p.grad is not None]
        steps.step()
        losses.append(loss.detach())
    return Course(losses, gradients, [p.detach().clone() for p in model.parameters()])
