"""Small studies: what a script measured is kept whole, and the documentation's table is made from it."""

from __future__ import annotations

import json

import pytest

from gence.paper.blocks import study_record, study_table, write_study


def test_a_written_study_becomes_a_table(tmp_path) -> None:
    found = {("a", "CE"): [0.5, 0.7], ("a", "GenCE"): [0.25], ("b", "CE"): [1.0, 1.0]}
    write_study(tmp_path / "new" / "study.json", "`script.py`", found, rows_are="data")
    record = json.loads((tmp_path / "new" / "study.json").read_text())
    assert {"commit", "device", "versions"} <= record["environment"].keys()
    assert [row["accuracies"] for row in record["rows"]] == list(found.values())
    lines = study_table(record).splitlines()
    assert lines[0] == "| data | CE | GenCE |"
    assert lines[2:4] == ["| a | 60.0 ± 14.1 | 25.0 |", "| b | 100.0 ± 0.0 | – |"]
    assert "over 1 to 2 seeds; `script.py`, on " in lines[-1]


def test_a_study_without_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one seed in every cell of s"):
        study_record("s", {("a", "CE"): []}, rows_are="data")
    with pytest.raises(ValueError, match="at least one seed"):
        study_record("s", {}, rows_are="data")
