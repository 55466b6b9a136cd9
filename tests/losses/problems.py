"""Random calls of a loss, for property tests: every layout of target that the losses accept, with every option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from gence import TwoHot
from tests.losses.naive import NaiveProblem

KINDS = ("index", "probabilities", "two_hot")
LAYOUTS = {"unbatched": (), "rows": (), "sequence": (3,), "dense": (2, 2)}


@dataclass(frozen=True)
class Call:
    """Arguments of one call of a loss, in float64."""

    input: Tensor
    target: Tensor | TwoHot
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float

    @property
    def num_classes(self) -> int:
        return self.input.shape[min(1, self.input.dim() - 1)]

    @property
    def class_dim(self) -> int:
        return min(1, self.input.dim() - 1)

    def options(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
        }

    def as_pytorch_target(self) -> Tensor:
        """What ``F.cross_entropy`` is to be called with: two-hot targets become probabilities."""
        return probabilities(self.target, self.num_classes) if isinstance(self.target, TwoHot) else self.target

    def as_naive(self, **options: Any) -> NaiveProblem:
        """The same problem as lists, row by row."""
        K = self.num_classes
        weight = [1.0] * K if self.weight is None else self.weight.tolist()
        targets: list[list[float] | None] = []
        row_weights = []
        if isinstance(self.target, Tensor) and not self.target.is_floating_point():
            for label in self.target.flatten().tolist():
                ignored = label == self.ignore_index
                targets.append(None if ignored else [1.0 if k == label else 0.0 for k in range(K)])
                row_weights.append(0.0 if ignored else weight[label])
        else:
            targets.extend(as_rows(self.as_pytorch_target()))
            row_weights = [1.0] * len(targets)
        return NaiveProblem(
            logits=as_rows(self.input),
            targets=targets,
            weight=weight,
            row_weights=row_weights,
            label_smoothing=self.label_smoothing,
            **options,
        )


def as_rows(values: Tensor) -> list[list[float]]:
    """(K,), (n, K) or (N, K, d1, ...) -> list of rows, in the order in which the unreduced loss is flattened."""
    if values.dim() == 1:
        return [values.tolist()]
    return [
        values[i].reshape(values.shape[1], -1)[:, j].tolist()
        for i in range(len(values))
        for j in range(values[i, 0].numel())
    ]


def probabilities(target: TwoHot, num_classes: int) -> Tensor:
    """The (n, K, ...) probabilities that a two-hot target stands for."""
    first = torch.nn.functional.one_hot(target.first, num_classes)
    second = torch.nn.functional.one_hot(target.second, num_classes)
    mixed = target.share[..., None] * first + (1 - target.share[..., None]) * second
    return mixed if mixed.dim() == 1 else mixed.movedim(-1, 1).contiguous()


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any target kind in any layout, with or without weights, smoothing and ignored rows (never all of them)."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    layout = draw(st.sampled_from(list(LAYOUTS)))
    K = draw(st.integers(1, 5))
    batch = () if layout == "unbatched" else (draw(st.integers(1, 6)),)
    label_shape = (*batch, *LAYOUTS[layout])
    shape = (*batch, K, *LAYOUTS[layout])
    scale = draw(st.sampled_from([0.1, 1.0, 5.0, 30.0]))
    input = scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    ignore_index = -100
    kind = draw(st.sampled_from(KINDS))
    target: Tensor | TwoHot
    if kind == "index":
        target = torch.randint(K, label_shape, generator=generator)
        ignore_index = draw(st.sampled_from([-100, -1, 0, K - 1, 255]))
        if draw(st.booleans()):
            target[torch.rand(label_shape, generator=generator) < 0.4] = ignore_index
        if bool((target == ignore_index).all()):
            target, ignore_index = torch.randint(K, label_shape, generator=generator), -100
    elif kind == "probabilities":
        target = torch.randn(shape, generator=generator, dtype=torch.float64).softmax(len(batch))
    else:
        first, second = torch.randint(K, (2, *label_shape), generator=generator)
        target = TwoHot(first, second, torch.rand(label_shape, generator=generator, dtype=torch.float64))

    weight = 0.2 + 2 * torch.rand(K, generator=generator, dtype=torch.float64) if draw(st.booleans()) else None
    return Call(
        input=input,
        target=target,
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
    )
