from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.cli.store import store_at
from gence.lab.store.files import StoreError
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.exhibits.table1 import table1
from gence.paper.records import default_results
from tests.lab.small_disk import run_on_small_disk


def invoke(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(create_app(), ["store", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def filled(path, seeds: range, accuracy: float = 0.5) -> Store:
    store = Store(path)
    predictions = {"predicted": np.zeros(3, dtype=np.uint16)}
    for seed in seeds:
        spec = table1().rows[0].base.replace(seed=seed)
        store.write(spec, RunResult(metrics={"accuracy": accuracy}, predictions=predictions), {})
    return store


def test_a_command_s_store_is_the_paper_s_unless_one_is_named(tmp_path) -> None:
    assert store_at(None).root == default_results()
    assert store_at(tmp_path / "new").root == tmp_path / "new"
    with pytest.raises(StoreError, match="there is no store at"):
        store_at(tmp_path / "new", must_exist=True)


def test_merge_joins_stores(tmp_path) -> None:
    one, two = filled(tmp_path / "one", range(3)), filled(tmp_path / "two", range(2, 5))
    assert "2 records added, 1 already there, 0 differ" in invoke("merge", one.root, two.root)
    assert len(one.keys()) == 5
    other = filled(tmp_path / "other", range(1), accuracy=0.6)
    assert "1 differ" in invoke("merge", one.root, other.root, code=1)


def test_merge_takes_over_what_is_sound(tmp_path) -> None:
    damaged = filled(tmp_path / "damaged", range(3))
    _, path = next(iter(damaged.loose_files()))
    path.write_text(path.read_text()[:100])
    output = invoke("merge", tmp_path / "into", damaged.root, code=1)
    assert "2 records added" in output
    assert f"skipped: {path}" in output.replace("\n", "")
    assert len(Store(tmp_path / "into").keys()) == 2


def test_a_folder_without_records_is_no_sound_store(tmp_path) -> None:
    assert "there are no records in" in invoke("check", tmp_path, code=1)


@pytest.mark.parametrize("command", [["export", "runs.csv"], ["pack"]])
def test_of_a_folder_without_records_nothing_is_made(tmp_path, monkeypatch, command: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="there are no records in empty; check the path"):
        invoke(command[0], "empty", *command[1:])
    filled(tmp_path / "empty" / "store", range(1))
    with pytest.raises(ValueError, match="there are records in empty/store: name that folder"):
        invoke(command[0], "empty", *command[1:])
    assert "there are no records in empty; there are records in empty/store" in invoke("merge", "into", "empty")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["store"]
    assert not (tmp_path / "runs.csv").exists()


def test_check_finds_an_edited_record(tmp_path) -> None:
    store = filled(tmp_path / "store", range(3))
    assert "3 records are sound, 0 problems" in invoke("check", store.root)
    _, path = next(iter(store.loose_files()))
    path.write_text(path.read_text().replace('"accuracy":0.5', '"accuracy":0.9'))
    output = invoke("check", store.root, code=1)
    assert "2 records are sound, 1 problems" in output
    assert "was changed after it was written" in output


def test_check_names_a_run_that_is_recorded_twice(tmp_path) -> None:
    store, other = filled(tmp_path / "store", range(3)), filled(tmp_path / "other", range(1), accuracy=0.6)
    store.pack()
    lines = store.pack_path.read_bytes()
    key = min(other.keys())
    store.pack_path.write_bytes(lines + store.line(key) + b"\n")
    output = invoke("check", store.root)
    assert f"the same record of the run {key}; harmless" in output
    assert "3 records are sound, 0 problems" in output
    store.pack_path.write_bytes(lines + other.line(key) + b"\n")
    output = invoke("check", store.root, code=1)
    assert f"different records of the run {key}, of which the last is read; remove all but one" in output
    assert "1 problems" in output


def test_pack_leaves_one_file_for_a_repository(tmp_path) -> None:
    store = filled(tmp_path / "store", range(3))
    assert "holds 3 records" in invoke("pack", store.root, "--drop-predictions")
    assert not (store.root / "predictions").exists()
    assert list(store.loose_files()) == []
    assert "3 records are sound" in invoke("check", store.root)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_export_writes_a_row_a_record(tmp_path, ending: str) -> None:
    store = filled(tmp_path / "store", range(3))
    target = tmp_path / f"runs.{ending}"
    assert "wrote 3 rows" in invoke("export", store.root, target)
    frame = pd.read_csv(target) if ending == "csv" else pd.read_parquet(target)
    assert frame["accuracy"].tolist() == [0.5] * 3
    assert sorted(frame["seed"]) == [0, 1, 2]


def test_export_makes_the_folder_and_replaces_the_file(tmp_path) -> None:
    store, target = filled(tmp_path / "store", range(3)), tmp_path / "new" / "runs.csv"
    for _ in range(2):
        invoke("export", store.root, target)
    assert [path.name for path in target.parent.iterdir()] == ["runs.csv"]
    with pytest.raises(ValueError, match=r"runs\.csv is a file, not a folder"):
        invoke("export", store.root, target / "again.csv")
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        invoke("export", store.root, folder)


FULL_AND_READ_ONLY = """
import os, shutil, sys
from pathlib import Path
import torch
from PIL import Image
from gence.cli import main

disk = Path(disk)
folder = disk.parent

def gence(*arguments):
    sys.argv = ["gence", *map(str, arguments)]
    sys.stderr = sys.stdout
    try:
        main()
    except SystemExit as ended:
        print("ENDED", ended.code)

def train(*arguments):
    gence("train", "--n", "40", "--set", "recipe.epochs=1", "--device", "cpu", *arguments)

train("--store", disk / "store", "--save", folder / "model.safetensors")
(folder / "images").mkdir()
for i in range(200):
    Image.new("L", (8, 8)).save(folder / "images" / f"{i}.png")
shutil.copytree(disk / "store", folder / "store")
try:
    with (disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 512):
            pass
except OSError:
    pass
print("BEGIN")
gence("store", "export", folder / "store", disk / "runs.csv")
gence("store", "export", folder / "store", disk / "runs.parquet")
gence("predict", folder / "model.safetensors", folder / "images", "--out", disk / "p.csv", "--device", "cpu")
train("--save", disk / "model.safetensors")
print("LEFT", sorted(path.name for path in disk.iterdir()))
assert os.system(f"mount -o remount,ro {disk}") == 0
gence("store", "pack", disk / "store")
gence("store", "export", folder / "store", disk / "runs.csv")
print("READ")
gence("store", "check", disk / "store")
"""


def test_a_full_and_a_read_only_disk_are_one_line_and_leave_no_part_of_a_file(tmp_path) -> None:
    output = run_on_small_disk(tmp_path, FULL_AND_READ_ONLY, "1m").partition("BEGIN\n")[2]
    assert "Traceback" not in output
    lines = [line for line in output.splitlines() if line.startswith(("gence: ", "ENDED", "LEFT"))]
    full = [f"gence: no space left to write {tmp_path}/disk", "ENDED 2"]
    expected = [*full * 4, "LEFT ['filler', 'store']",
                f"gence: {tmp_path}/disk/store/records.jsonl cannot be written: Read-only file system", "ENDED 2",
                f"gence: the target {tmp_path}/disk/runs.csv cannot be written", "ENDED 2"]  # fmt: skip
    assert [line[: len(part)] for line, part in zip(lines, expected, strict=False)] == expected
    assert "1 records are sound, 0 problems" in output.partition("READ\n")[2]


def test_a_wrong_ending_is_an_error(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"expected a file that ends in \.csv or \.parquet"):
        invoke("export", filled(tmp_path / "store", range(1)).root, tmp_path / "runs.xlsx")
