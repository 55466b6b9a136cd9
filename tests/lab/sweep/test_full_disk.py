from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.small_disk import run_on_small_disk

SMALL_DISK = """
import sys; sys.path.insert(0, TESTS); import grid_driver, os
from tiny_trainer import make_specs, train
from gence.lab.store.store import Store, StoreError
from gence.lab.sweep.run import run_grid
import torch
from gence.lab.train.checkpoint import write_tensors
from gence.lab.sweep.claims import Failures

def with_checkpoints(specs, *, workdir, **options):
    write_tensors(workdir / "cohort.safetensors", {"a": torch.zeros(100_000)}, {})

store = Store(disk + "/store")
specs = make_specs(30)
try:
    run_grid(specs, store, device="cpu", trainer=with_checkpoints)
    print("NO ERROR")
except StoreError as error:
    print("CHECKPOINT:", error)
print("FAILURES", Failures(store.root).counts(), [path.name for path in (store.root / "work").iterdir()])
try:
    run_grid(specs, store, device="cpu", trainer=train)
    print("NO ERROR")
except StoreError as error:
    print("FULL:", error)
print("SOUND", store.check().ok, 0 < len(store.keys()) < 60, len(list(store.root.rglob(".writing-*"))))
before = {key: store.line(key) for key in store.keys()}
assert os.system("mount -o remount,ro " + disk) == 0
try:
    run_grid(specs, Store(disk + "/store"), device="cpu", trainer=train)
    print("NO ERROR")
except StoreError as error:
    print("READ-ONLY:", error)
print("SAME", before == {key: store.line(key) for key in store.keys()}, store.check().ok)
"""


def test_a_full_and_a_read_only_disk_give_clear_errors_and_lose_nothing(tmp_path):
    code = f"TESTS = {str(Path(__file__).parents[1])!r}\n{SMALL_DISK}"
    output = run_on_small_disk(tmp_path, code, "192k")
    checkpoint, failures, full, sound, read_only, same = output.splitlines()
    assert checkpoint.startswith("CHECKPOINT: no space left to write")
    assert failures == "FAILURES {} []", "a full disk is not the run's fault"
    assert full.startswith("FULL: no space left to write")
    assert sound == "SOUND True True 0"
    assert read_only.startswith("READ-ONLY:")
    assert "cannot be written: Read-only file system" in read_only
    assert same == "SAME True True"


TUNED_ON_A_SMALL_DISK = """
import sys; sys.path.insert(0, TESTS); import os
from tiny_trainer import make_specs, train
from gence.lab.sweep.tuning import tune
from gence.lab.sweep.trials import TuneSettings

def tuned(place):
    return tune(make_specs(1)[0], ["ce"], place, settings=TuneSettings(trials=10), device="cpu", trainer=train)

try:
    print("NO ERROR", tuned(disk + "/store"))
except Exception as error:
    print("FULL:", error)
assert os.system("mount -o remount,size=10m " + disk) == 0
print("SAME", tuned(disk + "/store") == tuned(elsewhere))
"""


@pytest.mark.parametrize("size", ["8k", "16k", "24k"])
def test_tuning_goes_on_after_a_full_disk(tmp_path, size):
    tests, elsewhere = str(Path(__file__).parents[1]), str(tmp_path / "elsewhere")
    output = run_on_small_disk(tmp_path, f"TESTS, elsewhere = {tests!r}, {elsewhere!r}\n{TUNED_ON_A_SMALL_DISK}", size)
    full, same = output.splitlines()
    assert full.startswith("FULL: ")
    assert "No space left on device" in full or "no space left" in full
    assert same == "SAME True"
