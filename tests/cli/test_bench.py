from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gence.cli.app import create_app

TINY = ["--models", "mlp", "--data", "digits", "--n", "40", "--recipe", "tiny", "--set", "recipe.batch_size=20",
        "--epochs", "2", "--device", "cpu", "--no-usual"]  # fmt: skip


def test_train_prints_a_table_and_writes_the_record(tmp_path):
    out = tmp_path / "r.json"
    arguments = ["bench", "train", *TINY, "--sizes", "1,2", "--out", str(out)]
    result = CliRunner().invoke(create_app(), arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "mlp" in result.stdout
    assert "best for mlp:" in result.stdout
    record = json.loads(out.read_text())
    assert [row["runs"] for row in record["rows"]] == [1, 2]
    assert record["environment"]["device"]


def test_sizes_must_be_whole_numbers():
    result = CliRunner().invoke(create_app(), ["bench", "train", *TINY, "--sizes", "1,x"])
    assert isinstance(result.exception, ValueError)
    assert "--sizes is '1,x'" in str(result.exception)
    result = CliRunner().invoke(create_app(), ["bench", "train", "--models", ""])
    assert "--models is ''; expected at least one" in str(result.exception)


def test_loss_is_timed_for_the_shapes_asked_for(tmp_path):
    out = tmp_path / "new" / "l.json"
    arguments = [
        "bench",
        "loss",
        "--shapes",
        "8x3,16x4",
        "--quick",
        "--no-compile",
        "--device",
        "cpu",
        "--repeats",
        "3",
    ]
    result = CliRunner().invoke(create_app(), [*arguments, "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "16 x 4 float32" in result.stdout
    rows = json.loads(out.read_text())["rows"]
    assert {(row["n"], row["K"]) for row in rows} == {(8, 3), (16, 4)}
    assert {row["provider"] for row in rows} >= {"cross_entropy", "GenCE"}
    assert all(len(row["ratios"]) == 3 and sorted(row["ratios"])[1] == row["ratio"] for row in rows)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--shapes", "8by3"], "--shapes has '8by3'; expected ROWSxCLASSES"),
    (["--shapes", ","], "--shapes is ','; expected at least one"),
    (["--shapes", "8x3", "--dtype", "int8"], "--dtype is 'int8'"),
])  # fmt: skip
def test_shapes_and_dtypes_that_mean_nothing(arguments, message):
    result = CliRunner().invoke(create_app(), ["bench", "loss", *arguments])
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
