"""Processes to kill at a thousandth of the price: one that has imported everything, and forks a child for each case.

A start of Python and torch takes seconds, most of them before the first line of what is attacked. The children here are
real processes with real signals, exit codes, files and ends; only their imports are done.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_HEAVY = (
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "pydantic.type_adapter",
    "pyarrow.csv",
    "pyarrow.parquet",
    "rich.progress",
    "safetensors.torch",
    "scipy.stats",
    "sklearn.datasets",
    "timm",
    "torch._dynamo",
    "typer._adapters",
    "typer._click",
)

_LEFT_OUT = ("triton", "fused_norm", "integrations", "sklearn", "__main__")


@dataclass
class Child:
    """A process that the zygote forked, and where its words go."""

    pid: int
    said: Path
    complained: Path
    code: int | None = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a child that has ended is there until it is waited for, so no other process can be meant."""
        if self.code is None:
            os.kill(self.pid, number)

    @property
    def output(self) -> str:
        """What it printed."""
        return self.said.read_text(errors="replace")

    @property
    def errors(self) -> str:
        """What it printed on standard error."""
        return self.complained.read_text(errors="replace")


class Zygote:
    """The process that forks; use `zygote()`, which starts it once."""

    def __init__(self) -> None:
        environment = {**os.environ, **THREADS, "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.adversarial.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],  # where ``tests`` is found, wherever the first case has gone
        )
        self._words = tempfile.TemporaryDirectory(prefix="attack-words-")
        self._count = 0
        atexit.register(self.end)

    def start(
        self,
        call: str,
        *arguments: Any,
        argv: Sequence[str] = (),
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        encoding: str = "utf-8",
    ) -> Child:
        """Fork a child that calls ``module:function``; return when it is about to."""
        self._count += 1
        said, complained = (Path(self._words.name) / f"{self._count}.{end}" for end in ("out", "err"))
        request = {
            "call": call,
            "arguments": arguments,
            "argv": ["gence", *argv],
            "cwd": str(cwd),
            "out": str(said),
            "err": str(complained),
            "environment": dict(environment or {}),
            "encoding": encoding,
        }
        return Child(self._ask(request), said, complained)

    def wait(self, child: Child, timeout: float = 400.0) -> int:
        """Wait for a child's end; return its exit code, negative for a signal. One that takes longer is killed."""
        if child.code is None:
            code = self._ask({"wait": child.pid, "timeout": timeout})
            if code is None:
                os.kill(child.pid, signal.SIGKILL)
                self._ask({"wait": child.pid, "timeout": 60.0})
                raise AssertionError(f"did not end in {timeout:.0f} s: {child.errors[-500:]}")
            child.code = code
        return child.code

    def run(self, call: str, *arguments: Any, timeout: float = 400.0, **options: Any) -> Child:
        """Start a child and wait for its end."""
        child = self.start(call, *arguments, **options)
        self.wait(child, timeout)
        return child

    def end(self) -> None:
        """End the zygote."""
        if self._process.poll() is None:
            self._process.kill()  # its children have ended
        self._process.wait()
        self._words.cleanup()

    def _ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@functools.cache
def zygote() -> Zygote:
    """The one zygote of this process."""
    return Zygote()


def _serve() -> None:
    """Read requests, fork, wait, answer."""
    _import_all()
    gc.collect()
    gc.freeze()  # so that a child's collections leave the memory alone that it shares with this process
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            answer: Any = _waited(request["wait"], request["timeout"])
        else:
            ready, go = os.pipe()
            pid = os.fork()
            if pid == 0:
                _end_as_python_does(functools.partial(_become, request, ready, go))
            os.close(go)
            os.read(ready, 1)
            os.close(ready)
            answer = pid
        print(json.dumps(answer), flush=True)


def _end_as_python_does(call: Callable[[], None]) -> NoReturn:
    """Call, and end with Python's codes and words; only the modules are not taken apart, which takes seconds here."""
    code: Any = 0
    try:
        try:
            call()
        except SystemExit as left:
            code = left.code
            if isinstance(code, str):
                print(code, file=sys.stderr)
                code = 1
        except BaseException as error:
            traceback.print_exc()
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    os._exit(code or 0)


def _waited(pid: int, timeout: float) -> int | None:
    until = time.monotonic() + timeout
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.003)


def _become(request: Mapping[str, Any], ready: int, go: int) -> None:
    """Be the child: its own group, streams, folder and environment, and then its call."""
    os.close(ready)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
    encoding = request["encoding"]
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), encoding=encoding)
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "wb", closefd=False), encoding=encoding, errors="backslashreplace", write_through=True
    )
    os.chdir(request["cwd"])
    for name, value in request["environment"].items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    sys.argv = request["argv"]
    module, _, name = request["call"].partition(":")
    called = getattr(importlib.import_module(module), name)
    os.write(go, b"x")
    os.close(go)
    called(*request["arguments"])


def _import_all() -> None:
    import gence

    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for found in pkgutil.walk_packages(gence.__path__, "gence."):
        if not any(part in found.name for part in _LEFT_OUT):
            with contextlib.suppress(ImportError):
                importlib.import_module(found.name)


if __name__ == "__main__":
    _end_as_python_does(_serve)
