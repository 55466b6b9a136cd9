from __future__ import annotations

import os
import signal

import pytest

from gence.experiment.claims import Claims
from gence.experiment.engines import create_engine
from gence.experiment.engines.gpus import visible_gpus
from gence.experiment.run import run_grid
from gence.experiment.store import Store, StoreError
from tests.experiment.tiny_trainer import make_specs, train


@pytest.fixture
def no_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def crash_on_seed_1(specs, **options):
    """Kills its own process, as a driver fault or the system's memory killer would."""
    if any(spec.seed == 1 for spec in specs):
        os.kill(os.getpid(), signal.SIGKILL)
    return train(specs, **options)


def full_disk(specs, **options):
    raise StoreError("no space left to write anything")


def test_gpus_are_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-8a,")
    assert visible_gpus() == ["2", "GPU-8a"]


def test_without_gpus_the_engine_says_what_to_do(no_gpus, tmp_path, quiet_console):
    with pytest.raises(ValueError, match=r"found no GPU.*workers=N"):
        run_grid(make_specs(1), tmp_path, engine="gpus", device="cpu", trainer=train, console=quiet_console)


def test_a_run_whose_process_always_dies_is_given_up_and_the_rest_is_done(no_gpus, tmp_path, quiet_console):
    specs = make_specs(3, losses=("ce",))
    engine = create_engine("gpus", workers=2)
    report = run_grid(
        specs, tmp_path, engine=engine, device="cpu", cohort_size=3, trainer=crash_on_seed_1, console=quiet_console
    )
    assert sorted(report.done) == sorted(spec.key for spec in specs if spec.seed != 1)
    assert list(report.failed) == [specs[1].key]
    assert "exit code -9" in report.failed[specs[1].key]
    assert Store(tmp_path).check().ok
    assert not any(Claims(tmp_path).held_elsewhere(spec.key) for spec in specs), "the dead hold nothing"


def test_a_store_error_in_a_worker_ends_the_grid(no_gpus, tmp_path, quiet_console):
    engine = create_engine("gpus", workers=1)
    with pytest.raises(StoreError, match="no space left"):
        run_grid(make_specs(1), tmp_path, engine=engine, device="cpu", trainer=full_disk, console=quiet_console)
