"""Where a run was made: versions, commit and device, as they are stored with every number; and by which process."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "timm", "ray")


def environment_record(device: str = "auto") -> dict[str, Any]:
    """Return versions, commit and the name of the device that was used; names of machines and users are omitted."""
    return {"commit": commit(), "device": device_name(device), "platform": _platform(), "versions": versions()}


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python, gence and the libraries that can move a result."""
    from gence._version import __version__

    found = {"python": platform.python_version(), "gence": __version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def commit() -> str | None:
    """Return the commit of the checkout this package runs from, with "+changes" if it was edited; None outside one.

    `GENCE_COMMIT` says it where the sources were copied without their history.
    """
    if os.environ.get("GENCE_COMMIT"):
        return os.environ["GENCE_COMMIT"]
    package = Path(__file__).resolve().parents[2]
    # An installed package may lie inside somebody else's repository; only a checkout of gence has src/gence.
    if package.parent.name != "src" or not (package.parent.parent / ".git").exists():
        return None
    try:
        head = _git(package, "rev-parse", "HEAD")
        edited = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+changes" if edited else head


def device_name(device: str = "auto") -> str:
    """Return the name of the GPU that `device` ("auto", "cpu", "cuda" or "cuda:1") means here, or "cpu"."""
    torch = sys.modules.get("torch")
    if device != "cpu" and torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name(None if device == "auto" else device))
    return "cpu"


def _platform() -> str:
    return f"{platform.system()} {platform.machine()}"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


MACHINE = ("host", "boot", "pid_space")
"""The parts of an identity that all processes share that can see each other."""


def process_identity() -> dict[str, Any]:
    """Return what tells this process from every other: machine, boot, process space, number and start time."""
    return {
        "host": socket.gethostname(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "pid_space": _link("/proc/self/ns/pid"),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def is_alive(holder: Mapping[str, Any]) -> bool | None:
    """Return whether a process lives, given its `process_identity`; None if it is of another machine, or unknown."""
    mine = process_identity()
    if not isinstance(holder.get("pid"), int) or "started" not in holder:
        return None
    if any(holder.get(name) != mine[name] for name in MACHINE):
        return None
    return bool(_started(holder["pid"]) == holder["started"])


def _started(pid: int) -> str | None:
    """Return when a process started, in the system's ticks, or None if there is none (a zombie does not count)."""
    stat = _read(f"/proc/{pid}/stat")
    if stat:
        # The name in parentheses may hold spaces; the fields after it are counted from the closing one.
        rest = stat.rpartition(")")[2].split()
        return None if rest[0] in "ZX" else rest[19]
    if Path("/proc/self").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "unknown"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return str(Path(path).readlink())
    except OSError:
        return None
