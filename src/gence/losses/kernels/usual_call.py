"""The usual call: rows, class indices and nothing else, where Python is most of the cost of a small problem.

It launches the kernels that the general call would launch, with the same arguments. But whatever depends on sizes,
types and settings alone is made once for all calls of a kind (a plan), and the autograd functions save no more than
they use. Rows too long for registers have no plan: their kernels take longer than the general call's Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gence.losses.kernels import finalise as _finalise
from gence.losses.kernels import row_tiles, tiny, tuning
from gence.losses.kernels.autograd import differentiable_gradients
from gence.losses.kernels.launch import launch, power_of_two
from gence.losses.kernels.layout import alignment, class_floats, finalise_layout, padded_classes, row_layout, tensor_key
from gence.losses.kernels.problem import INDEX, MEAN, SUM, WITHOUT_ANCHOR, problem_of
from gence.losses.targets import needs_plain_gradient

Plan = Callable[[Tensor, Tensor], Tensor]
_plans: dict[tuple[Any, ...], Plan | None] = {}
_MOST_PLANS = 1024  # where every batch has another size, plans are made anew, and not kept for ever


def usual_loss(logits: Tensor, index: Tensor, ignore_index: int, reduction: str, dtype: torch.dtype) -> Tensor | None:
    """The loss in ``dtype`` of rows (n, K) that need a gradient, or None where the general call has to compute it.

    Args:
        logits: (n, K) with unit column stride, on the current device.
        index: class indices (n,), int64, with unit stride.
        ignore_index: rows with this index take no part.
        reduction: "mean", "sum" or "none".
        dtype: of the loss.
    """
    key = (
        logits.shape,
        logits.stride(0),
        logits.dtype,
        logits.device,
        ignore_index,
        reduction,
        dtype,
        logits.data_ptr() & 15,
        index.data_ptr() & 15,
        torch.are_deterministic_algorithms_enabled(),
        tuning.version(),
    )
    try:
        plan = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        types = (tensor_key(logits), dtype, tensor_key(index))
        plan = _plans[key] = _plan(logits, ignore_index, reduction, dtype, types)
    return None if plan is None else plan(logits, index)


def _plan(logits: Tensor, ignore_index: int, reduction: str, dtype: torch.dtype, types: tuple[Any, ...]) -> Plan | None:
    n, K = logits.shape
    tune = tuning.current()
    if reduction == "none":
        return None
    if power_of_two(n) * power_of_two(K) <= tune.tiny_elements:
        tiny_plan = _TinyPlan(logits, ignore_index, reduction, dtype, types)
        return lambda logits, index: _TinyLoss.apply(logits, index, tiny_plan)
    layout = row_layout(logits)
    if layout is None or layout[1] > tune.rows_elements:
        return None
    rows_plan = _RowsPlan(logits, ignore_index, reduction, dtype, types, layout)
    return lambda logits, index: _RowsLoss.apply(logits, index, rows_plan)


class _Kernel:
    """A kernel of a plan: launched by key the first time, and directly from then on."""

    __slots__ = ("function", "grid", "key", "run", "warps")

    def __init__(self, function: Any, programs: int, warps: int, key: tuple[Any, ...]) -> None:
        self.function, self.grid, self.warps, self.key = function, (programs, 1, 1), warps, key
        self.run: Any = None

    def __call__(self, *args: Any) -> None:
        if self.run is not None:
            self.run(*args)
            return
        compiled = launch(self.function, self.grid[0], self.warps, self.key, args)
        if compiled is not None:
            self.run = compiled[self.grid]


class _Usual:
    """What plans of all kinds know of their calls."""

    def __init__(self, logits: Tensor, ignore_index: int, reduction: str, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = tuple(logits.shape), logits.device, dtype
        self.ignore_index, self.reduction = ignore_index, reduction
        self.kind = MEAN if reduction == "mean" else SUM

    def plain_gradient(self, logits: Tensor, index: Tensor, upstream: Tensor) -> Tensor | None:
        """The gradient by plain operations."""
        problem = problem_of(index, None, self.ignore_index, self.reduction, 0.0, 0.0, None, logits)
        return differentiable_gradients(problem, logits, None, upstream, True, False)[0]


class _TinyPlan(_Usual):
    def __init__(
        self, logits: Tensor, ignore_index: int, reduction: str, dtype: torch.dtype, types: tuple[Any, ...]
    ) -> None:
        super().__init__(logits, ignore_index, reduction, dtype)
        n, K = logits.shape
        rows, columns = power_of_two(n), power_of_two(K)
        # No weight, smoothing, anchor or prior; with the gradient.
        static = (K, rows, columns, INDEX, ignore_index, False, False, WITHOUT_ANCHOR, False, self.kind, True)
        self.behind = (n, logits.stride(0), 1, 0.0, 0.0, *static)
        warps = max(1, min(32, rows * columns // (32 * tuning.current().tiny_lane)))
        self.kernel = _Kernel(tiny.tiny_kernel, 1, warps, (types, static))


class _TinyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, plan: _TinyPlan) -> Tensor:
        loss = torch.empty((), dtype=plan.dtype, device=plan.device)
        # In float32 also for half types, so that the product with the upstream gradient is rounded once.
        grad = torch.empty(plan.shape, dtype=torch.float32, device=plan.device)
        plan.kernel(logits, index, logits, logits, logits, logits, logits, loss, grad, *plan.behind)
        ctx.save_for_backward(logits, grad, index)
        ctx.plan = plan
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        logits, grad, index = ctx.saved_tensors
        if needs_plain_gradient(upstream):
            return ctx.plan.plain_gradient(logits, index, upstream), None, None
        if logits.dtype == torch.float32:
            return grad * upstream, None, None
        return torch.mul(grad, upstream, out=torch.empty_like(grad, dtype=logits.dtype)), None, None


class _RowsPlan(_Usual):
    def __init__(
        self,
        logits: Tensor,
        ignore_index: int,
        reduction: str,
        dtype: torch.dtype,
        types: tuple[Any, ...],
        layout: tuple[int, int, int, int],
    ) -> None:
        super().__init__(logits, ignore_index, reduction, dtype)
        n, K = logits.shape
        tile_rows, columns, programs, warps = layout
        partial = torch.are_deterministic_algorithms_enabled()
        padded = padded_classes(K)
        slots = programs if partial else 0
        counter_at = (2 + slots) * padded
        self.sum_floats, self.stat_floats, self.class_floats = counter_at + 1, 4 * n, class_floats(K)
        tile = (K, padded, alignment(logits), tile_rows, columns)
        sizes = (n, logits.stride(0), 0, 0.0)
        # No weight, no smoothing; labels are counted.
        forward = (*tile, INDEX, ignore_index, False, False, True, partial)
        backward = (*tile, INDEX, False, False, False)
        block, finishers = finalise_layout(n, K)
        finish: tuple[Any, ...] = (K, padded, block, 1024, 4, finishers)
        finish += (False, False, False, WITHOUT_ANCHOR, False, True, self.kind, partial)
        self.of_forward, self.of_backward = (*sizes, *forward), (*sizes, *backward)
        self.of_finalise = (n, 0, logits.stride(0), 0, slots, counter_at, 0.0, 0.0, *finish)
        self.forward = _Kernel(row_tiles.rows_forward, programs, warps, (types, forward))
        self.finalise = _Kernel(_finalise.finalise, finishers, 4, (types, finish))
        self.backward = _Kernel(row_tiles.rows_backward, programs, warps, (types, backward))


class _RowsLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor, plan: _RowsPlan) -> Tensor:
        device = plan.device
        sums = torch.zeros(plan.sum_floats, dtype=torch.float32, device=device)
        stats = torch.empty(plan.stat_floats, dtype=torch.float32, device=device)
        classes = torch.empty(plan.class_floats, dtype=torch.float32, device=device)
        loss = torch.empty((), dtype=plan.dtype, device=device)
        plan.forward(logits, index, logits, logits, logits, sums, stats, *plan.of_forward)
        plan.finalise(logits, logits, sums, stats, stats, classes, loss, logits, logits, logits, *plan.of_finalise)
        ctx.save_for_backward(logits, index, classes, stats)
        ctx.plan = plan
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None, None]:
        logits, index, classes, stats = ctx.saved_tensors
        plan: _RowsPlan = ctx.plan
        if needs_plain_gradient(upstream):
            return plan.plain_gradient(logits, index, upstream), None, None
        grad = torch.empty(plan.shape, dtype=logits.dtype, device=plan.device)
        plan.backward(logits, index, logits, logits, logits, classes, stats, upstream, grad, *plan.of_backward)
        return grad, None, None
