"""How a run's steps are executed: one by one, or as a captured graph on a stream of its own.

On a GPU each run of a cohort is a lane: its whole step is captured once as a CUDA graph and replayed on its own stream,
so that the small kernels of one run fill the gaps of the others and Python costs nothing per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

WARMUP_STEPS = 3
"""Steps that run before a capture; their effects are undone."""
STEPS_IN_TURN = 1
"""Steps of a lane that are enqueued before it is the next lane's turn."""


class Lane(Protocol):
    """Executes a run's steps."""

    def run(self, steps: int) -> None:
        """Execute (or enqueue) this many steps."""

    def then(self, work: Callable[[], None]) -> None:
        """Execute (or enqueue) work after the steps so far."""

    def wait(self) -> None:
        """Return when everything enqueued has finished."""


class EagerLane:
    """Steps executed at once, for CPUs and for debugging on a GPU."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def run(self, steps: int) -> None:
        """Execute this many steps."""
        for _ in range(steps):
            self.step()

    def then(self, work: Callable[[], None]) -> None:
        """Execute the work."""
        work()

    def wait(self) -> None:
        """Nothing is ever pending."""


class GraphLane:
    """A captured step replayed on a stream of its own.

    Args:
        step: the whole step, free of host synchronisation; it runs a few times before capture to warm up.
        restore: undoes what those warm-up steps did to the run's tensors, in place.
    """

    def __init__(self, step: Callable[[], None], restore: Callable[[], None]) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARMUP_STEPS):
                step()
        self.stream.synchronize()
        with torch.cuda.graph(self.graph, stream=self.stream):
            step()
        with torch.cuda.stream(self.stream):
            restore()
        self.stream.synchronize()

    def run(self, steps: int) -> None:
        """Enqueue this many steps."""
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                self.graph.replay()

    def then(self, work: Callable[[], None]) -> None:
        """Enqueue work behind the steps so far."""
        with torch.cuda.stream(self.stream):
            work()

    def wait(self) -> None:
        """Block the host until the lane is idle."""
        self.stream.synchronize()


def run_in_turns(lanes: Sequence[Lane], steps: int) -> None:
    """Execute (or enqueue) this many steps of each lane, a few at a time, so that all lanes advance together.

    To enqueue all steps of one lane before the next lane's is slower, the more so the more steps there are: presumably
    the device's queue is then full of the first lanes' work. Lanes that also wait for one another are faster still.
    """
    for start in range(0, steps, STEPS_IN_TURN):
        if start:
            _keep_together(lanes)
        for lane in lanes:
            lane.run(min(STEPS_IN_TURN, steps - start))


def _keep_together(lanes: Sequence[Lane]) -> None:
    """Let each lane go on when all have done what is enqueued so far."""
    streams = [lane.stream for lane in lanes if isinstance(lane, GraphLane)]
    for stream in streams[1:]:
        streams[0].wait_stream(stream)
    for stream in streams[1:]:
        stream.wait_stream(streams[0])
