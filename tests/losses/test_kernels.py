"""The Triton kernels in CI: their tests, run on the CPU by Triton's interpreter, in a process of its own.

Triton decides when it is imported whether it interprets, so this process, which may have imported it, cannot do it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", minversion="3.6")


def test_kernels_in_the_interpreter():
    cases = Path(__file__).with_name("test_kernels_cases.py")
    found = subprocess.run(
        [sys.executable, "-m", "pytest", str(cases), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert " passed" in found.stdout
