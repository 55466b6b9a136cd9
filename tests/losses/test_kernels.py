"""The Triton kernels in CI: their tests, run on the CPU by Triton's interpreter, in processes of their own.

Triton decides when it is imported whether it interprets, so this process, which may have imported it, cannot do it.
Two classes, because workers take whole classes: so the two halves run side by side.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", minversion="3.6")


def interpret(cases: str) -> None:
    """Run the cases that ``pytest -k`` selects."""
    file = Path(__file__).with_name("test_kernels_cases.py")
    found = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), "-k", cases, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert " passed" in found.stdout


class TestLongRows:
    def test_in_the_interpreter(self) -> None:
        interpret("stream")


class TestShortRows:
    def test_in_the_interpreter(self) -> None:
        interpret("not stream")
