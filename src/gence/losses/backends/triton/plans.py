"""The usual call: rows, class indices and nothing else, where Python is most of the cost of a small problem.

It launches the kernels that the general call would launch, with the same arguments. But whatever depends on sizes,
types and settings alone is made once for all calls of a kind (a plan; `dispatch` keeps it), and the autograd
functions save what they use. Rows too long for registers have no plan: their kernels take longer than
the general call's Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from gence._triton import launch, power_of_two
from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.eager import differentiable_gradients
from gence.losses.backends.triton.kernels import row_tiles, tiny
from gence.losses.backends.triton.layout import alignment, class_floats, padded_classes, row_layout, tensor_key
from gence.losses.backends.triton.problem import INDEX, MEAN, SUM, WITHOUT_ANCHOR, problem_of
from gence.losses.targets import loss_dtype, needs_plain_gradient

_hooks: Any = knobs.runtime
_FILLED_BYTES = 1 << 20  # to fill as many takes the device less time than it takes the host to tell which must be zero


def plan_of(logits: Tensor, index: Tensor, ignore_index: int, reduction: str) -> Plan | None:
    """How to compute the loss of such rows, or None where the general call has to do it.

    Args:
        logits: (n, K) with unit column stride.
        index: class indices (n,), int64, with unit stride.
        ignore_index: rows with this index take no part.
        reduction: "mean", "sum" or "none".

    Returns:
        A plan: ``plan.apply(logits, index, plan)`` is the loss, for all tensors of these sizes, strides, types and
        alignments, while they are on the current device, need a gradient, and the settings are what they are now.
    """
    n, K = logits.shape
    tune = tuning.current()
    if reduction == "none":
        return None
    if power_of_two(n) * power_of_two(K) <= tune.tiny_elements:
        return _TinyPlan(logits, index, ignore_index, reduction)
    layout = row_layout(logits)
    # Sums in a fixed order need a slot for each program: a plan's one buffer would hold them until the backward pass.
    if layout is None or layout[1] > tune.rows_elements or torch.are_deterministic_algorithms_enabled():
        return None
    return _RowsPlan(logits, index, ignore_index, reduction, layout)


class _Kernel:
    """A kernel of a plan; None stands for the tensors that it does not need.

    The first call goes through Triton, later ones to the launcher that it made, with pointers: so neither hooks that
    nobody has set nor the kind of each pointer's memory are asked for.
    """

    __slots__ = ("behind", "device", "function", "grid", "handles", "key", "public", "run", "warps")

    def __init__(
        self,
        function: Any,
        programs: int,
        warps: int,
        types: tuple[Any, ...],
        sizes: tuple[Any, ...],
        static: tuple[Any, ...],
    ) -> None:
        self.function, self.grid, self.warps, self.key = function, (programs, 1, 1), warps, (types, static)
        self.behind = (*sizes, *static)
        self.device: int = -1 if types[0][0].index is None else types[0][0].index
        self.run: Any = None  # the launcher, where this Triton has one that is known
        self.public: Any = None
        self.handles: tuple[Any, ...] = ()

    def direct(self, *pointers: int | None) -> None:
        """A later launch, with the addresses of the tensors."""
        enter, leave = _hooks.launch_enter_hook, _hooks.launch_exit_hook
        if self.run is None or getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            self.public(*pointers, *self.behind)
        else:
            stream = torch._C._cuda_getCurrentRawStream(self.device)
            self.run(*self.grid, stream, *self.handles, *pointers, *self.behind)

    def first(self, *tensors: Tensor | None) -> None:
        """The first launch, and in the interpreter every one; afterwards ``public`` is set."""
        compiled = launch(self.function, self.grid[0], self.warps, self.key, (*tensors, *self.behind))
        if compiled is None:  # from the interpreter
            return
        self.public = compiled[self.grid]
        try:
            # As Triton's own call does it; no metadata and no hooks.
            self.handles = (compiled.function, compiled.packed_metadata, None, None, None)
            self.run = compiled.run
        except AttributeError:
            self.run = None


def _allocator(device: torch.device) -> Callable[[Any, Any, torch.dtype], Tensor]:
    """``torch.empty_strided`` on the current device; by the shortcut that compiled graphs take, where there is one."""
    quick = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), f"_empty_strided_{device.type}", None)
    if quick is not None:
        return quick  # type: ignore[no-any-return]
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


class Plan:
    """What plans of all kinds know of their calls."""

    apply: Callable[..., Tensor]

    def __init__(self, logits: Tensor, index: Tensor, ignore_index: int, reduction: str) -> None:
        n, K = logits.shape
        self.shape, self.strides, self.empty = (n, K), (K, 1), _allocator(logits.device)
        self.dtype, self.loss_dtype = logits.dtype, loss_dtype(logits)
        self.types = (tensor_key(logits), self.loss_dtype, tensor_key(index))
        self.ignore_index, self.reduction = ignore_index, reduction
        self.kind = MEAN if reduction == "mean" else SUM

    def plain_gradient(self, logits: Tensor, index: Tensor, upstream: Tensor) -> Tensor | None:
        """The gradient by plain operations."""
        problem = problem_of(index, None, self.ignore_index, self.reduction, 0.0, 0.0, None, logits)
        return differentiable_gradients(problem, logits, None, upstream, True, False)[0]


def _direct(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """``function.apply`` without what it does for function transforms, under which there is no plan."""
    apply: Callable[..., Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


class _TinyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, plan: _TinyPlan) -> Tensor:
        loss = plan.empty((), (), plan.loss_dtype)
        # In float32 also for half types, so that the product with the upstream gradient is rounded once.
        grad = plan.empty(plan.shape, plan.strides, torch.float32)
        kernel = plan.kernel
        if kernel.public is None:
            kernel.first(logits, index, None, None, None, None, None, loss, grad)
        else:
            labels, to = index.data_ptr(), grad.data_ptr()
            kernel.direct(logits.data_ptr(), labels, None, None, None, None, None, loss.data_ptr(), to)
        ctx.save_for_backward(logits, grad, index)
        ctx.plan = plan
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        logits, grad, index = ctx.saved_tensors
        plan: _TinyPlan = ctx.plan
        if needs_plain_gradient(upstream):
            return plan.plain_gradient(logits, index, upstream), None, None
        if plan.dtype == torch.float32:
            return grad * upstream, None, None
        return torch.mul(grad, upstream, out=plan.empty(plan.shape, plan.strides, plan.dtype)), None, None


class _TinyPlan(Plan):
    apply = _direct(_TinyLoss)

    def __init__(self, logits: Tensor, index: Tensor, ignore_index: int, reduction: str) -> None:
        super().__init__(logits, index, ignore_index, reduction)
        n, K = logits.shape
        rows, columns = power_of_two(n), power_of_two(K)
        sizes = (n, logits.stride(0), 1, 0.0, 0.0)
        # No weight, smoothing, anchor or prior; with the gradient.
        static: tuple[Any, ...] = (K, alignment(logits), rows, columns, INDEX, ignore_index)
        static += (False, False, WITHOUT_ANCHOR, False, self.kind, True)
        self.kernel = _Kernel(tiny.tiny_kernel, 1, tiny.warps(rows * columns), self.types, sizes, static)


class _RowsLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, plan: _RowsPlan) -> Tensor:
        # One allocation for the sums, which start from zero, and for what the backward pass needs.
        buffer = plan.empty(plan.size, (1,), torch.float32)
        (buffer if plan.zero_all else buffer[: plan.stats_at]).zero_()
        loss = plan.empty((), (), plan.loss_dtype)
        kernel = plan.forward
        if kernel.public is None:
            sums, stats, classes = plan.parts(buffer)
            kernel.first(logits, index, None, None, None, sums, stats, classes, loss)
        else:
            at = buffer.data_ptr()
            stats_at, classes_at = at + plan.stats_byte, at + plan.classes_byte
            labels = index.data_ptr()
            kernel.direct(logits.data_ptr(), labels, None, None, None, at, stats_at, classes_at, loss.data_ptr())
        ctx.save_for_backward(logits, index, buffer)
        ctx.plan = plan
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        logits, index, buffer = ctx.saved_tensors
        plan: _RowsPlan = ctx.plan
        if needs_plain_gradient(upstream):
            return plan.plain_gradient(logits, index, upstream), None, None
        grad = plan.empty(plan.shape, plan.strides, plan.dtype)
        kernel = plan.backward
        if kernel.public is None:
            _, stats, classes = plan.parts(buffer)
            kernel.first(logits, index, None, None, None, classes, stats, upstream, grad)
        else:
            at = buffer.data_ptr()
            stats_at, classes_at = at + plan.stats_byte, at + plan.classes_byte
            of_loss, to = upstream.data_ptr(), grad.data_ptr()
            kernel.direct(logits.data_ptr(), index.data_ptr(), None, None, None, classes_at, stats_at, of_loss, to)
        return grad, None, None


class _RowsPlan(Plan):
    apply = _direct(_RowsLoss)

    def __init__(
        self, logits: Tensor, index: Tensor, ignore_index: int, reduction: str, layout: tuple[int, int, int, int]
    ) -> None:
        super().__init__(logits, index, ignore_index, reduction)
        n, K = logits.shape
        tile_rows, columns, programs, warps = layout
        padded = padded_classes(K)
        # Sums, counts, a counter and each program's costs; class vectors; row statistics: each part starts on 64 bytes.
        counter_at = 2 * padded
        self.classes_at = counter_at + -(-(1 + programs) // 16) * 16
        self.stats_at = self.classes_at + class_floats(K)
        self.size = (self.stats_at + 4 * n,)
        self.zero_all = 4 * self.size[0] <= _FILLED_BYTES
        self.classes_byte, self.stats_byte = 4 * self.classes_at, 4 * self.stats_at
        tile = (K, padded, alignment(logits), tile_rows, columns)
        sizes = (n, logits.stride(0), 0, 0.0)
        # No weight, no smoothing; labels are counted; no slots.
        forward: tuple[Any, ...] = (*tile, INDEX, ignore_index, False, False, True, False)
        forward += (row_tiles.finish_columns(K), self.kind)
        backward = (*tile, INDEX, False, False, False)
        of_forward = (*sizes, counter_at)
        self.forward = _Kernel(row_tiles.rows_forward, programs, warps, self.types, of_forward, forward)
        self.backward = _Kernel(row_tiles.rows_backward, programs, warps, self.types, sizes, backward)

    def parts(self, buffer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(sums, row statistics, class vectors) in the buffer."""
        return buffer, buffer[self.stats_at :], buffer[self.classes_at :]
