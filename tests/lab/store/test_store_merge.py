from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest

from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from tests.lab.store_records import ENVIRONMENT, SPECS, a_day_later, filled, record_file
from tests.lab.tiny_trainer import train


def test_merge_adds_agrees_and_keeps_the_older_either_way(tmp_path, monkeypatch):
    left = filled(tmp_path / "left", SPECS[:3])
    right = filled(tmp_path / "right", [SPECS[0], SPECS[3]])
    later = RunResult(metrics={"accuracy": 0.99})
    old_line = left.line(SPECS[1].key)
    right.write(SPECS[1], later, ENVIRONMENT)
    path = record_file(right, SPECS[1])
    path.unlink()
    with a_day_later(monkeypatch):
        right.write(SPECS[1], later, ENVIRONMENT)
    shutil.copytree(tmp_path / "left", tmp_path / "left2")
    one = left.merge(right)
    assert (len(one.added), one.same, one.conflicts) == (1, (SPECS[0].key,), (SPECS[1].key,))
    assert left.line(SPECS[1].key) == old_line
    right.pack()
    other = right.merge(Store(tmp_path / "left2"))
    assert other.conflicts == (SPECS[1].key,)
    assert right.line(SPECS[1].key) == old_line
    assert right.keys() == left.keys() == {spec.key for spec in SPECS[:4]}
    assert left.check().ok
    assert right.check().ok


def test_merge_brings_the_predictions(tmp_path):
    other = Store(tmp_path / "other")
    other.write(SPECS[0], train(SPECS[:1])[0], ENVIRONMENT)
    store = Store(tmp_path / "store")
    store.merge(other)
    assert store.predictions(SPECS[0].key).keys() == {"predicted", "confidence"}
    assert store.check() == other.check()


@pytest.mark.parametrize("packed", [False, True])
def test_merge_brings_predictions_of_runs_that_are_there(tmp_path, packed):
    key, (trained,) = SPECS[0].key, train(SPECS[:1])
    without, dropped, other = (Store(tmp_path / name) for name in ("without", "dropped", "other"))
    without.write(SPECS[0], dataclasses.replace(trained, predictions=None), ENVIRONMENT)
    dropped.write(SPECS[0], trained, {**ENVIRONMENT, "commit": "def"})
    shutil.rmtree(dropped.root / "predictions")
    own_line = dropped.line(key)
    other.write(SPECS[0], trained, ENVIRONMENT)
    for store in (without, dropped):
        if packed:
            store.pack()
        report = store.merge(other)
        assert (report.added, report.same, report.conflicts) == ((), (key,), ())
        np.testing.assert_equal(store.predictions(key), other.predictions(key))
        assert store.check().ok
        assert other.merge(store).same == (key,)
    assert dropped.line(key) == own_line, "the record had the checksum already"


def test_merge_names_a_line_that_is_no_record(tmp_path):
    other = filled(tmp_path / "other")
    other.pack()
    lines = other.pack_path.read_bytes().splitlines(keepends=True)
    other.pack_path.write_bytes(b"".join([b"garbage {{{\n", *lines[1:]]))
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    report = store.merge(other)
    assert len(report.added) == len(lines) - 1
    (damaged,) = report.damaged
    assert damaged == f"{other.pack_path}:1 is not a record: it was cut short or reformatted"


@pytest.mark.parametrize("there", [False, True])
def test_merge_leaves_damaged_predictions_where_they_are(tmp_path, there):
    key, (trained,) = SPECS[0].key, train(SPECS[:1])
    other, store = Store(tmp_path / "other"), Store(tmp_path / "store")
    other.write(SPECS[0], trained, ENVIRONMENT)
    (damaged,) = (other.root / "predictions").rglob("*.npz")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    if there:
        store.write(SPECS[0], dataclasses.replace(trained, predictions=None), ENVIRONMENT)
    report = store.merge(other)
    assert (report.added, report.same) == (((), (key,)) if there else ((key,), ()))
    assert report.damaged == (f"{damaged} is not what was recorded with the run; remove it or restore it",)
    assert store.predictions(key) is None
    assert store.check().ok
    assert not other.check().ok
