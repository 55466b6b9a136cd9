"""Where a run was made: versions, commit and device, as they are stored with every number."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "timm", "ray")


def environment_record(device: str = "auto") -> dict[str, Any]:
    """Return versions, commit and the name of the device that was used; names of machines and users are left out."""
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
