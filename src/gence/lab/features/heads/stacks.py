"""Heads of many runs side by side: parameters stacked, one product per group for all its runs, gradients by hand.

A group is the runs that share a problem and a seed, so their batches are the same rows: G groups of M runs, K classes.
Weights that read features are (G, D, M * width), so that the logits of all runs of a group are one product.

Features may come rotated into fewer dimensions than they have, those of the span of a group's rows: linear and MLP
heads then hold the rotated weights of their first layer, and `of_group` gives what they are on the features themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gence.lab.spec import stream

HEADS = ("linear", "mlp", "cosine")
"""linear: W x + b. mlp: one hidden layer of 256 ReLUs. cosine: s cos(w_k, x), with a scale s that is learnt."""

HIDDEN = 256
_SCALE = 16.0  # of a cosine head as it begins


@dataclass(frozen=True, eq=False)
class Parameter:
    """One stacked tensor.

    Attributes:
        values: (G, rows, M * width).
        decays: whether weight decay acts on it; it does on weights, not on biases and scales.
    """

    values: Tensor
    decays: bool

    def per_run(self, numbers: Tensor) -> Tensor:
        """(G, M) numbers in a form that multiplies `values`."""
        repeat = self.values.shape[2] // numbers.shape[1]
        return numbers.repeat_interleave(repeat, 1)[:, None].to(self.values.dtype)


Gradients = Iterable[Tensor]
"""Of one parameter: a tensor (G, rows, M * width), or one for each group in turn."""

Rotations = Sequence[Tensor]
"""For each group an orthonormal basis (D, n) of the span of its rows, which are given in it; none if rows are not."""


class Stack(Protocol):
    """Heads of one kind."""

    parameters: dict[str, Parameter]

    def forward(self, x: Tensor) -> Tensor:
        """Logits (G, B, M, K) of features (G, B, D); what `backward` needs is kept."""
        ...

    def backward(self, x: Tensor, dz: Tensor) -> dict[str, Tensor]:
        """Gradients of the parameters, from those of the last logits."""
        ...

    def gradients(self, x: Tensor, dz: Tensor) -> dict[str, Gradients]:
        """The same by groups, (rows, M * width) each."""
        return dict(self.backward(x, dz))

    def of_group(self, group: int) -> dict[str, Tensor]:
        """A group's parameters, (rows, M * width) each, for features that are not rotated."""
        return {name: own.values[group] for name, own in self.parameters.items()}


class LinearStack(Stack):
    """Linear heads. They begin at zero, which for a linear head is as good as any place: it breaks no symmetry.

    In memory features come last in the weights, and rows in the logits: products of matrices whose last dimension is
    no multiple of a vector register's, such as M * K, take up to twice as long.
    """

    def __init__(
        self, seeds: Sequence[int], M: int, D: int, K: int, bias: bool, dtype: torch.dtype, rotations: Rotations
    ) -> None:
        self.M, self.K, self.rotations = M, K, rotations
        width = rotations[0].shape[1] if rotations else D
        self.parameters = {"weight": Parameter(torch.zeros(len(seeds), M * K, width, dtype=dtype).mT, True)}
        if bias:
            self.parameters["bias"] = Parameter(torch.zeros(len(seeds), 1, M * K, dtype=dtype), False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (G, B, M, K) of features (G, B, D)."""
        z = products(self.parameters["weight"].values.mT, x).mT
        if "bias" in self.parameters:
            z += self.parameters["bias"].values
        return z.view(*z.shape[:2], self.M, self.K)

    def backward(self, x: Tensor, dz: Tensor) -> dict[str, Tensor]:
        """Gradients of weight and bias."""
        return {name: whole(gradient) for name, gradient in self.gradients(x, dz).items()}

    def gradients(self, x: Tensor, dz: Tensor) -> dict[str, Gradients]:
        """The same; a group's gradient of the weight is computed when it is asked for."""
        flat = dz.reshape(*dz.shape[:2], self.M * self.K)
        found: dict[str, Gradients] = {
            "weight": (product(left, right).mT for left, right in zip(flat.mT, x.mT, strict=True))
        }
        if "bias" in self.parameters:
            found["bias"] = flat.sum(1, keepdim=True)
        return found

    def of_group(self, group: int) -> dict[str, Tensor]:
        """A group's parameters for features that are not rotated."""
        found = super().of_group(group)
        if self.rotations:
            found["weight"] = self.rotations[group].to(found["weight"].dtype) @ found["weight"]
        return found


class MLPStack(Stack):
    """Heads with one hidden layer of ReLUs; PyTorch's initialisation, drawn from each run's seed.

    In memory each run's numbers lie together, rows last in what is computed of them: so no step copies any.

    The first layer's gradients lie in the span of the rows. What its initial weights have outside is moved by weight
    decay alone: it shrinks by a factor of each run's own, the parameter "outside", and is what that factor makes of it.
    """

    def __init__(
        self, seeds: Sequence[int], M: int, D: int, K: int, bias: bool, dtype: torch.dtype, rotations: Rotations
    ) -> None:
        self.M, self.K, self.rotations = M, K, rotations
        drawn = {seed: _drawn(seed, D, K) for seed in set(seeds)}  # runs of one seed begin alike, whatever their loss
        inner, shift, outer = ([drawn[seed][i].to(dtype) for seed in seeds] for i in range(3))
        self._begun = inner  # (D, H)
        self._inside = [basis.mT @ each for basis, each in zip(rotations, inner, strict=True)] if rotations else inner
        self.parameters = {
            name: Parameter(torch.stack([each.mT.repeat(M, 1) for each in values]).mT, decays)
            for name, values, decays in (
                ("hidden_weight", self._inside, True),  # (n, H)
                ("hidden_bias", shift, False),
                ("weight", outer, True),
            )
        }
        if rotations:
            self.parameters["outside"] = Parameter(torch.ones(len(seeds), 1, M, dtype=dtype), True)
        if bias:
            self.parameters["bias"] = Parameter(torch.zeros(len(seeds), 1, M * K, dtype=dtype), False)
        self._active: list[Tensor] = []  # per group: hidden outputs (M, H, B) of the last forward

    def forward(self, x: Tensor) -> Tensor:
        """Logits (G, B, M, K) of features (G, B, D)."""
        own, (G, B, _) = self.parameters, x.shape
        weights, biases, last = own["hidden_weight"].values.mT, own["hidden_bias"].values.mT, self._last()
        self._active, logits = [], []
        for weight, bias, outer, rows in zip(weights, biases, last, x, strict=True):
            active = product(weight, rows).add_(bias).relu_().view(self.M, HIDDEN, B)
            self._active.append(active)
            logits.append(torch.bmm(outer, active))
        z = whole(logits).view(G, self.M * self.K, B)
        if "bias" in own:
            z += own["bias"].values.mT
        return z.mT.view(G, B, self.M, self.K)

    def backward(self, x: Tensor, dz: Tensor) -> dict[str, Tensor]:
        """Gradients of both layers."""
        return {name: whole(gradient) for name, gradient in self.gradients(x, dz).items()}

    def gradients(self, x: Tensor, dz: Tensor) -> dict[str, Gradients]:
        """The same; a group's gradient of the first layer's weight is computed when it is asked for."""
        G, B = x.shape[:2]
        flat = dz.reshape(G, B, self.M * self.K).mT.contiguous()  # as the loss has it
        inner, outer = [], []
        for pull, active, weight in zip(flat.view(G, self.M, self.K, B), self._active, self._last(), strict=True):
            back = torch.bmm(weight.mT, pull)
            inner.append(torch.ops.aten.threshold_backward(back, active, 0).view(self.M * HIDDEN, B))
            outer.append(torch.bmm(pull, active.mT).view(self.M * self.K, HIDDEN).mT)
        found: dict[str, Gradients] = {
            "hidden_weight": (product(back, rows.mT).mT for back, rows in zip(inner, x, strict=True)),
            "hidden_bias": torch.stack([back.sum(1)[None] for back in inner]),
            "weight": whole(outer),
        }
        if self.rotations:
            found["outside"] = torch.zeros_like(self.parameters["outside"].values)
        if "bias" in self.parameters:
            found["bias"] = flat.sum(2)[:, None]
        return found

    def of_group(self, group: int) -> dict[str, Tensor]:
        """A group's parameters for features that are not rotated."""
        found = super().of_group(group)
        if self.rotations:
            left = found.pop("outside").view(self.M, 1, 1)
            learnt = found["hidden_weight"].mT.view(self.M, HIDDEN, -1) - left * self._inside[group].mT
            whole = product(learnt.flatten(0, 1), self.rotations[group])
            whole.view(self.M, HIDDEN, -1).addcmul_(left, self._begun[group].mT)
            found["hidden_weight"] = whole.mT
        return found

    def _last(self) -> Tensor:
        """Weights (G, M, K, H) of the last layer."""
        return self.parameters["weight"].values.mT.view(-1, self.M, self.K, HIDDEN)


def _drawn(seed: int, D: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """An MLP as it begins: the hidden layer's weight (D, H) and bias (1, H), and the last layer's weight (H, K)."""
    draw = stream(seed, "init")
    inner, outer = (
        (2 * torch.rand(rows, width, generator=draw) - 1) / math.sqrt(rows)
        for rows, width in ((D + 1, HIDDEN), (HIDDEN, K))
    )
    return inner[:-1], inner[-1:], outer


class CosineStack(Stack):
    """Cosines between features and class vectors, times a learnt scale; class vectors are drawn from each run's seed.

    The scale is kept as its logarithm.
    """

    def __init__(
        self, seeds: Sequence[int], M: int, D: int, K: int, bias: bool, dtype: torch.dtype, rotations: Rotations
    ) -> None:
        if rotations:
            raise ValueError("rotations: cosine heads are not trained in the span of their rows")
        del bias  # a cosine has none
        self.M, self.K = M, K
        begun = [(torch.randn(D, K, generator=stream(seed, "init")) / math.sqrt(D)).repeat(1, M) for seed in seeds]
        self.parameters = {
            "weight": Parameter(torch.stack(begun).to(dtype), True),
            "log_scale": Parameter(torch.full((len(seeds), 1, M), math.log(_SCALE), dtype=dtype), False),
        }
        self._norm = self._direction = self._cosine = begun[0]

    def forward(self, x: Tensor) -> Tensor:
        """Logits (G, B, M, K) of features (G, B, D)."""
        weight = self.parameters["weight"].values
        self._norm = weight.norm(dim=1, keepdim=True).clamp_min(1e-12)
        self._direction = weight / self._norm
        cosine = products(_unit(x), self._direction.mT)
        self._cosine = cosine.view(*cosine.shape[:2], self.M, self.K)
        scale: Tensor = self.parameters["log_scale"].values.exp()[..., None]
        return self._cosine * scale

    def backward(self, x: Tensor, dz: Tensor) -> dict[str, Tensor]:
        """Gradients of class vectors and scale."""
        scale = self.parameters["log_scale"].values.exp()
        found = {"log_scale": (dz * self._cosine).sum(3).sum(1, keepdim=True) * scale}
        flat = (dz * scale[..., None]).reshape(*dz.shape[:2], self.M * self.K)
        along = products(_unit(x).mT, flat.mT)
        along -= self._direction * (self._direction * along).sum(1, keepdim=True)
        found["weight"] = along / self._norm
        return found


def products(left: Tensor, right: Tensor) -> Tensor:
    """(G, a, c) of (G, a, b) and (G, b, c) given as its transpose (G, c, b).

    In float32 on a CPU by oneDNN where torch has it: on matrices of this size it is up to twice as fast as the BLAS
    behind `torch.bmm`.
    """
    if not _by_onednn(left):
        return torch.bmm(left, right.mT)
    return whole([product(a, b) for a, b in zip(left, right, strict=True)])


def product(left: Tensor, right: Tensor) -> Tensor:
    """(a, c) of (a, b) and (b, c) given as its transpose (c, b)."""
    if not _by_onednn(left):
        return torch.mm(left, right.mT)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return found


def _by_onednn(values: Tensor) -> bool:
    return _HAS_ONEDNN and values.dtype is torch.float32 and values.device.type == "cpu"


def whole(values: Gradients) -> Tensor:
    """Groups' tensors as one."""
    if isinstance(values, Tensor):
        return values
    found = list(values)
    return found[0][None] if len(found) == 1 else torch.stack(found)


_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def create_stack(
    kind: str,
    seeds: Sequence[int],
    M: int,
    D: int,
    K: int,
    bias: bool,
    dtype: torch.dtype,
    rotations: Rotations = (),
) -> LinearStack | MLPStack | CosineStack:
    """Untrained heads of a kind of `HEADS`: M runs for each seed, `D` features, `K` classes."""
    if kind not in _STACKS:
        raise ValueError(f"head: unknown kind {kind!r}; known: {', '.join(HEADS)}")
    return _STACKS[kind](seeds, M, D, K, bias, dtype, rotations)


_STACKS: dict[str, type[LinearStack] | type[MLPStack] | type[CosineStack]] = {
    "linear": LinearStack,
    "mlp": MLPStack,
    "cosine": CosineStack,
}


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=2)
