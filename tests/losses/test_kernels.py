"""The Triton kernels in CI: their tests, run on the CPU by Triton's interpreter, in processes of their own.

Several classes, because workers take whole classes: so the parts run side by side. One part, which goes through every
kernel, is measured by coverage; to measure all would take three times as long.
"""

from pathlib import Path

import pytest

from tests.interpreter import run_interpreted

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
    run_interpreted(Path(__file__).with_name("test_kernels_cases.py"), "-k", cases, measured=measured)


class TestMeasured:
    def test_in_the_interpreter(self) -> None:
        interpret(MEASURED, measured=True)


class TestLongRows:
    def test_in_the_interpreter(self) -> None:
        interpret(f"stream and not ({MEASURED})")


class TestShortRows:
    def test_in_the_interpreter(self) -> None:
        interpret(f"not stream and not ({MEASURED})")
