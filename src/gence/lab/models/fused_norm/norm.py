"""BatchNorm, what is added to it and the ReLU behind it as one operation, for training on a GPU.

Each function here takes the plain modules, and calls them one after another wherever the fused kernels do not apply: in
evaluation, on CPUs, under ``torch.compile``, for tensors that are not in channels_last. So networks are built of plain
modules, and nothing about their state changes.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gence.losses import HAS_TRITON, INTERPRETED

Paired = Tensor | tuple[Tensor, Tensor]
"""A tensor, or the same one twice: for two consumers whose gradients the fused backward pass adds by itself.

Autograd would add them in a kernel of its own, at the cost of reading both and writing the sum.
"""

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MOST_ELEMENTS = 1 << 31  # offsets are 32-bit
_fusing = True

# Outside of the modules, so that copies, checkpoints and buffers() know nothing of it.
_tickets: weakref.WeakKeyDictionary[nn.Module, Tensor] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def plain_norms() -> Iterator[None]:
    """Call the plain modules everywhere: for comparisons."""
    global _fusing
    before, _fusing = _fusing, False
    try:
        yield
    finally:
        _fusing = before


def norm_relu(norm: nn.Module, relu: nn.Module, x: Tensor) -> Tensor:
    """``relu(norm(x))``."""
    if can_fuse(norm, x):
        fused: Tensor = _fuse(norm, x, relu=True)
        return fused
    y: Tensor = relu(norm(x))
    return y


def norm_relu_for_two(norm: nn.Module, relu: nn.Module, x: Tensor) -> Paired:
    """``relu(norm(x))`` for two consumers."""
    if can_fuse(norm, x):
        pair: Paired = _fuse(norm, x, relu=True, pair=True)
        return pair
    y: Tensor = relu(norm(x))
    return y


def norm_add_relu(
    norm: nn.Module, relu: nn.Module, x: Tensor, skip: Tensor, skip_norm: nn.Module | None, *, pair: bool
) -> Paired:
    """``relu(norm(x) + skip)``, or with a norm for the skip as well, ``relu(norm(x) + skip_norm(skip))``.

    Args:
        norm: a BatchNorm.
        relu: a ReLU.
        x: (n, C, H, W).
        skip: likewise.
        skip_norm: another BatchNorm, or None.
        pair: whether the output has two consumers.
    """
    if can_fuse(norm, x) and _alike(x, skip) and (skip_norm is None or can_fuse(skip_norm, skip)):
        fused: Paired = _fuse(norm, x, skip, skip_norm, relu=True, pair=pair)
        return fused
    out: Tensor = norm(x)
    out += skip if skip_norm is None else skip_norm(skip)
    y: Tensor = relu(out)
    return y


def can_fuse(norm: nn.Module, x: Tensor) -> bool:
    """Whether the fused kernels compute what this norm computes of x."""
    if not _fusing or torch.compiler.is_compiling() or not norm.training:
        return False
    return _can_be_normed(x) and _is_usual(norm, x)


def _can_be_normed(x: Tensor) -> bool:
    if type(x) is not Tensor or x.dim() != 4 or x.dtype not in _DTYPES or not HAS_TRITON:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:  # vmap and the like see plain operations
        return False
    if x.is_cuda and x.device.index != torch.cuda.current_device():
        return False
    if not x.is_cuda and not (INTERPRETED and x.device.type == "cpu"):
        return False
    # One row has no variance: the plain module says so.
    rows = x.numel() // max(1, x.shape[1])
    return _is_in_rows(x) and x.numel() < _MOST_ELEMENTS and rows > 1


def _is_usual(norm: nn.Module, x: Tensor) -> bool:
    # Not a subclass, which may do something else (SyncBatchNorm does), and no hooks, which would not be called.
    if type(norm) is not nn.BatchNorm2d or norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks:
        return False
    if norm.num_features != x.shape[1] or not isinstance(norm.momentum, float):
        return False
    state = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return norm.num_batches_tracked is not None and all(
        value is not None and value.device == x.device and value.dtype == torch.float32 and _starts_whole(value)
        for value in state
    )


def _alike(x: Tensor, skip: Tensor) -> bool:
    same = skip.shape == x.shape and skip.dtype == x.dtype and skip.device == x.device
    return same and type(skip) is Tensor and _is_in_rows(skip)


def _is_in_rows(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last) and _starts_whole(x)


def _starts_whole(values: Tensor) -> bool:
    return values.data_ptr() % 16 == 0


def _tickets_of(norm: nn.Module, device: torch.device, C: int) -> Tensor:
    tickets = _tickets.get(norm)
    if tickets is None or tickets.device != device:
        tickets = _tickets[norm] = torch.zeros(C, dtype=torch.int32, device=device)
    return tickets


def _fuse(
    norm: Any,
    x: Tensor,
    skip: Tensor | None = None,
    skip_norm: Any = None,
    *,
    relu: bool,
    pair: bool = False,
) -> Any:
    from gence.lab.models.fused_norm.launch import Norm

    def state(module: Any) -> Norm:
        return Norm(
            module.running_mean,
            module.running_var,
            module.num_batches_tracked,
            _tickets_of(module, x.device, x.shape[1]),
            module.momentum,
            module.eps,
        )

    of_skip = (None, None, None) if skip_norm is None else (skip_norm.weight, skip_norm.bias, state(skip_norm))
    return _FusedNorm.apply(x, norm.weight, norm.bias, skip, *of_skip[:2], state(norm), of_skip[2], relu, pair)


class _FusedNorm(torch.autograd.Function):
    """``relu(norm(x) + skip)``; returned twice for ``pair``, so that two gradients come back and are added here."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None, skip_weight: Tensor | None,
        skip_bias: Tensor | None, norm: Any, skip_norm: Any, relu: bool, pair: bool,
    ) -> Paired:  # fmt: skip
        from gence.lab.models.fused_norm import launch

        main = launch.Input(x, weight, bias, weight.new_empty((2, x.shape[1])), norm)
        added: Tensor | launch.Input | None = skip
        second = moments2 = signs = None
        if skip is not None and skip_weight is not None and skip_bias is not None:
            second, moments2 = skip, torch.empty_like(main.moments)
            added = launch.Input(skip, skip_weight, skip_bias, moments2, skip_norm)
        y = launch.forward(main, added, relu=relu)
        if relu and skip is not None and second is None:
            signs = y  # of a plain skip the backward pass needs no more than the sign of the sum
        ctx.save_for_backward(x, weight, bias, main.moments, second, skip_weight, skip_bias, moments2, signs)
        ctx.norms, ctx.relu, ctx.added = (norm, skip_norm), relu, skip is not None
        ctx.set_materialize_grads(False)
        return (y, y.detach()) if pair else y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from gence.lab.models.fused_norm import launch

        given = [_in_rows(grad) for grad in grads if grad is not None]
        if not given:
            return (None,) * 10
        x, weight, bias, moments, second, weight2, bias2, moments2, signs = ctx.saved_tensors
        norm, skip_norm = ctx.norms
        found = launch.backward(
            given[0],
            given[1] if len(given) == 2 else None,
            launch.Input(x, weight, bias, moments, norm),
            None if second is None else launch.Input(second, weight2, bias2, moments2, skip_norm),
            signs,
            relu=ctx.relu,
            added=ctx.added,
        )
        of_skip = found.x2 if second is not None else found.g if ctx.added else None
        return (found.x, found.weight, found.bias, of_skip, found.weight2, found.bias2, None, None, None, None)


def _in_rows(grad: Tensor) -> Tensor:
    """The gradient in the layout of the output; that of an average over pixels has no layout of its own."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    return grad if _starts_whole(grad) else grad.clone(memory_format=torch.channels_last)


class ResidualBlock(nn.Module):
    """One of torchvision's residual blocks: the same layers under the same names, computing the same.

    Convolutions ``conv1``, ``conv2``, ... each with its BatchNorm ``bn1``, ``bn2``, ..., one ``relu`` for all, and
    where shapes change a ``downsample`` of a convolution and a BatchNorm.

    Args:
        block: torchvision's block, whose layers are reused.
        feeds_block: whether another block reads the output, which it does twice.
    """

    relu: nn.Module
    downsample: nn.Sequential | None

    def __init__(self, block: nn.Module, *, feeds_block: bool) -> None:
        super().__init__()
        for name, layer in block.named_children():
            self.add_module(name, layer)
        if "downsample" not in self._modules:
            self.downsample = None
        self.depth = sum(name.startswith("conv") for name, _ in block.named_children())
        self.feeds_block = feeds_block

    def forward(self, x: Paired) -> Paired:
        """Return the block's output for x, both (n, C, H, W), or both in pairs."""
        branch, skip = x if isinstance(x, tuple) else (x, x)
        for i in range(1, self.depth):
            branch = norm_relu(self._layer("bn", i), self.relu, self._layer("conv", i)(branch))
        branch = self._layer("conv", self.depth)(branch)
        skip_norm = None
        if self.downsample is not None:
            convolution, skip_norm = self.downsample
            skip = convolution(skip)
        last_norm = self._layer("bn", self.depth)
        return norm_add_relu(last_norm, self.relu, branch, skip, skip_norm, pair=self.feeds_block)

    def _layer(self, kind: str, number: int) -> nn.Module:
        layer: nn.Module = self._modules[f"{kind}{number}"]  # type: ignore[assignment]
        return layer


class FusedSequential(nn.Sequential):
    """``nn.Sequential`` that takes a BatchNorm and the ReLU behind it as one operation."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the last layer's output."""
        layers = [*self, None]
        i = 0
        while (layer := layers[i]) is not None:
            behind = layers[i + 1]
            if isinstance(layer, nn.BatchNorm2d) and isinstance(behind, nn.ReLU):
                input = norm_relu(layer, behind, input)
                i += 2
            else:
                input = layer(input)
                i += 1
        return input
