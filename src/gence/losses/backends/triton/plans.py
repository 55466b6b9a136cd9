"""The usual call: rows, class indices and numbers, where Python is most of the cost of a small operands.

It launches the kernels that the general call would launch, with the same arguments. But whatever depends on sizes,
types and settings alone is made once for all calls of a kind (a plan; `dispatch` keeps it), and the autograd
functions save what they use. Rows too long for registers have no plan: their kernels take longer than
the general call's Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from gence._triton import launch, power_of_two
from gence.losses.backends.second import differentiable_gradients, needs_plain_gradient
from gence.losses.backends.triton import tuning
from gence.losses.backends.triton.kernels import (
    finalise,
    finish_columns,
    rows_backward,
    rows_forward,
    tiny_kernel,
    tiny_warps,
)
from gence.losses.backends.triton.layout import (
    FLOAT_ANCHOR,
    INDEX,
    MEAN,
    SUM,
    WITHOUT_ANCHOR,
    alignment,
    class_floats,
    finalise_layout,
    padded_classes,
    row_layout,
    tensor_key,
)
from gence.losses.targets import Rows

_hooks: Any = knobs.runtime
_FILLED_BYTES = 1 << 20  # to fill as many takes the device less time than it takes the host to tell which must be zero


def plan_of(rows: Rows, anchor: float, prior: Tensor | None) -> Plan | None:
    """How to compute the loss of such rows, or None where the general call has to do it.

    Args:
        rows: logits with unit column stride and class indices, int64, with unit stride; no class weights.
        anchor: strength of the anchor.
        prior: its class distribution (K,), with unit stride.

    Returns:
        A plan: ``plan.apply(logits, index, prior, plan)`` is the loss, for all tensors of these sizes, strides, types
        and alignments, while they are on the current device, need a gradient, and the settings are what they are now.
    """
    logits = rows.logits
    n, K = logits.shape
    tune = tuning.current()
    if rows.reduction == "none" or rows.index is None:
        return None
    if power_of_two(n) * power_of_two(K) <= tune.tiny_elements:
        return _TinyPlan(rows, rows.index, anchor, prior)
    layout = row_layout(logits)
    # Sums in a fixed order need a slot for each program: a plan's one buffer would hold them until the backward pass.
    if layout is None or layout[1] > tune.rows_elements or torch.are_deterministic_algorithms_enabled():
        return None
    return _RowsPlan(rows, rows.index, anchor, prior, layout)


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

    def __init__(self, rows: Rows, index: Tensor, anchor: float, prior: Tensor | None) -> None:
        logits = rows.logits
        n, K = logits.shape
        self.shape, self.strides, self.empty = (n, K), (K, 1), _allocator(logits.device)
        self.dtype, self.loss_dtype = logits.dtype, rows.dtype
        self.types = (tensor_key(logits), self.loss_dtype, tensor_key(index), prior is not None and tensor_key(prior))
        self.rows = replace(rows, logits=logits.detach()[:0], index=index[:0])  # a plan holds no batch
        self.anchor, self.kind = anchor, MEAN if rows.reduction == "mean" else SUM
        self.anchor_kind = FLOAT_ANCHOR if anchor > 0 else WITHOUT_ANCHOR
        self.has_prior, self.smooth = anchor > 0 and prior is not None, rows.label_smoothing > 0

    def plain_gradient(self, logits: Tensor, index: Tensor, prior: Tensor | None, upstream: Tensor) -> Tensor | None:
        """The gradient by plain operations."""
        rows = replace(self.rows, logits=logits, index=index, shape=index.shape)
        return differentiable_gradients(rows, self.anchor, prior, None, upstream, (True, False))[0]


def _direct(function: type[torch.autograd.Function]) -> Callable[..., Tensor]:
    """``function.apply`` without what it does for function transforms, under which there is no plan."""
    apply: Callable[..., Tensor] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


class _TinyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, prior: Tensor | None, plan: _TinyPlan) -> Tensor:
        loss = plan.empty((), (), plan.loss_dtype)
        # In float32 also for half types, so that the product with the upstream gradient is rounded once.
        grad = plan.empty(plan.shape, plan.strides, torch.float32)
        kernel = plan.kernel
        if kernel.public is None:
            kernel.first(logits, index, None, None, None, prior, None, loss, grad)
        else:
            labels, to = index.data_ptr(), grad.data_ptr()
            of_prior = None if prior is None else prior.data_ptr()
            kernel.direct(logits.data_ptr(), labels, None, None, None, of_prior, None, loss.data_ptr(), to)
        ctx.save_for_backward(logits, grad, index, prior)
        ctx.plan = plan
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        logits, grad, index, prior = ctx.saved_tensors
        plan: _TinyPlan = ctx.plan
        if needs_plain_gradient(upstream):
            return plan.plain_gradient(logits, index, prior, upstream), None, None, None
        if plan.dtype == torch.float32:
            return grad * upstream, None, None, None
        return torch.mul(grad, upstream, out=plan.empty(plan.shape, plan.strides, plan.dtype)), None, None, None


class _TinyPlan(Plan):
    apply = _direct(_TinyLoss)

    def __init__(self, rows: Rows, index: Tensor, anchor: float, prior: Tensor | None) -> None:
        super().__init__(rows, index, anchor, prior)
        logits = rows.logits
        n, K = logits.shape
        padded_rows, columns = power_of_two(n), power_of_two(K)
        sizes = (n, logits.stride(0), 1, rows.label_smoothing, anchor)
        # No weight; with the gradient.
        static: tuple[Any, ...] = (K, alignment(logits), padded_rows, columns, INDEX, rows.ignore_index)
        static += (False, self.smooth, self.anchor_kind, self.has_prior, self.kind, True)
        warps = tiny_warps(padded_rows * columns)
        self.kernel = _Kernel(tiny_kernel, 1, warps, self.types, sizes, static)


class _RowsLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, prior: Tensor | None, plan: _RowsPlan) -> Tensor:
        # One allocation for the sums, which start from zero, and for what the backward pass needs.
        buffer = plan.empty(plan.size, (1,), torch.float32)
        (buffer if plan.zero_all else buffer[: plan.stats_at]).zero_()
        loss = plan.empty((), (), plan.loss_dtype)
        kernel, last = plan.forward, plan.last
        if kernel.public is None:
            sums, stats, classes = plan.parts(buffer)
            kernel.first(logits, index, None, None, None, sums, stats, classes, loss)
            if last is not None:
                last.first(logits, None, sums, stats, None, classes, loss, None, prior, None)
        else:
            at = buffer.data_ptr()
            stats_at, classes_at = at + plan.stats_byte, at + plan.classes_byte
            labels = index.data_ptr()
            of_logits, of_loss = logits.data_ptr(), loss.data_ptr()
            kernel.direct(of_logits, labels, None, None, None, at, stats_at, classes_at, of_loss)
            if last is not None:
                of_prior = None if prior is None else prior.data_ptr()
                last.direct(of_logits, None, at, stats_at, None, classes_at, of_loss, None, of_prior, None)
        ctx.save_for_backward(logits, index, buffer, prior)
        ctx.plan = plan
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None, None]:
        logits, index, buffer, prior = ctx.saved_tensors
        plan: _RowsPlan = ctx.plan
        if needs_plain_gradient(upstream):
            return plan.plain_gradient(logits, index, prior, upstream), None, None, None
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
        return grad, None, None, None


class _RowsPlan(Plan):
    apply = _direct(_RowsLoss)

    def __init__(
        self, rows: Rows, index: Tensor, anchor: float, prior: Tensor | None, layout: tuple[int, int, int, int]
    ) -> None:
        super().__init__(rows, index, anchor, prior)
        logits = rows.logits
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
        stride, eps = logits.stride(0), rows.label_smoothing
        tile = (K, padded, alignment(logits), tile_rows, columns)
        sizes = (n, stride, 0, eps)
        # Smoothing and anchor would cost the rows' kernel registers: with them the last step is a launch of its own.
        apart = self.smooth or self.anchor_kind != WITHOUT_ANCHOR
        # No weight; labels are counted; no slots.
        forward: tuple[Any, ...] = (*tile, INDEX, rows.ignore_index, False, self.smooth, True, False)
        forward += (0, 0) if apart else (finish_columns(K), self.kind)
        backward = (*tile, INDEX, False, self.smooth, False)
        of_forward = (*sizes, 0 if apart else counter_at)
        self.forward = _Kernel(rows_forward, programs, warps, self.types, of_forward, forward)
        self.backward = _Kernel(rows_backward, programs, warps, self.types, sizes, backward)
        self.last: _Kernel | None = None
        if apart:
            block, count = finalise_layout(n, K)
            static = (K, padded, block, 1024, 4, count, False, False, self.smooth, self.anchor_kind, self.has_prior)
            of_last = (n, 0, stride, stride, 0, counter_at, eps, anchor)
            settings = (*static, True, self.kind, False)
            self.last = _Kernel(finalise, count, 4, self.types, of_last, settings)

    def parts(self, buffer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(sums, row statistics, class vectors) in the buffer."""
        return buffer, buffer[self.stats_at :], buffer[self.classes_at :]
