"""Test files whose Triton kernels run on the CPU, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_interpreted(file: Path, *options: str, measured: bool = False) -> None:
    """Run a test file by Triton's interpreter, and fail if it does.

    In a process of its own, because Triton decides when it is imported whether it interprets.

    Args:
        file: the tests.
        *options: more options of pytest.
        measured: whether coverage follows into the process.
    """
    known = {name: value for name, value in os.environ.items() if measured or not name.startswith("COVERAGE_PROCESS_")}
    found = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), *options, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        env={**known, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert " passed" in found.stdout


def patch_language_once() -> None:
    """Keep Triton's interpreter from patching its language again for every function that a kernel calls.

    A launch has patched it already, and to look through all its names again is half of the interpreter's time.
    """
    try:
        from triton import language
        from triton.runtime import interpreter

        patch = interpreter._patch_lang
    except (ImportError, AttributeError):  # no Triton, or one that does it in another way
        return

    def patch_what_is_not(function: Any) -> Any:
        seen = [value for value in function.__globals__.values() if value is language or value is language.core]
        # A launch, which undoes its patches at its end, finds the language as it is.
        return patch(function) if any(language.core.is_builtin(module.load) for module in seen) else None

    interpreter._patch_lang = patch_what_is_not
