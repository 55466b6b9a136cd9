"""The Triton kernels in CI: their tests, run on the CPU by Triton's interpreter, in processes of their own.

Triton decides when it is imported whether it interprets, so this process, which may have imported it, cannot do it.
Several classes, because workers take whole classes: so the parts run side by side. One part, which goes through every
kernel, is measured by coverage; to measure all would take three times as long.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", minversion="3.6")


MEASURED = " or ".join(
    [
        "no_larger",
        "beside_columns",
        "(held_by and ignore)",
        "second_derivative",
        "operator",
        "plan",
        "(compiled and tiny)",
    ]
)


def interpret(cases: str, measured: bool = False) -> None:
    """Run the cases that ``pytest -k`` selects."""
    file = Path(__file__).with_name("test_kernels_cases.py")
    known = {name: value for name, value in os.environ.items() if measured or not name.startswith("COVERAGE_PROCESS_")}
    found = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), "-k", cases, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        env={**known, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert " passed" in found.stdout


class TestMeasured:
    def test_in_the_interpreter(self) -> None:
        interpret(MEASURED, measured=True)


class TestLongRows:
    def test_in_the_interpreter(self) -> None:
        interpret(f"stream and not ({MEASURED})")


class TestShortRows:
    def test_in_the_interpreter(self) -> None:
        interpret(f"not stream and not ({MEASURED})")
