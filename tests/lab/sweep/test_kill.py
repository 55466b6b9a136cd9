"""Sixty short runs, killed thirty times, come out as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gence.lab.store.record import outcome_of
from gence.lab.store.store import Store
from gence.lab.sweep.run import run_grid
from tests.lab.tiny_trainer import make_specs, train

DRIVER = Path(__file__).parents[1] / "grid_driver.py"
SEEDS = 30
KILLS = 30
LONGEST_S = 600


@pytest.fixture
def environment(tmp_path):
    return {
        **os.environ,
        "EPOCH_S": "0.004",
        "TRAINED_LOG": str(tmp_path / "trained.log"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }


def start_driver(
    store: Path, engine: str, environment: dict[str, str], seeds: int = SEEDS, trainer: str = "train", **options
) -> subprocess.Popen:
    command = [sys.executable, str(DRIVER), str(store), engine, str(seeds), trainer]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    return subprocess.Popen(command, env=environment, **options)


def workers_of(store: Path) -> set[int]:
    """The processes that hold claims now."""
    pids = set()
    for path in (store / "claims").glob("*.claim"):
        with contextlib.suppress(FileNotFoundError):
            pids.add(json.loads(path.read_bytes())["pid"])
    return pids


def blocks(pid: int, number: signal.Signals) -> bool:
    """Whether a signal does not reach a process, which it has from its birth or by its own will."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigBlk")]
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def outcomes(store: Store) -> dict[str, str]:
    return {key: outcome_of(store.line(key), key)[0] for key in sorted(store.keys())}


def await_work(store: Path, driver: subprocess.Popen, before: set[int]) -> None:
    """Wait until a process that was not there before holds a claim, or the driver has nothing left to do."""
    deadline = time.monotonic() + 240
    while driver.poll() is None and not workers_of(store) - before:
        assert time.monotonic() < deadline, "no run was begun for four minutes"
        time.sleep(0.002)


def test_sixty_runs_killed_thirty_times_come_out_whole(tmp_path, environment, quiet_console):
    rng = random.Random(0)
    root = tmp_path / "killed"
    kills = {"driver": 0, "worker": 0}
    started = time.monotonic()
    while sum(kills.values()) < KILLS:
        assert time.monotonic() - started < LONGEST_S
        before = workers_of(root) if root.exists() else set()
        driver = start_driver(root, rng.choice(["local", "gpus"]), environment)
        try:
            await_work(root, driver, before)
            time.sleep(rng.uniform(0, 0.15))
            for pid in workers_of(root) - {driver.pid}:
                if rng.random() < 0.5 and kills["worker"] < KILLS // 2:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        kills["worker"] += 1
                    time.sleep(rng.uniform(0, 0.1))
            assert driver.poll() is None, "the grid was finished before all the kills: make the runs longer"
            driver.send_signal(signal.SIGKILL)
            kills["driver"] += 1
        finally:
            driver.kill()
            driver.wait()
    assert min(kills.values()) >= 5, kills

    last = start_driver(root, "gpus", environment)
    assert last.wait(timeout=300) == 0
    store = Store(root)
    undisturbed = Store(tmp_path / "undisturbed")
    specs = make_specs(SEEDS)
    run_grid(specs, undisturbed, device="cpu", trainer=train, console=quiet_console)
    assert len(specs) == len(list((root / "records").rglob("*.json"))) == 60
    assert outcomes(store) == outcomes(undisturbed)
    report = store.check(remove_leftovers=True)
    assert report.problems == ()
    assert report.sound == 60
    for spec in specs:
        ours, theirs = store.predictions(spec.key), undisturbed.predictions(spec.key)
        assert {name: a.tobytes() for name, a in ours.items()} == {name: a.tobytes() for name, a in theirs.items()}
    assert not list((root / "failures").glob("*")), "a kill is not a failure of the run"


def test_two_drivers_at_once_do_not_repeat_each_others_runs(tmp_path, environment):
    root = tmp_path / "shared"
    drivers = [start_driver(root, engine, environment) for engine in ("local", "gpus")]
    assert [driver.wait(timeout=300) for driver in drivers] == [0, 0]
    trained = Path(environment["TRAINED_LOG"]).read_text().split()
    assert sorted(trained) == sorted(spec.key for spec in make_specs(SEEDS))
    assert not list((root / "claims").glob("*.claim"))


def test_sigterm_stops_cleanly_and_the_next_driver_goes_on(tmp_path, environment):
    root = tmp_path / "stopped"
    driver = start_driver(root, "gpus", environment, seeds=8)
    await_work(root, driver, set())
    driver.terminate()
    assert driver.wait(timeout=300) == 3, "3 is the test driver's code for: stopped, some left"
    assert not list((root / "claims").glob("*.claim"))
    store = Store(root)
    assert 0 < len(store.missing(make_specs(8))) <= 16
    assert start_driver(root, "local", environment, seeds=8).wait(timeout=300) == 0
    assert store.missing(make_specs(8)) == []


def test_a_second_ctrl_c_stops_at_once_and_loses_nothing(tmp_path, environment, quiet_console):
    root = tmp_path / "interrupted"
    done = run_grid(make_specs(1), root, device="cpu", trainer=train, console=quiet_console).done
    driver = start_driver(
        root, "gpus", environment, seeds=3, trainer="deaf", start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 120
        while len(workers := workers_of(root)) < 2:
            assert driver.poll() is None
            assert time.monotonic() < deadline, "the two workers did not begin"
            time.sleep(0.01)
        assert all(blocks(pid, signal.SIGINT) for pid in workers), "not even while they import"
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: the workers hear it too
        with pytest.raises(subprocess.TimeoutExpired):
            driver.wait(timeout=1)  # the workers are asked to end, and do not listen
        os.killpg(driver.pid, signal.SIGINT)
        _, said = driver.communicate(timeout=15)  # less than a worker that was asked has to end its epoch
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert driver.returncode == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    store = Store(root)
    assert sorted(store.keys()) == sorted(done)
    assert start_driver(root, "local", environment, seeds=3).wait(timeout=300) == 0
    assert store.missing(make_specs(3)) == []
    assert store.check(remove_leftovers=True).problems == ()
