"""Timing that can be believed: warm-up, fresh inputs, a cold or a hot cache, medians with their quantiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

_CYCLES_PER_SECOND = 2e9  # of a GPU, at most
FLUSH_BYTES = 256 << 20  # several times the largest L2 cache


def _nothing(_: int) -> None:
    return None


@dataclass(frozen=True)
class Times:
    """Milliseconds: the median, the 20 % and 80 % quantiles, and how many measurements they are of."""

    median: float
    low: float
    high: float
    count: int

    def as_dict(self) -> dict[str, float]:
        """The same as plain data."""
        return asdict(self)


def summarise(milliseconds: Sequence[float]) -> Times:
    """Median and 20/80 % quantiles.

    >>> summarise([3.0, 1.0, 2.0]).median
    2.0
    """
    values = sorted(milliseconds)
    if len(values) == 1:
        return Times(values[0], values[0], values[0], 1)
    fifths = statistics.quantiles(values, n=5, method="inclusive")
    return Times(statistics.median(values), fifths[0], fifths[3], len(values))


def time_on_gpu(
    work: Callable[[int], object],
    *,
    seconds: float,
    cold: bool,
    prepare: Callable[[int], object] = _nothing,
) -> Times:
    """Device events around ``work(i)``; ``prepare(i)`` and the flush of a cold cache are outside of them.

    The device is kept busy before, for longer than the host takes to enqueue the work: so it is the device's time that
    is measured, with none of the host's in between. What the host costs is in ``time_on_wall``.
    """
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda") if cold else None
    head_start = 0

    def once(i: int) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        prepare(i)
        torch.cuda._sleep(head_start)  # type: ignore[no-untyped-call]
        if flush is not None:
            flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work(i)
        stop.record()
        return start, stop

    for i in range(3):
        once(i)
    torch.cuda.synchronize()
    began = time.perf_counter()
    once(3)
    enqueued = time.perf_counter() - began
    torch.cuda.synchronize()
    head_start = int(2 * enqueued * _CYCLES_PER_SECOND)
    repeats = max(8, min(200, int(seconds / (time.perf_counter() - began + 2 * enqueued))))
    pairs = [once(i) for i in range(repeats)]
    torch.cuda.synchronize()
    return summarise([start.elapsed_time(stop) for start, stop in pairs])


def time_on_wall(work: Callable[[int], object], *, seconds: float, synchronise: bool, inner: int = 1) -> Times:
    """Wall time of ``work(i)``, ``inner`` calls between two looks at the clock, the device idle at both."""

    def once(first: int) -> float:
        if synchronise:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for i in range(first, first + inner):
            work(i)
        if synchronise:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / inner * 1e3

    for _ in range(3):
        milliseconds = once(0)
    repeats = max(5, min(100, int(seconds / (milliseconds * inner / 1e3))))
    return summarise([once(i * inner) for i in range(repeats)])


def copy_bandwidth(device: torch.device, size: int = 1 << 30) -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    if device.type == "cuda":
        times = time_on_gpu(lambda _: target.copy_(source), seconds=0.1, cold=False)
    else:
        times = time_on_wall(lambda _: target.copy_(source), seconds=0.2, synchronise=False)
    return 2 * size / (times.median / 1e3)


def time_once(work: Callable[[int], object], inner: int, synchronise: bool = False) -> float:
    """Milliseconds of one call of ``work``, from ``inner`` calls in a row."""
    began = time.perf_counter()
    for i in range(inner):
        work(i)
    if synchronise:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / inner * 1e3
