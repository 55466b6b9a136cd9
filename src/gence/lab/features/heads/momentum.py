"""How the weights of stacked heads move in a step, on one thread or on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from gence.lab.features.heads.stacks import CosineStack, Gradients, LinearStack, MLPStack, product, whole
from gence.lab.spec import Recipe

HAS_FUSED = hasattr(torch, "_fused_sgd_")
WORTH_A_CALL = 4096
"""Weights: with fewer per call of PyTorch's own step, a few operations for all runs at once are faster."""


class Momentum:
    """SGD with momentum, or AdamW; each run has a rate and a decay of its own."""

    def __init__(self, stack: LinearStack | MLPStack | CosineStack, recipes: list[list[Recipe]]) -> None:
        self.stack, self.recipe = stack, recipes[0][0]
        decay = torch.tensor([[each.weight_decay for each in group] for group in recipes])
        self.decay = {name: own.per_run(decay) for name, own in stack.parameters.items()}
        self.first = {name: torch.zeros_like(own.values) for name, own in stack.parameters.items()}
        self.second = {}  # of AdamW
        if self.recipe.optimizer == "adamw":
            self.second = {name: torch.zeros_like(own.values) for name, own in stack.parameters.items()}
        self.fused: list[list[_Fused]] = []  # of the layer that reads features, per group
        self.reads = "hidden_weight" if isinstance(stack, MLPStack) else "weight"
        sgd = self.recipe.optimizer == "sgd" and self.recipe.momentum > 0
        if HAS_FUSED and sgd and not isinstance(stack, CosineStack):  # runs lie one after the other in memory
            weights = stack.parameters[self.reads].values
            together = zip(weights, self.first[self.reads], recipes, strict=True)
            found = [_Fused.of(values, moved, own) for values, moved, own in together]
            if weights[0].numel() >= WORTH_A_CALL * max(len(parts) for parts in found):
                self.fused = found
        self.alike = HAS_FUSED and sgd and all(each == self.recipe for group in recipes for each in group)
        self.steps = 0

    def step(self, gradients: dict[str, Gradients], rate: Tensor) -> None:
        """Move the weights; `rate` is (G, M)."""
        self.steps += 1
        for name, groups in gradients.items():
            if name == self.reads and self.fused:
                for parts, gradient, rates in zip(self.fused, groups, rate.tolist(), strict=True):
                    for part in parts:
                        part.step(gradient.mT, rates[part.run], self.recipe)
                continue
            gradient, own = whole(groups), self.stack.parameters[name]
            if self.alike and not own.decays:
                _Fused(0, slice(None), (own.values, self.first[name]), 0.0).step(
                    gradient, float(rate[0, 0]), self.recipe
                )
                continue
            per_run = own.per_run(rate)
            if self.recipe.optimizer == "adamw":
                self._adamw(name, gradient, per_run)
                continue
            if own.decays:
                gradient.addcmul_(own.values, self.decay[name])
            moved = self.first[name].mul_(self.recipe.momentum).add_(gradient)
            if self.recipe.nesterov:
                moved = gradient.add_(moved, alpha=self.recipe.momentum)
            own.values.addcmul_(moved, per_run, value=-1)

    def _adamw(self, name: str, gradient: Tensor, rates: Tensor) -> None:
        own = self.stack.parameters[name]
        if own.decays:
            own.values.mul_(1 - rates * self.decay[name])
        first = self.first[name].lerp_(gradient, 0.1)
        second = self.second[name].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        size = (second / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
        own.values.sub_(first / size * (rates / (1 - 0.9**self.steps)))


@dataclass(frozen=True, eq=False)
class _Fused:
    """Neighbouring runs of a group with one rate and decay, moved in one pass over memory instead of five.

    Attributes:
        run: the first of them.
        rows: of the group's weights (M * K, D).
        values: those weights, and what they moved last.
    """

    run: int
    rows: slice
    values: tuple[Tensor, Tensor]
    decay: float

    @classmethod
    def of(cls, weights: Tensor, moved: Tensor, recipes: list[Recipe]) -> list[_Fused]:
        """The parts of a group's weights (D, M * K)."""
        width, found, start = weights.shape[1] // len(recipes), [], 0
        for recipe, same in groupby(recipes):
            stop = start + len(list(same))
            rows = slice(start * width, stop * width)
            found.append(cls(start, rows, (weights.mT[rows], moved.mT[rows]), recipe.weight_decay))
            start = stop
        return found

    def step(self, gradient: Tensor, rate: float, recipe: Recipe) -> None:
        """Move the weights by the group's gradient (M * K, D)."""
        weights, moved = self.values
        torch._fused_sgd_(
            [weights], [gradient[self.rows]], [moved], weight_decay=self.decay, momentum=recipe.momentum, lr=rate,
            dampening=0.0, nesterov=recipe.nesterov, maximize=False, is_first_step=False,
        )  # fmt: skip


class Helper:
    """A thread that makes the calls it is given, one after the other: cheaper to hand to than an executor's."""

    def __init__(self) -> None:
        self._given: SimpleQueue[tuple[Callable[..., object], Any] | None] = SimpleQueue()
        self._made: SimpleQueue[BaseException | None] = SimpleQueue()
        self._waiting = 0
        Thread(target=self._work, daemon=True).start()

    def give(self, call: Callable[..., object], *arguments: object) -> None:
        """Have a call made."""
        self._waiting += 1
        self._given.put((call, arguments))

    def wait(self) -> None:
        """Return when all calls are made; raise what one of them raised."""
        while self._waiting:
            self._waiting -= 1
            raised = self._made.get()
            if raised is not None:
                raise raised

    def end(self) -> None:
        """End the thread when it has made its calls."""
        self._given.put(None)

    def _work(self) -> None:
        torch.set_num_threads(1)
        while (given := self._given.get()) is not None:
            call, arguments = given
            try:
                call(*arguments)
                self._made.put(None)
            except BaseException as raised:  # it is raised where the call is waited for
                self._made.put(raised)


class SharedSteps:
    """Steps of linear heads on several threads: one issues the small operations, all share the long ones.

    Products and moves leave the interpreter to other threads while they run. Threads that all issued small operations,
    as the gradients of losses are, would wait for each other's interpreter longer than they worked.

    Args:
        stack: the heads.
        mover: moves them; what is not the weight, it moves itself.
        recipes: of the runs, a list per group.
        rows: number of them in a batch.
        helpers: the other threads.
    """

    def __init__(
        self,
        stack: LinearStack,
        mover: Momentum,
        recipes: list[list[Recipe]],
        rows: int,
        helpers: Sequence[Helper],
    ) -> None:
        self.stack, self.mover, self.helpers = stack, mover, helpers
        weights, moved = stack.parameters["weight"].values, mover.first["weight"]
        G, M, K = len(recipes), stack.M, stack.K
        self.products = torch.zeros(G, M * K, rows)  # logits without their bias
        self.ready = False  # whether they are those of the rows that follow
        threads = len(helpers) + 1
        ends = [G * M * i // threads for i in range(threads + 1)]
        self.shares = [
            [
                _Piece.of(g, range(max(a - g * M, 0), min(b - g * M, M)), weights[g], moved[g], recipes[g], K)
                for g in range(a // M, -(-b // M))
            ]
            for a, b in pairwise(ends)
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Logits (G, B, M, K) of features (G, B, D); after a step, of those that it was told would follow."""
        if not self.ready:
            self._together(x, None, [], x)
        bias = self.stack.parameters.get("bias")
        z = self.products if bias is None else self.products + bias.values.mT
        return z.mT.view(len(z), -1, self.stack.M, self.stack.K)

    def step(self, x: Tensor, dz: Tensor, rate: Tensor, following: Tensor | None) -> None:
        """Move the weights by the gradients of the last logits, those of `x`; then products of the rows that follow."""
        flat = dz.permute(0, 2, 3, 1).flatten(1, 2)  # (G, M * K, B), as it is in memory
        if "bias" in self.stack.parameters:
            self.mover.step({"bias": flat.sum(2)[:, None]}, rate)
        self._together(x, flat, rate.tolist(), following)
        self.ready = following is not None

    def _together(self, *given: Any) -> None:
        for helper in self.helpers:
            helper.wait()  # for rows that one of them takes
        for helper, share in zip(self.helpers, self.shares[1:], strict=True):
            helper.give(self._share, share, *given)
        self._share(self.shares[0], *given)
        for helper in self.helpers:
            helper.wait()

    def _share(
        self, pieces: list[_Piece], x: Tensor, flat: Tensor | None, rates: list[list[float]], following: Tensor | None
    ) -> None:
        for piece in pieces:
            g = piece.group
            if flat is not None:
                gradient = product(flat[g, piece.rows], x[g].mT)
                for part in piece.parts:
                    part.step(gradient, rates[g][piece.run + part.run], self.mover.recipe)
            if following is not None:
                self.products[g, piece.rows] = product(piece.weights, following[g])


@dataclass(frozen=True, eq=False)
class _Piece:
    """Neighbouring runs of a group.

    Attributes:
        group: their group.
        run: the first of them.
        rows: of the group's weights (M * K, D).
        weights: those weights.
        parts: how they are moved; they count from the first run.
    """

    group: int
    run: int
    rows: slice
    weights: Tensor
    parts: list[_Fused]

    @classmethod
    def of(cls, group: int, runs: range, weights: Tensor, moved: Tensor, recipes: list[Recipe], K: int) -> _Piece:
        """The piece of these runs; weights and what they moved last are the group's, (D, M * K)."""
        rows = slice(runs.start * K, runs.stop * K)
        parts = _Fused.of(weights[:, rows], moved[:, rows], recipes[runs.start : runs.stop])
        return cls(group, runs.start, rows, weights.mT[rows], parts)
