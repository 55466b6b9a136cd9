"""The engine of processes on one machine, for each GPU one or several on a CPU, fed through a pipe each.

A shared queue would be simpler, but a worker killed while it reads one leaves it locked for all the others.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from gence.lab.store import StoreError
from gence.lab.sweep.queue import Capacity, CohortQueue, Control, fraction
from gence.lab.sweep.worker import Outcome, Task, WorkOptions, perform

_POLL_S = 0.5
_PROGRESS_EVERY_S = 0.5
_GRACE_S = 30.0


@dataclass
class ProcessEngine:
    """Does cohorts in processes: one for each visible GPU, or as many as are asked for.

    Attributes:
        workers: how many processes; None is one for each GPU. With fewer GPUs than workers (or none, on a CPU) the
            processes share them.
    """

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}; expected at least 1, or nothing for one per GPU")

    def capacity(self, device: str) -> Capacity:
        """Return room for one cohort in each process."""
        gpus = visible_gpus()
        count = self.workers or len(gpus)
        if count == 0:
            raise ValueError(
                'the engine "processes" found no GPU; use the engine "local", or workers=N for N processes on the CPU'
            )
        if device not in ("auto", "cpu"):
            from gence.lab.train import check_device

            check_device(device)
        return Capacity(cohorts=count, on_gpu=bool(gpus) and device != "cpu")

    def execute(self, queue: CohortQueue, options: WorkOptions, control: Control) -> None:
        """Do the tasks of the queue, each in the next process that is free; a process that dies is replaced."""
        count = self.capacity(options.device).cohorts
        gpus = visible_gpus()
        slots = [_Slot(gpu=gpus[i % len(gpus)] if gpus else None, options=options) for i in range(count)]
        patient = True
        try:
            _drive(slots, queue, control)
        except KeyboardInterrupt:  # Ctrl-C for the second time: the first is a wish that `control` knows
            patient = False
            raise
        finally:
            _end(slots, patient=patient)


def visible_gpus() -> list[str]:
    """Return the GPUs this process may use, as `CUDA_VISIBLE_DEVICES` writes them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


@dataclass
class _Slot:
    """One worker process and its pipe, started when first needed and again after it died."""

    gpu: str | None
    options: WorkOptions
    task: Task | None = None
    _process: BaseProcess | None = None
    _pipe: Connection | None = None
    _asked_to_stop: bool = field(default=False)

    @property
    def pipe(self) -> Connection:
        if self._pipe is None:
            # spawn, not fork: CUDA does not survive a fork.
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_worker, args=(theirs, self.gpu, self.options), daemon=True)
            with _ctrl_c_kept_back():
                self._process.start()
            theirs.close()  # so that the worker's death is the end of the pipe
        return self._pipe

    def give(self, task: Task) -> None:
        """Hand a task to the worker."""
        self.task = task
        with contextlib.suppress(OSError):  # a worker that died meanwhile is noticed when its answer is awaited
            self.pipe.send(task)

    def ask_to_stop(self) -> None:
        """Ask the worker to end its cohort early, once."""
        if not self._asked_to_stop and self._process is not None and self._process.is_alive():
            self._asked_to_stop = True
            self._process.terminate()

    def drop(self) -> str:
        """Let go of a worker that died; return how it ended."""
        process, self._process = self._process, None
        self.task = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if process is None:
            return "the worker could not be started"
        process.join()
        return f"the worker process died (exit code {process.exitcode}; -9 is a kill, often for lack of memory)"

    def close(self) -> None:
        """End the worker: closing the pipe asks it to, and a worker that does not listen is killed in the end."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self.ask_to_stop()
            self._process.join(_GRACE_S)
            self.kill()

    def kill(self) -> None:
        """End the worker at once, if it still lives."""
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()


def _end(slots: list[_Slot], *, patient: bool) -> None:
    """End all workers: a patient end lets each finish its epoch, and Ctrl-C cuts the wait short.

    Killing loses nothing that was recorded: records are written whole or not at all, and the claims of the dead are
    taken over.
    """
    try:
        if patient:
            for slot in slots:
                slot.close()
    finally:
        for slot in slots:
            slot.kill()


@contextlib.contextmanager
def _ctrl_c_kept_back() -> Iterator[None]:
    """Start a process that Ctrl-C does not reach, though it goes to the whole group; here it comes after the block.

    A worker says so itself, but not before its first imports are done, which a Ctrl-C would end in a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else started within the block, after which it lets the signal through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _drive(slots: list[_Slot], queue: CohortQueue, control: Control) -> None:
    while True:
        stopping = control.should_stop()
        for slot in slots:
            if stopping:
                slot.ask_to_stop()
            elif slot.task is None and (task := queue.take()) is not None:
                slot.give(task)
        busy = {slot.pipe: slot for slot in slots if slot.task is not None}
        if not busy:
            return
        for pipe in wait(list(busy), timeout=_POLL_S):
            _listen(busy[pipe], queue, control)  # type: ignore[index]


def _listen(slot: _Slot, queue: CohortQueue, control: Control) -> None:
    """Read one message of a worker."""
    task = slot.task
    if task is None:
        return
    try:
        message = slot.pipe.recv()
    except (EOFError, OSError):
        queue.lose(task, slot.drop())
        control.progress(task, 1.0)
        return
    if isinstance(message, Outcome):
        slot.task = None
        queue.settle(task, message)
        control.progress(task, 1.0)
    elif isinstance(message, float):
        control.progress(task, message)
    else:
        raise StoreError(message)


def _worker(pipe: Connection, gpu: str | None, options: WorkOptions) -> None:
    """Do tasks until the pipe ends. Runs in a process of its own."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before CUDA is first used, so that "auto" means this GPU
        if options.device.startswith("cuda"):
            options = replace(options, device="cuda")  # the only one this process sees, whatever its number elsewhere
    asked: list[int] = []
    # Ctrl-C goes to the whole group; the driver decides and asks with SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    driver = os.getppid()
    last = 0.0

    def tell(progress: Any) -> None:
        nonlocal last
        if time.monotonic() - last > _PROGRESS_EVERY_S:
            last = time.monotonic()
            with contextlib.suppress(OSError):
                pipe.send(fraction(progress))

    with contextlib.suppress(EOFError, OSError):  # the driver is gone: so is the reason to continue
        while not asked:
            task = pipe.recv()
            try:
                answer: Any = perform(
                    task, options, should_stop=lambda: bool(asked) or os.getppid() != driver, on_epoch=tell
                )
            except StoreError as error:
                answer = str(error)
            pipe.send(answer)
