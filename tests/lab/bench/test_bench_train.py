from __future__ import annotations

import json

import pytest

from gence.lab.bench.train import bench_train, write_record
from tests.lab.small_runs import small_recipe

MIXED = {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "mix_probability": 1.0, "randaugment_ops": 1, "flip": True}


def test_cohorts_and_the_usual_way_are_timed(tmp_path):
    record = bench_train(
        ["mlp"], data="digits", n=40, cohort_sizes=(1, 3), epochs=3, recipe=small_recipe(**MIXED), device="cpu"
    )
    assert [(row["way"].split()[0], row["runs"]) for row in record["rows"]] == [
        ("cohort", 1),
        ("cohort", 3),
        ("usual", 1),
    ]
    for row in record["rows"]:
        assert 0 < row["fastest"] <= row["ms_per_step_and_run"] <= row["slowest"]
    best = min(row["ms_per_step_and_run"] for row in record["rows"][:2])
    assert record["rows"][2]["runs_per_hour_ratio"] == pytest.approx(record["rows"][2]["ms_per_step_and_run"] / best)
    write_record(record, tmp_path / "new" / "r.json")
    assert json.loads((tmp_path / "new" / "r.json").read_text()) == record


def test_one_epoch_is_not_enough():
    with pytest.raises(ValueError, match="epochs is 1; expected at least 2"):
        bench_train(["mlp"], epochs=1)
