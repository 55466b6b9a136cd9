"""The Ray engine, on a real local cluster of two nodes of which one is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gence.lab.store.record import outcome_of
from gence.lab.store.store import Store
from gence.lab.sweep.run import run_grid
from tests.lab.tiny_trainer import make_specs, train

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
SEEDS = 30


def outcomes(store: Store) -> dict[str, str]:
    return {key: outcome_of(store.line(key), key)[0] for key in sorted(store.keys())}


def output_of(command: list[str], environment: dict[str, str], timeout: float = 300) -> str:
    """Run a command, and end all that it started with it."""
    driver = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = driver.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert driver.returncode == 0, errors[-3000:]
    return output


def test_a_grid_survives_the_loss_of_a_node(tmp_path, quiet_console):
    script = Path(__file__).parents[1] / "ray_driver.py"
    environment = {**os.environ, "EPOCH_S": "0.005", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(tmp_path / "store"), str(SEEDS)]
    report = json.loads(output_of(command, environment).splitlines()[-1])
    assert report.get("killed") == 1, "the node was at work when it was lost"
    assert 15 <= report["records"] < 60
    assert (report["failed"], report["left"]) == ({}, 0)
    assert report["done"] + report["already"] == 60
    assert (report["late"], report["late_left"]) == ("time limit", 8)
    assert report["late_s"] < 15, "the workers hear of the limit while they train"
    assert report["mode"] == "token", "a new cluster asks for a token"
    assert report["connects"] == [True, False, False], "with its token, with another, with none"
    assert report["dashboards"] == ["127.0.0.1"]
    store, undisturbed = Store(tmp_path / "store"), Store(tmp_path / "undisturbed")
    run_grid(make_specs(SEEDS), undisturbed, device="cpu", trainer=train, console=quiet_console)
    assert outcomes(store) == outcomes(undisturbed)
    check = store.check()
    assert (check.sound, check.problems) == (60, ())
