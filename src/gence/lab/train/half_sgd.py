"""SGD that keeps bfloat16 copies of float32 weights up to date: fewer bytes a step than rounding them at each.

To round the weights, to widen their gradients and to move them are three passes over memory, 32 bytes a weight. Here
the network is run with the copies, the gradients stay on them as they come, and one pass moves weights and copies: 20.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gence.losses import HAS_TRITON, INTERPRETED, OLDEST_TRITON

# Each pointer of a launch costs every program some instructions, each launch costs a microsecond or two.
_MOST_TENSORS = 16
_BLOCK = 2048
_WARPS = 4


def can_keep_halves(device: torch.device) -> bool:
    """Whether `HalfSGD` has a kernel for this device."""
    if not HAS_TRITON:
        return False
    return device.type == "cuda" or (INTERPRETED and device.type == "cpu")


class HalfSGD(torch.optim.SGD):
    """``torch.optim.SGD`` over float32 parameters, some of which have a bfloat16 copy to run the network with.

    A step takes the gradient of such a copy, moves the float32 weight by it, all in float32, and rounds the weight into
    the copy again. Parameters with gradients of their own are moved by torch. Where momentum is none, as at first, it
    is zero, which gives the same. There is no host synchronisation, so that steps can be captured in a CUDA graph if
    one step was made before.

    Args:
        params: all parameters.
        halved: those of them that get a copy: float32, dense in memory, on one device that `can_keep_halves`.
        lr: learning rate; for a captured graph a tensor on the device.
        momentum: as for ``torch.optim.SGD``.
        weight_decay: likewise.
        nesterov: likewise.

    Attributes:
        halves: the copies in the order of ``halved``: leaves that require a gradient. They follow from the weights, so
            that they are in no state; whoever writes into the weights calls `refresh`.

    Raises:
        ValueError: if a weight cannot have a copy.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        halved: Sequence[Tensor],
        lr: float | Tensor,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, weight_decay=weight_decay, nesterov=nesterov, fused=True)
        self.halved = list(halved)
        self._check(params)
        self.halves = [torch.empty_like(weight, dtype=torch.bfloat16).requires_grad_() for weight in self.halved]
        self._tables: dict[tuple[int, ...], Tensor] = {}
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Round the weights into their copies again: needed when something other than `step` has moved them."""
        if self.halved:
            torch._foreach_copy_(self.halves, self.halved)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or make them zero."""
        super().zero_grad(set_to_none)
        for half in self.halves:
            if set_to_none:
                half.grad = None
            elif half.grad is not None:
                half.grad.zero_()

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move all parameters that have gradients, here or on their copies.

        Raises:
            ValueError: if a weight and its copy both have one.
        """
        pairs = list(zip(self.halved, self.halves, strict=True))
        for i, (weight, half) in enumerate(pairs):
            if weight.grad is not None and half.grad is not None:
                raise ValueError(f"halved[{i}] has a gradient, and so has its copy; expected one of them")
        given = [(weight, half, half.grad) for weight, half in pairs if half.grad is not None]
        for at in range(0, len(given), _MOST_TENSORS):
            self._move(*zip(*given[at : at + _MOST_TENSORS], strict=True))
        super().step()
        for weight, half in pairs:
            if weight.grad is not None:
                half.copy_(weight)

    def _check(self, params: Sequence[Tensor]) -> None:
        known = {id(parameter) for parameter in params}
        for i, weight in enumerate(self.halved):
            if id(weight) not in known:
                raise ValueError(f"halved[{i}] is not among params; expected one of them")
            if weight.dtype != torch.float32:
                raise ValueError(f"halved[{i}] is of type {weight.dtype}; expected torch.float32")
            if not _in_same_order(torch.empty_like(weight), weight):
                raise ValueError(
                    f"halved[{i}] has shape {tuple(weight.shape)} and strides {weight.stride()}; "
                    "expected a tensor that is dense in memory"
                )
            if weight.device != self.halved[0].device or not can_keep_halves(weight.device):
                raise ValueError(
                    f"halved[{i}] is on {weight.device}, halved[0] on {self.halved[0].device}; expected one GPU for "
                    f"all, and Triton {'.'.join(map(str, OLDEST_TRITON))} or newer"
                )

    def _move(self, weights: tuple[Tensor, ...], halves: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> None:
        from gence._triton import launch
        from gence.lab.train.half_sgd_kernel import sgd

        group = self.param_groups[0]
        # Autograd lays gradients out like their copies; whoever else gives them need not.
        grads = tuple(
            grad if _in_same_order(grad, half) else torch.empty_like(half).copy_(grad)
            for grad, half in zip(grads, halves, strict=True)
        )
        has_momentum = group["momentum"] != 0
        momenta = tuple(self._momentum_of(weight) for weight in weights) if has_momentum else weights
        device = weights[0].device
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
        table = self._table(tuple(weight.numel() for weight in weights), device)
        static = (has_momentum, bool(group["nesterov"]), _BLOCK)
        numbers = (float(group["momentum"]), float(group["weight_decay"]))
        tensors = (table, lr, *weights, *momenta, *grads, *halves)
        key = (device, tuple(tensor.data_ptr() % 16 == 0 for tensor in tensors), static)
        with torch.cuda.device_of(weights[0]):  # type: ignore[no-untyped-call]
            launch(sgd, len(table), _WARPS, key, (table, lr, weights, momenta, grads, halves, *numbers, *static))

    def _momentum_of(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        momentum: Tensor | None = state.get("momentum_buffer")
        if momentum is None:
            momentum = state["momentum_buffer"] = torch.zeros_like(weight)
        if momentum.dtype != torch.float32 or not _in_same_order(momentum, weight):
            raise ValueError(
                f"momentum_buffer has type {momentum.dtype} and strides {momentum.stride()}; "
                f"expected torch.float32 and {weight.stride()}, as its weight has"
            )
        return momentum

    def _table(self, sizes: tuple[int, ...], device: torch.device) -> Tensor:
        """What each program of a launch moves: which tensor, which block of it, how many values."""
        # Kept as long as the optimiser: a captured graph reads it.
        if sizes not in self._tables:
            rows = [
                (tensor, block, min(_BLOCK, size - block * _BLOCK))
                for tensor, size in enumerate(sizes)
                for block in range(-(-size // _BLOCK))
            ]
            self._tables[sizes] = torch.tensor(rows, dtype=torch.int32).reshape(-1, 3).to(device)
        return self._tables[sizes]


def _in_same_order(one: Tensor, other: Tensor) -> bool:
    """Whether equal indices are equally far from the first value; the stride of a dimension of size 1 says nothing."""
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return one.shape == other.shape and all(a == b for size, a, b in strides if size > 1)
