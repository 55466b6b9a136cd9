"""Terminals that cannot show every character print something like it, and no command fails over them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
