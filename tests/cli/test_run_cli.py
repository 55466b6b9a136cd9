"""gence run and gence tune on real, tiny runs: digits, a small network, a few epochs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.spec.grid import read_grid
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store

GRID = """
[recipes.short]
base = "tiny"
epochs = {epochs}

[base]
data = "digits"
model = "small_cnn"
recipe = "short"
subset = 100

[product]
loss = ["ce", "gence", "gence(anchor=0.1)"]
seed = [0, 1]
"""


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(epochs=3))
    return path


def invoke(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(create_app(), [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def outcomes(store: Store) -> dict[str, tuple]:
    return {record.key: (record.result.metrics, record.result.curves) for record in store.records()}


def test_a_stopped_run_goes_on_to_the_same_store(tmp_path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(epochs=12))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    invoke("run", path, "--store", whole, "--device", "cpu")
    output = invoke("run", path, "--store", parts, "--device", "cpu", "--time-limit", "0.3")
    assert "stopped by time limit" in output
    assert 0 <= len(Store(parts).keys()) < 6
    for _ in range(2):
        output = invoke("run", path, "--store", parts, "--device", "cpu")
    assert "6 already there, none left" in output
    assert outcomes(Store(parts)) == outcomes(Store(whole))
    merged = invoke("store", "merge", parts, whole)
    assert "0 records added, 6 already there, 0 differ" in merged


@contextlib.contextmanager
def signalled(number: signal.Signals, store):
    """Send this process a signal as soon as a run of the store is at work."""

    def send() -> None:
        for _ in range(3000):
            if list((store / "claims").glob("*.claim")):
                os.kill(os.getpid(), number)
                return
            time.sleep(0.01)

    sender = threading.Thread(target=send)
    sender.start()
    yield
    sender.join()


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
@pytest.mark.parametrize("command", [["run"], ["tune", "--trials", "1", "--losses", "ce"]])
def test_a_signal_ends_it_with_its_code(tmp_path, command, number, code, name) -> None:
    path, store = tmp_path / "grid.toml", tmp_path / "store"
    path.write_text(GRID.format(epochs=5000))
    with signalled(number, store):
        output = invoke(*command, path, "--store", store, "--device", "cpu", code=code)
    assert f"stopped by {name}; run it again to resume" in " ".join(output.split())
    assert not list((store / "claims").glob("*.claim"))


def test_dry_run_lists_and_does_nothing(tmp_path, grid) -> None:
    output = invoke("run", grid, "--store", tmp_path / "store", "--dry-run")
    assert "digits-100-small_cnn" in output
    assert "6 of 6 runs are missing" in output
    assert not (tmp_path / "store").exists()
    output = invoke("run", "table1", "smoothing", "--rows", "cifar100-2000-*", "--seeds", "2", "--store", tmp_path,
                    "--dry-run")  # fmt: skip
    assert "36 of 36 runs are missing" in output


def test_a_record_that_cannot_be_read_ends_with_an_error_after_the_other_runs(tmp_path, grid) -> None:
    arguments = ["run", grid, "--store", tmp_path / "store", "--device", "cpu"]
    specs, store = read_grid(grid), Store(tmp_path / "store")
    for spec in specs[:4]:
        store.write(spec, RunResult(metrics={"accuracy": 0.5}), {})
    damaged = dict(store.loose_files())[specs[1].key]
    damaged.write_text("")
    for output in (invoke(*arguments, "--dry-run"), invoke(*arguments, code=1)):
        assert f"Warning: {damaged} is not a record: it was cut short" in output.replace("\n", "")
    assert "2 done" in output
    assert f"gence store check {store.root}" in output.replace("\n", "")
    assert damaged.read_text() == ""
    damaged.unlink()
    assert "1 done" in invoke(*arguments)


def test_runs_without_predictions_and_side_by_side(tmp_path, grid) -> None:
    invoke("run", grid, "--store", tmp_path / "store", "--device", "cpu", "--no-predictions", "--cohort-size", "3")
    store = Store(tmp_path / "store")
    assert len(store.keys()) == 6
    assert not (store.root / "predictions").exists()


def test_failed_runs_end_with_an_error(tmp_path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(epochs=1).replace("subset = 100", "subset = 101").replace("[0, 1]", "[0]"))
    output = invoke("run", path, "--store", tmp_path / "store", "--device", "cpu", code=1)
    assert "n = 101 cannot be split evenly over 10 classes" in output


@pytest.mark.parametrize("command", [["run"], ["tune", "--trials", "1", "--losses", "ce"]])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"small_cnn"', '"smal_cnn"', "unknown model 'smal_cnn'; the nearest is 'small_cnn'"),
        ('data = "digits"', 'data = "nowhere/photos"', "unknown data set nowhere/photos"),
        ("subset = 100", 'ood = ["nowhere/else"]', "unknown data set nowhere/else"),
    ],
)
def test_what_no_run_could_do_is_one_error(tmp_path, command, old, new, message) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID.format(epochs=1).replace(old, new))
    with pytest.raises(ValueError, match=message):
        invoke(*command, path, "--store", tmp_path / "store", "--device", "cpu")
    assert not (tmp_path / "store").exists()


def test_a_trial_that_fails_ends_tuning_with_an_error_and_waits(tmp_path) -> None:
    path, arguments = tmp_path / "grid.toml", ["--store", tmp_path / "store", "--device", "cpu", "--trials", "1"]
    path.write_text(GRID.format(epochs=1).replace("small_cnn", "vgg19"))  # too deep for 8 x 8 pixels
    for _ in range(2):
        output = invoke("tune", path, "--losses", "ce", *arguments, code=1)
        assert "not complete (failed trials)" in output
        assert "vgg19 halves the image five times" in output
        assert "Fix the cause and rerun" in output


@pytest.mark.parametrize(
    ("subset", "message"),
    [
        (
            "10",
            r"tuning on digits holds out .* with n = 10, 10 of 10 classes have fewer: 0 \(1\), .* subset = 20 or more",
        ),
        (
            "{rho = 80, n = 50}",
            r"with rho = 80, 3 of 10 classes have fewer: 7 \(1\), 8 \(1\), 9 \(1\); use a smaller rho",
        ),
        ("101", "n = 101 cannot be split evenly over 10 classes"),
    ],
)
def test_classes_that_cannot_be_divided_are_named_before_any_trial_of_any_cell(tmp_path, subset, message) -> None:
    path = tmp_path / "grid.toml"
    product = (
        GRID.format(epochs=1)
        .replace("subset = 100", "")
        .replace("seed = [0, 1]", f"seed = [0]\nsubset = [100, {subset}]")
    )
    path.write_text(product)
    with pytest.raises(ValueError, match=message):
        invoke("tune", path, "--store", tmp_path / "store", "--device", "cpu", "--trials", "1")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "tabel1", "--dry-run"], "did you mean 'table1'"),
        (["run", "table1", "--rows", "mnist-*", "--dry-run"], "matches no row of table1"),
        (["run", "table1", "--cohort-size", "many"], "expected auto or a whole number"),
        (["run", "table1", "--engine", "slurm"], "engine is 'slurm'"),
        (["run", "table1", "--engine", "gpus", "--workers", "-1"], "workers is -1; expected at least 1"),
        (["tune", "table1", "--engine", "gpus", "--workers", "0"], "workers is 0; expected at least 1"),
        (["run", "epoch_time", "table1"], "run it alone"),
        (["run", "missing.toml"], "there is no grid file"),
    ],
)
def test_wrong_input_says_what_to_do(arguments: list[str], message: str, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        invoke(*arguments, "--store", tmp_path / "store")


def test_losses_are_tuned_alike(tmp_path, grid) -> None:
    store = tmp_path / "store"
    arguments = [
        "tune",
        grid,
        "--store",
        store,
        "--device",
        "cpu",
        "--trials",
        "2",
        "--losses",
        "ce; gence(anchor=tune)",
    ]
    output = invoke(*arguments)
    assert "digits-100-small_cnn-b50: complete" in output
    assert output.count("after 2 of 2 trials") == 2
    assert len(list((store / "tuned").glob("*.json"))) == 1
    trained = len(Store(store).keys())
    found = output[output.index("digits-100") :]
    assert invoke(*arguments).endswith(found)  # nothing is left to do, and the answer is the same
    assert len(Store(store).keys()) == trained
    final = invoke("run", "tuned", "--store", store, "--device", "cpu", "--seeds", "2", "--losses", "ce")
    assert "2 done" in final
    assert {spec.evaluate_on for spec in read_grid(grid)} == {"test"}
    judged = [record.spec.evaluate_on for record in Store(store).records()]
    assert (judged.count("val"), judged.count("test")) == (trained, 2)


def test_files_and_exhibits_are_joined_and_a_file_alone_needs_nothing_of_the_paper(tmp_path, grid) -> None:
    place = ("--store", tmp_path / "store", "--dry-run")
    assert "426 of 426 runs are missing" in invoke("run", grid, "table1", *place)
    assert "12 of 12 runs are missing" in invoke("run", grid, _longer(grid), *place)
    with pytest.raises(ValueError, match=r"grid\.toml is a grid file, which defines its own runs; remove seeds, or"):
        invoke("run", grid, "--seeds", 2, *place)
    program = "import sys; from gence.cli import main; sys.argv = ['gence', *sys.argv[1:]]\ntry:\n    main()\n"
    program += "except SystemExit as ended:\n    assert not ended.code\n"
    program += "assert not [name for name in sys.modules if name.startswith('gence.paper.')]"
    subprocess.run([sys.executable, "-c", program, "run", grid, *map(str, place)], check=True)


def _longer(grid: Path) -> Path:
    path = grid.with_name("longer.toml")
    path.write_text(GRID.format(epochs=4))
    return path
