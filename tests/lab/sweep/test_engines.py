from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gence.lab.store.store import Store
from gence.lab.sweep.claims import Claims
from gence.lab.sweep.engines import create_engine
from gence.lab.sweep.engines.processes import ProcessEngine, visible_gpus
from gence.lab.sweep.queue import LocalEngine
from gence.lab.sweep.run import run_grid
from tests.lab.tiny_trainer import make_specs, train

DRIVER = Path(__file__).parents[1] / "grid_driver.py"


def drive(store: Path, engine: str, seeds: int, trainer: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(DRIVER), str(store), engine, str(seeds), trainer]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_gpus_are_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-8a,")
    assert visible_gpus() == ["2", "GPU-8a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert visible_gpus() == []


def test_engines_by_name_and_what_they_can_do_at_once(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    local, gpus = create_engine("local"), create_engine("gpus")
    assert (type(local), type(gpus)) == (LocalEngine, ProcessEngine)
    assert (local.capacity("cpu").cohorts, local.capacity("cpu").on_gpu) == (1, False)
    assert (gpus.capacity("auto").cohorts, gpus.capacity("auto").on_gpu) == (3, True)
    assert gpus.capacity("cpu").on_gpu is False
    assert create_engine("processes", workers=2) == create_engine("gpus", workers=2) == ProcessEngine(workers=2)


def test_without_gpus_the_engine_says_what_to_do(monkeypatch, tmp_path, quiet_console):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=r"found no GPU.*workers=N"):
        run_grid(make_specs(1), tmp_path, engine="gpus", device="cpu", trainer=train, console=quiet_console)


def test_a_run_whose_process_always_dies_is_given_up_and_the_rest_is_done(tmp_path):
    specs = make_specs(3)
    done = drive(tmp_path, "gpus", 3, "crash_on_seed_1")
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    assert list(report["failed"]) == [specs[1].key]
    assert "exit code -9" in report["failed"][specs[1].key]
    assert sorted([*report["done"], specs[1].key]) == sorted(spec.key for spec in specs)
    assert Store(tmp_path).check().sound == 5
    assert not any(Claims(tmp_path).held_elsewhere(spec.key) for spec in specs), "the dead hold nothing"


def test_a_store_error_in_a_worker_ends_the_grid(tmp_path):
    done = drive(tmp_path, "gpus", 1, "full_disk")
    assert done.returncode == 1
    assert "StoreError: no space left" in done.stderr
