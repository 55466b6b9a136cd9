"""``gence compare`` as a person runs it: a process of its own, killed and run again."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gence.cli import main
from gence.cli.app import create_app
from gence.cli.compare import _print_losses
from gence.cli.terminal import failure_lines
from gence.lab.report.frame import load_rows, settings
from gence.lab.spec import LOSS_GROUPS, split_losses
from gence.lab.spec.run import RunSpec
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store

BASE = {"data": "digits", "model": "small_cnn", "recipe": "tiny"}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def command(*arguments):
    return [sys.executable, "-m", "gence", *map(str, arguments)]


def test_a_killed_comparison_goes_on_and_then_shows_and_reports(tmp_path):
    arguments = [
        "compare", "--losses", "ce,gence(anchor=0.1, prior=train)", "--seeds", "2", "--epochs", "20", "--workers", "1",
        "--out", str(tmp_path / "o"),
    ]  # fmt: skip
    records = tmp_path / "o" / "store" / "records"
    process = subprocess.Popen(
        command(*arguments), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    while not list(records.rglob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.read_bytes() for path in records.rglob("*.json")}
    assert 1 <= len(kept) < 4
    runner = CliRunner()
    done = runner.invoke(create_app(), arguments, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert f"{4 - len(kept)} done" in done.stdout
    assert f"{len(kept)} already there, none left" in done.stdout
    assert {path: path.read_bytes() for path in kept} == kept
    assert "GenCE (anchor 0.1, prior train) against CE:" in done.stdout
    assert (tmp_path / "o" / "report.html").exists()

    shown = runner.invoke(create_app(), ["show", str(tmp_path / "o" / "store")], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "2 seeds" in shown.output
    written = runner.invoke(create_app(), ["report", str(tmp_path / "o" / "store"), "--out", str(tmp_path / "again")])
    assert written.exit_code == 0, written.output
    assert (tmp_path / "again" / "report.html").exists()
    assert (tmp_path / "again" / "figures" / "accuracy.svg").exists()


def test_a_comparison_that_is_asked_to_end_says_so_by_its_code(tmp_path):
    arguments = command("compare", "--losses", "ce,gence", "--epochs", 500, "--workers", 1, "--out", tmp_path / "o")
    process = subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not list((tmp_path / "o").rglob("*.claim")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 143


def test_a_wrong_argument_is_one_line(tmp_path):
    done = subprocess.run(
        command("compare", "--losses", "gense", "--out", tmp_path / "o"),
        env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [line for line in done.stderr.splitlines() if line.startswith("gence: ")]
    assert "did you mean 'gence'" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("text", "losses"),
    [("ce", ["ce"]), ("gence(anchor=0.1,prior=train), ce,", ["gence(anchor=0.1,prior=train)", "ce"]), ("", [])],
)
def test_split_losses(text, losses):
    assert split_losses(text) == losses


def test_groups_of_losses():
    from gence.lab.compare import CompareOptions
    from gence.lab.spec import check_losses
    from gence.lab.spec.grid import parse_grid
    from gence.losses import LOSSES

    every = split_losses("all")
    assert {loss.partition("(")[0] for loss in every} == {n for n, info in LOSSES.items() if info.takes == "logits"}
    for group in (*LOSS_GROUPS, "all"):
        losses = CompareOptions(losses=group).specs()
        assert [str(loss) for loss in losses] == split_losses(group)
        assert len(set(losses)) == len(losses)
        runs = parse_grid({"base": BASE, "product": {"loss": [group], "seed": [0]}})
        assert [run.loss for run in runs] == list(losses)
        check_losses(runs)
    assert split_losses("ce,paper,ce") == ["ce", *(name for name in LOSS_GROUPS["paper"] if name != "ce")]
    assert split_losses("gence(anchor=0.1, prior=uniform)") == ["gence(anchor=0.1, prior=uniform)"]
    mine = {"base": BASE, "product": {"loss": ["paper"], "seed": [0]}, "losses": {"paper": {"name": "ce"}}}
    assert [str(run.loss) for run in parse_grid(mine)] == ["ce"]


def test_the_groups_are_in_the_help():
    from gence.lab.spec import GROUPS_HELP

    for command in ("compare", "tune"):
        done = subprocess.run(
            [sys.executable, "-m", "gence", command, "--help"], capture_output=True, text=True, check=True,
            env={**os.environ, "COLUMNS": "300"},
        )  # fmt: skip
        assert GROUPS_HELP.partition(" and all")[0] in " ".join(done.stdout.split())


def test_an_error_of_many_runs_is_printed_once():
    lines = failure_lines({f"{i:016x}": "no space left" for i in range(35)} | {"f" * 16: "killed"})
    assert lines == ["35 runs failed (0000000000000000 and others): no space left", f"Run {'f' * 16} failed: killed"]


@pytest.fixture
def wide(tmp_path) -> Store:
    """Three losses with two seeds and two out-of-distribution sets, without training."""
    store = Store(tmp_path / "store")
    base = {"data": "digits", "model": "small_cnn", "recipe": "tiny", "subset": 50, "ood": ["ood", "split"]}
    for loss in ("ce", "gence", "gence(anchor=0.1)"):
        for seed, share in enumerate((0.5, 0.53)):
            metrics = {"accuracy": share, "nll": 2 * share, "ece": share / 5}
            metrics |= {"ood/ood/auroc_entropy": share, "ood/split/auroc_entropy": share / 2}
            store.write(RunSpec.from_dict({**base, "loss": loss, "seed": seed}), RunResult(metrics=metrics))
    return store


@pytest.mark.parametrize("width", [40, 80, 84, 88, 92, 96, 100, 120])
def test_no_number_is_cut_in_a_narrow_terminal(wide, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    (setting,) = settings(load_rows(wide))
    _print_losses(console, setting)
    lines = console.file.getvalue().splitlines()
    # Accuracy and the first AUROC have the same numbers, so theirs stand twice for each of three losses.
    times = {"51.5 ± 2.1": 6, "1.030 ± 0.042": 3, "10.3 ± 0.4": 3, "25.8 ± 1.1": 3}
    assert {number: sum(line.count(number) for line in lines) for number in times} == times
    parts = re.findall(r"┏[^└]*└.*", "\n".join(lines))  # a table without room comes in parts, each as wide as it needs
    assert parts
    for part in parts:
        (size,) = {len(line) for line in part.splitlines()}  # no border is cut
        assert size <= width
    assert "it says how many do." in " ".join(" ".join(lines).split())


def test_a_store_is_shown_whole_in_a_file(wide):
    shown = CliRunner().invoke(create_app(), ["show", str(wide.root)], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("25.8 ± 1.1") == 3


@pytest.mark.parametrize(
    ("command", "called", "how"),
    [
        (["compare"], "gence.lab.compare.compare", "without a report"),
        (["run", "table1"], "gence.lab.sweep.run_grid", "at once"),
        (["tune", "table1"], "gence.lab.sweep.tune", "at once"),
    ],
)
def test_ctrl_c_that_ends_it_at_once_says_what_is_kept(monkeypatch, capsys, tmp_path, command, called, how):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(called, interrupted)
    monkeypatch.setattr(sys, "argv", ["gence", *command, "--store", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    assert line == f"Stopped by Ctrl-C, {how}: finished runs are kept; rerun the same command to resume."
