"""What the runs of a cohort read and what comes out of it: the groups' rows, and the heads of a stack.

A linear head that begins at zero and decays stays in the span of its training rows. With fewer rows than features they
are therefore rotated into as many dimensions as there are rows, trained there, and the weights rotated back: the same
run, cheaper. That holds for gradient descent, not for AdamW, which is not invariant to rotations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gence.lab.features.heads.problem import HeadProblem, HeadRun, TrainedHead, unstacked
from gence.lab.features.heads.stacks import CosineStack, LinearStack, MLPStack

IN_MEMORY = 256 * 2**20
"""Float32 features of up to so many bytes (all groups of a cohort together) are scaled once and kept."""


def rotates(run: HeadRun, problem: HeadProblem) -> bool:
    """Whether a run lives in the span of its rows, and that is smaller than the space of features."""
    invariant = run.full_batch or run.recipe.optimizer == "sgd"
    return run.head == "linear" and invariant and len(problem) < problem.width


@dataclass(frozen=True, eq=False)
class GroupRows:
    """The rows of the groups of a cohort, scaled; rotated where that pays.

    Groups of one problem share their rows. `take` gives float32 (G, B, D) for positions (G, B).
    """

    problems: list[HeadProblem]
    ready: list[Tensor | None]  # scaled rows in memory, per group
    rotations: list[Tensor | None]  # (D, n), per group
    width: int

    @classmethod
    def of(cls, problems: list[HeadProblem], rotate: bool) -> GroupRows:
        """Scale, and rotate, what fits in memory."""
        different = {id(problem): problem for problem in problems}
        size = sum(4 * len(problem) * problem.width for problem in different.values())
        made: dict[int, tuple[Tensor | None, Tensor | None]] = {}
        for key, problem in different.items():
            rows: Tensor | None = None
            rotation: Tensor | None = None
            if rotate or size <= IN_MEMORY:
                rows = problem.scaling(problem.rows(torch.arange(len(problem))))
            if rotate and rows is not None:
                rotation, triangle = torch.linalg.qr(rows.double().mT)
                rows, rotation = triangle.mT.float().contiguous(), rotation.float()
            made[key] = rows, rotation
        width = len(problems[0]) if rotate else problems[0].width
        ready, rotations = zip(*(made[id(problem)] for problem in problems), strict=True)
        return cls(problems, list(ready), list(rotations), width)

    def take(self, positions: Tensor) -> Tensor:
        """Rows of each group: float32 (G, B, D)."""
        x = torch.empty(*positions.shape, self.width)
        for g, (problem, rows) in enumerate(zip(self.problems, self.ready, strict=True)):
            if rows is None:
                x[g] = problem.scaling(problem.rows(positions[g]))
            else:
                torch.index_select(rows, 0, positions[g], out=x[g])
        return x

    def rotated_back(self, stack: LinearStack | MLPStack | CosineStack) -> None:
        """Turn a linear stack's weights from the span's dimensions into those of the features."""
        weight = stack.parameters["weight"]
        turned = [
            values if rotation is None else rotation.to(values.dtype) @ values
            for rotation, values in zip(self.rotations, weight.values, strict=True)
        ]
        back = torch.stack(turned)
        stack.parameters["weight"] = type(weight)(back, weight.decays)


def collected(
    stack: LinearStack | MLPStack | CosineStack,
    cohort: list[list[int]],
    own: list[HeadProblem],
    kind: str,
    curves: list[list[dict[str, list[float]]]],
) -> dict[int, TrainedHead]:
    """The heads of a stack, by the numbers of their runs."""
    found = {}
    for g, group in enumerate(cohort):
        for m, i in enumerate(group):
            head = unstacked(kind, stack, g, m, own[g].scaling)
            diverged = not all(bool(tensor.isfinite().all()) for tensor in head.tensors.values())
            found[i] = TrainedHead(head, curves[g][m] if curves else {}, diverged)
    return found
