"""Launching a compiled kernel with little Python.

Triton's own ``kernel[grid](...)`` looks at every argument at every call, which costs more than the kernels of a small
problem. Here the caller names what a compilation depends on (``key``), and later calls go to the compiled kernel.
"""

from __future__ import annotations

from typing import Any

import torch

_compiled: dict[tuple[Any, ...], Any] = {}
_multiprocessors: dict[int | None, int] = {}


def launch(
    kernel: Any,
    programs: int,
    warps: int,
    key: tuple[Any, ...],
    args: tuple[Any, ...],
    registers: int | None = None,
    together: bool = False,
) -> Any:
    """Run ``kernel`` on ``programs`` programs of ``warps`` warps.

    Args:
        kernel: a Triton function.
        programs: size of the one-dimensional grid.
        warps: warps of a program.
        key: everything the compiled code depends on: device, types and alignment of the tensors, compile-time values.
        args: the kernel's arguments in order, compile-time values included.
        registers: the most that a thread may have.
        together: whether programs wait for one another, so that all must be resident at a time.

    Returns:
        The compiled kernel; None from the interpreter.
    """
    name = (kernel, warps, registers, together, key)
    compiled = _compiled.get(name)
    if compiled is None:
        compiled = kernel[(programs,)](*args, **options(warps, registers, together))
        if compiled is not None:
            _compiled[name] = compiled
        return compiled
    compiled[(programs, 1, 1)](*args)
    return compiled


def options(warps: int, registers: int | None, together: bool = False) -> dict[str, Any]:
    """How a kernel is compiled."""
    # Fused multiply-adds are asked for because Triton 3.10 no longer makes them by itself.
    found = {"num_warps": warps, "maxnreg": registers, "enable_fp_fusion": True}
    return {**found, "launch_cooperative_grid": True} if together else found


def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors the device has; 2 for the interpreter, so that programs share work there as well."""
    count = _multiprocessors.get(device.index)
    if count is None:
        count = 2
        if device.type == "cuda":
            count = int(torch.cuda.get_device_properties(device).multi_processor_count)
        _multiprocessors[device.index] = count
    return count


def side_by_side(device: torch.device) -> bool:
    """Whether programs run at the same time, so that one can wait for another; the interpreter's do not."""
    return device.type == "cuda"


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    if isinstance(number, int):
        return 1 << (number - 1).bit_length()
    power = 1  # a symbolic size: compare, so that a compiled graph holds for all sizes of the same power
    while power < number:
        power *= 2
    return power
