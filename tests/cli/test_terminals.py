"""Terminals that cannot show every character print something like it, and no command fails over them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gence._version import __version__
from gence.cli import main
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from tests.lab.small_runs import small_spec


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two losses over three seeds, one of them worse, on data whose name is not ASCII."""
    store = Store(tmp_path_factory.mktemp("terminal") / "store")
    for loss, accuracy in (("ce", 0.5), ("gence", 0.4)):
        for seed in range(3):
            spec = small_spec(loss, seed=seed, data="café 漢", model="mlp")
            store.write(spec, RunResult(metrics={"accuracy": accuracy + seed / 100, "nll": 1.0, "ece": 0.1}))
    return store.root


def gence(*arguments: object, encoding: str, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONIOENCODING": f"{encoding}:strict", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "gence", *map(str, arguments)], capture_output=True, env=environment, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout.decode(encoding, errors="replace")  # click writes UTF-8 where it is told ASCII


@pytest.mark.parametrize(
    ("encoding", "name", "heading"),
    [
        ("ascii", "caf? ?", "Accuracy, % ^"),
        ("latin-1", "café ?", "Accuracy, % ^"),
        ("utf-8", "café 漢", "Accuracy, % ↑"),
    ],
)
def test_a_report_is_printed_in_any_encoding(store, tmp_path, encoding, name, heading):
    shown = gence("show", store, encoding=encoding)
    assert name in shown
    assert heading in shown
    gence("report", store, "--out", tmp_path / "out", encoding=encoding)
    gence("--help", encoding=encoding)
    gence("compare", "--help", encoding=encoding)


def test_a_comparison_ends_well_where_an_arrow_cannot_be_encoded(tmp_path):
    gence("compare", "--losses", "ce,gence", "--seeds", 2, "--epochs", 1, "--device", "cpu", "--workers", 1,
          "--out", tmp_path / "out", encoding="latin-1")  # fmt: skip


def test_numbers_keep_their_sign_in_any_encoding():
    row = ["--rows", "cifar10-5000-vgg19"]
    assert " -0.78 (-2.9 SE) " in gence("show", "table1", *row, encoding="latin-1")
    shown = gence("show", "table1", *row, encoding="ascii")
    assert " -0.78 (-2.9 SE) " in shown
    assert " 82.76 +- 0.55 " in shown
    gence("show", "table1", "--format", "markdown", encoding="ascii")


def started(code: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False, timeout=300, **options
    )


VERSION = "import sys; sys.argv = ['gence', 'version']; from gence.cli import main; main()"


def test_output_that_cannot_be_written_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = started(VERSION, stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("gence: No space left on device")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error():
    ours, theirs = os.pipe()
    os.close(ours)
    done = started(VERSION, stdout=theirs)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_where_python_ignores_exceptions_is_not_lost(name, code):
    done = started(
        f"""
import os, signal, sys, time
from gence.cli.terminal import ended_by_signals, shown_plainly

class Slow:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        for _ in range(1000):
            pass

with shown_plainly(), ended_by_signals():
    slow = Slow()
    del slow
    print("goes on", flush=True)
    time.sleep(60)
""",
        stdout=subprocess.PIPE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "goes on\n", "")
    assert signal.Signals[name] + 128 == code


ENDS = "import sys; sys.argv = ['gence', 'version']; import atexit, os, signal; "
ENDS += "atexit.register(os.kill, os.getpid(), signal.SIGINT); "
INSTALLED = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]["gence"]


@pytest.mark.parametrize(
    "entry",
    [
        "from {} import {} as run; run()".format(*INSTALLED.split(":")),
        "import runpy; runpy.run_module('gence', run_name='__main__')",
    ],
    ids=["installed", "module"],
)
def test_a_ctrl_c_while_python_ends_is_no_traceback(entry):
    done = started(ENDS + entry, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{__version__}\n")


def test_called_as_a_function_it_leaves_ctrl_c_as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gence", "version"])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(SystemExit):
        main()
    assert signal.getsignal(signal.SIGINT) == before != signal.SIG_IGN
