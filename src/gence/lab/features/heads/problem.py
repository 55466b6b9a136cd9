"""What heads are trained on, what a run of one is, and a trained head.

Features are centred by the training rows' mean and divided by one number, the root mean square of their norms: so the
same learning rates suit every encoder. A head carries both, and takes features as the encoder gives them.

A linear head that begins at zero and decays stays in the span of its training rows. With fewer rows than features they
are therefore rotated into as many dimensions as there are rows, trained there, and the weights rotated back: the same
run, cheaper. So it is for the hidden layer of an MLP, whose part outside the span only decays. That holds for gradient
descent, not for AdamW, which is not invariant to rotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from gence.lab.features.heads.stacks import CosineStack, LinearStack, MLPStack, Rotations, create_stack
from gence.lab.spec import RECIPES, LossSpec, Recipe

_CHUNK = 4096

HEAD_RECIPE = RECIPES["head"]
"""The recipe of a head on frozen features where none is tuned: nothing is augmented."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """What is done to features before a head reads them: (x - mean) * factor."""

    mean: Tensor  # float32 (D,)
    factor: float

    def __call__(self, features: Tensor) -> Tensor:
        """Float32 features, scaled."""
        return (features.float() - self.mean).mul_(self.factor)


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """The rows that heads are trained on.

    Attributes:
        features: (n, D), float16 or float32; may be mapped from a file.
        labels: int64 (n,).
        num_classes: K.
        index: rows of `features` that belong to the problem, one per label; None is all of them.
    """

    features: Tensor
    labels: Tensor
    num_classes: int
    index: Tensor | None = None

    def __post_init__(self) -> None:
        rows = len(self.features) if self.index is None else len(self.index)
        if self.features.dim() != 2 or self.labels.shape != (rows,) or rows == 0:
            raise ValueError(
                f"features and labels: expected (n, D) and (n,) with n of at least 1, got {tuple(self.features.shape)} "
                f"({rows} rows used) and {tuple(self.labels.shape)}"
            )
        if not 0 <= int(self.labels.min()) <= int(self.labels.max()) < self.num_classes:
            raise ValueError(
                f"labels: expected numbers from 0 to {self.num_classes - 1}, "
                f"got {int(self.labels.min())} to {int(self.labels.max())}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        """D, the number of features."""
        return self.features.shape[1]

    @cached_property
    def prior(self) -> Tensor:
        """Class distribution of the labels: float32 (K,)."""
        counts = torch.bincount(self.labels, minlength=self.num_classes).float()
        return counts / counts.sum()

    @cached_property
    def scaling(self) -> Scaling:
        """Centre and size of the features; read in pieces, so that a mapped file is never in memory whole."""
        total, squares = torch.zeros(self.width, dtype=torch.float64), 0.0
        for start in range(0, len(self), _CHUNK):
            rows = self.rows(torch.arange(start, min(start + _CHUNK, len(self))))
            if not bool(rows.isfinite().all()):
                raise ValueError("features: they hold NaN or infinite numbers; embed the images again")
            total += rows.sum(0, dtype=torch.float64)
            squares += float(rows.double().square().sum())
        mean = total / len(self)
        spread = squares / len(self) - float(mean.square().sum())
        return Scaling(mean.float(), spread**-0.5 if spread > 0 else 1.0)

    @cached_property
    def span(self) -> tuple[Tensor, Tensor]:
        """An orthonormal basis (D, n) of what fewer rows than features span, scaled, and the rows (n, n) in it."""
        rows = self.scaling(self.rows(torch.arange(len(self))))
        basis, triangle = torch.linalg.qr(rows.double().mT)
        return basis.float(), triangle.mT.float().contiguous()

    def rows(self, positions: Tensor) -> Tensor:
        """Float32 features of the problem's rows at these positions, as the encoder gave them."""
        return self.features[positions if self.index is None else self.index[positions]].float()


@dataclass(frozen=True, kw_only=True)
class HeadRun:
    """One run: a head trained on a problem.

    Attributes:
        problem: number of the problem in the list that training is given.
        loss: the loss.
        recipe: how it is trained; see `check_head_recipe` for the fields that apply.
        seed: names the streams of random numbers "init" and "order".
        head: "linear", "mlp" or "cosine"; "projection" for `train_projections`.
        full_batch: minimise the full-data equation by L-BFGS, exactly: `recipe.epochs` is then the most iterations,
            and learning rate, batch size and schedule are not used.
    """

    problem: int = 0
    loss: LossSpec
    recipe: Recipe = HEAD_RECIPE
    seed: int = 0
    head: str = "linear"
    full_batch: bool = False


@dataclass(frozen=True, eq=False)
class Head:
    """A trained head.

    Attributes:
        kind: "linear", "mlp" or "cosine".
        tensors: its parameters by name: "weight" (D, K), "bias" (1, K), ...
        scaling: what is done to features first.
        num_classes: K.
    """

    kind: str
    tensors: dict[str, Tensor]
    scaling: Scaling
    num_classes: int

    def logits(self, features: Tensor) -> Tensor:
        """Float32 logits (n, K) of features (n, D) as the encoder gives them."""
        return logits_of([self], features)[0]


@dataclass(frozen=True, eq=False)
class TrainedHead:
    """What came out of a run.

    Attributes:
        head: the trained head.
        curves: "epoch", "train_loss", "train_accuracy", "lr" and "marginal_kl", as networks have them.
        diverged: its loss or weights became infinite or NaN.
        wall_s: its share of the seconds that its runs took together.
    """

    head: Head
    curves: dict[str, list[float]] = field(default_factory=dict)
    diverged: bool = False
    wall_s: float = 0.0


def check_head_recipe(recipe: Recipe) -> None:
    """Raise `ValueError` for a recipe with fields that would silently do nothing on frozen features.

    All others apply: epochs, batch_size, optimizer, lr, momentum, nesterov, weight_decay, schedule, milestones, decay,
    warmup_epochs, head_bias, ema, anchor_warmup and drop_last.
    """
    unused = {
        "crop_padding": 0, "flip": False, "randaugment_ops": 0, "mix_probability": 0.0, "stem": "auto",
    }  # fmt: skip
    for name, neutral in unused.items():
        if getattr(recipe, name) != neutral:
            raise ValueError(
                f"recipe.{name} is {getattr(recipe, name)}, which has no effect on embedded features; "
                f"set it to {neutral}, or begin with the recipe for heads"
            )
    if recipe.precision == "bf16":
        raise ValueError("recipe.precision is 'bf16'; heads are trained in float32: use 'auto' or 'fp32'")


def logits_of(heads: Sequence[Head], features: Tensor) -> list[Tensor]:
    """Float32 logits (n, K) of each head: heads of one scaling and kind share their products."""
    found: list[Tensor] = [torch.empty(0)] * len(heads)
    alike: dict[tuple[str, int, int, tuple[str, ...]], list[int]] = {}
    for i, head in enumerate(heads):
        alike.setdefault((head.kind, id(head.scaling), head.num_classes, tuple(head.tensors)), []).append(i)
    for (kind, _, K, names), members in alike.items():
        first = heads[members[0]]
        stack = create_stack(kind, [0], 1, len(first.scaling.mean), K, "bias" in names, torch.float32)
        stack.M = len(members)
        for name, parameter in stack.parameters.items():
            given = {tuple(heads[i].tensors[name].shape) for i in members}
            if given != {tuple(parameter.values[0].shape)}:  # a file that was changed by hand
                shapes = " and ".join(map(str, sorted(given)))
                raise ValueError(f"a head's {name} has the shape {shapes}; expected {tuple(parameter.values[0].shape)}")
            values = torch.cat([heads[i].tensors[name].mT for i in members]).mT[None]
            stack.parameters[name] = replace(parameter, values=values)
        pieces = [
            stack.forward(first.scaling(features[start : start + _CHUNK])[None])[0]
            for start in range(0, len(features), _CHUNK)
        ]
        stacked = torch.cat(pieces)  # (n, M, K)
        for place, i in enumerate(members):
            found[i] = stacked[:, place].contiguous()
    return found


def unstacked(kind: str, stack: LinearStack | MLPStack | CosineStack, group: int, scaling: Scaling) -> list[Head]:
    """The heads of a group's runs."""
    split = {name: values.float().chunk(stack.M, 1) for name, values in stack.of_group(group).items()}
    return [
        Head(kind, {name: values[place].clone() for name, values in split.items()}, scaling, stack.K)
        for place in range(stack.M)
    ]


IN_MEMORY = 256 * 2**20
"""Float32 features of up to so many bytes (all groups of a cohort together) are scaled once and kept."""


def rotates(run: HeadRun, problem: HeadProblem) -> bool:
    """Whether a run lives in the span of its rows, and that is smaller than the space of features."""
    invariant = run.full_batch or run.recipe.optimizer == "sgd"
    if run.head != "linear":  # beside what lies outside the span, L-BFGS is another method inside it
        invariant = run.head in ("mlp", "projection") and not run.full_batch and invariant
    return invariant and len(problem) < problem.width


@dataclass(frozen=True, eq=False)
class GroupRows:
    """The rows of the groups of a cohort, scaled; rotated where that pays.

    Groups of one problem share their rows. `take` gives float32 (G, B, D) for positions (G, B).
    """

    problems: list[HeadProblem]
    ready: list[Tensor | None]  # scaled rows in memory, per group
    rotations: Rotations
    width: int

    @classmethod
    def of(cls, problems: list[HeadProblem], rotate: bool) -> GroupRows:
        """Scale, and rotate, what fits in memory."""
        if rotate:
            bases, ready = zip(*(problem.span for problem in problems), strict=True)
            return cls(problems, list(ready), bases, len(problems[0]))
        different = {id(problem): problem for problem in problems}
        kept: dict[int, Tensor] = {}
        if sum(4 * len(problem) * problem.width for problem in different.values()) <= IN_MEMORY:
            kept = {key: each.scaling(each.rows(torch.arange(len(each)))) for key, each in different.items()}
        return cls(problems, [kept.get(id(problem)) for problem in problems], (), problems[0].width)

    def take(self, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Rows of each group: float32 (G, B, D), in `out` if given: new memory costs more than to fill it."""
        x = torch.empty(*positions.shape, self.width) if out is None else out
        one = self.ready[0]
        if one is not None and all(rows is one for rows in self.ready):
            torch.index_select(one, 0, positions.reshape(-1), out=x.view(-1, self.width))
            return x
        for g, (problem, rows) in enumerate(zip(self.problems, self.ready, strict=True)):
            if rows is None:
                x[g] = problem.scaling(problem.rows(positions[g]))
            else:
                torch.index_select(rows, 0, positions[g], out=x[g])
        return x


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
        for m, (i, head) in enumerate(zip(group, unstacked(kind, stack, g, own[g].scaling), strict=True)):
            diverged = not all(bool(tensor.isfinite().all()) for tensor in head.tensors.values())
            found[i] = TrainedHead(head, curves[g][m] if curves else {}, diverged)
    return found
