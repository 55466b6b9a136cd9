"""The quick part of the attack; `make attack` runs the whole of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.adversarial.__main__ import HARNESSES, run_one

QUICK = {name: cases for name, (_, _, _, cases) in HARNESSES.items() if cases}


@pytest.mark.parametrize("name", [name for name in QUICK if name != "kernels"])
def test_nothing_breaks(name: str) -> None:
    summary = run_one(name, 0, QUICK[name], None)
    assert not summary.failures, str(summary)
    assert summary.cases == QUICK[name]


def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    command = [sys.executable, "-W", "ignore", "-m", "tests.adversarial", "--only", "kernels"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, "--cases", str(QUICK["kernels"])], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
