from __future__ import annotations

import json

from typer.testing import CliRunner

from gence.cli.app import create_app

TINY = ["--models", "mlp", "--data", "digits", "--n", "40", "--recipe", "tiny", "--set", "batch_size=20",
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
