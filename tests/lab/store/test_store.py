from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gence.lab.store import files as atomic
from gence.lab.store.check import leftovers
from gence.lab.store.environment import environment_record
from gence.lab.store.files import StoreError, frame_as_csv
from gence.lab.store.pack import Pack
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.train.checkpoint import CohortCheckpoint
from tests.lab.store_records import ENVIRONMENT, SPECS, a_day_later, filled, record_file, result
from tests.lab.tiny_trainer import make_specs, train


def test_what_is_written_is_read_back(tmp_path):
    store = Store(tmp_path / "store")
    (trained,) = train(SPECS[:1])
    assert store.write(SPECS[0], trained)
    record = store.read(SPECS[0].key)
    assert record.spec == SPECS[0]
    assert record.result.metrics == trained.metrics
    assert record.result.curves == trained.curves
    assert record.result.tables == {"marginal": trained.tables["marginal"].tolist()}
    assert record.environment == environment_record()
    assert set(record.environment["versions"]) >= {"python", "gence", "torch", "numpy"}
    predictions = store.predictions(SPECS[0].key)
    for name, array in trained.predictions.items():
        np.testing.assert_array_equal(predictions[name], array, strict=True)
    assert store.predictions(SPECS[1].key) is None


def test_numbers_json_does_not_have_come_back(tmp_path):
    store = Store(tmp_path)
    odd = [math.inf, -math.inf, np.float32(0.5), np.int64(3)]
    store.write(SPECS[0], result(math.nan, status="diverged", curves={"loss": odd}, tables={"t": {"x": [math.nan]}}))
    back = store.read(SPECS[0].key).result
    assert math.isnan(back.metrics["accuracy"])
    assert back.curves["loss"] == [math.inf, -math.inf, 0.5, 3]
    assert math.isnan(back.tables["t"]["x"][0])
    assert back.status == "diverged"
    assert math.isnan(store.frame()["accuracy"][0])
    assert "NaN" not in json.dumps(json.loads(record_file(store).read_text())["run"]["spec"])


def test_a_record_is_never_overwritten(tmp_path):
    store = filled(tmp_path)
    before = record_file(store).read_bytes()
    assert store.write(SPECS[0], result(0.9), ENVIRONMENT) is False
    assert record_file(store).read_bytes() == before
    assert atomic.create_file(record_file(store), b"other") is False
    assert record_file(store).read_bytes() == before


def test_without_hard_links_nothing_is_overwritten_either(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert atomic.create_file(tmp_path / "a", b"first") is True
    assert atomic.create_file(tmp_path / "a", b"second") is False
    assert (tmp_path / "a").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("at", ["_flush_folder", "replace"])
def test_ctrl_c_while_a_store_is_tried_leaves_nothing(tmp_path, monkeypatch, at):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path if at == "replace" else atomic, at, interrupted)
    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path / "store").ensure_writable()
    assert not list((tmp_path / "store").iterdir())


def test_missing_is_by_key_once_and_in_order(tmp_path):
    store = filled(tmp_path, SPECS[:2])
    assert store.missing([*SPECS, *SPECS]) == SPECS[2:]
    assert Store(tmp_path / "new").missing(SPECS) == SPECS
    assert not (tmp_path / "new").exists(), "looking makes nothing"


def test_frame_has_spec_metrics_and_origin(tmp_path):
    frame = filled(tmp_path).frame()
    assert len(frame) == len(SPECS)
    row = frame.set_index("key").loc[SPECS[4].key]
    assert (row["loss"], row["loss.anchor"], row["seed"], row["subset.n"]) == ("gence(anchor=0.1)", 0.1, 1, 40)
    assert (row["accuracy"], row["commit"], row["device"], row["wall_s"]) == (0.51, "abc", "cpu", 1.5)
    assert row["recipe"].startswith("custom-")
    assert row["recipe.milestones"] == "0.5,0.75"
    assert list(Store(tmp_path / "empty").frame().columns) == ["key", "status"]


def test_a_metric_named_like_a_column_keeps_out_of_its_way(tmp_path):
    store = Store(tmp_path)
    store.write(SPECS[0], result(metrics={"loss": 3.0}), ENVIRONMENT)
    assert (store.frame()["loss"][0], store.frame()["metrics.loss"][0]) == ("ce", 3.0)


def test_a_number_edited_in_an_old_cache_of_rows_is_believed_nowhere(tmp_path):
    """Earlier versions kept the rows in a file without a checksum."""
    store = filled(tmp_path, SPECS[:3])
    first = store.frame()
    (tmp_path / "cache").mkdir()
    rows = {key: [[1, 1], {"key": key, "status": "done", "accuracy": 0.99}] for key in first["key"]}
    (tmp_path / "cache" / "rows.json").write_text(json.dumps({"version": "1", "loose": rows, "packed": [None, {}]}))
    pd.testing.assert_frame_equal(store.frame(), first)
    store.pack()
    pd.testing.assert_frame_equal(Store(tmp_path).frame(), first)
    assert Store(tmp_path).check().sound == 3


def test_a_number_edited_in_a_record_is_not_exported(tmp_path):
    store = filled(tmp_path, SPECS[:3])
    path = record_file(store, SPECS[1])
    path.write_bytes(path.read_bytes().replace(b'"accuracy":', b'"accuracy":1'))
    with pytest.raises(StoreError, match=f"record {SPECS[1].key} .* was changed after it was written"):
        store.frame()
    assert len(store.frame([SPECS[0].key, SPECS[2].key])) == 2


def test_a_row_is_the_same_from_a_record_and_from_its_line(tmp_path):
    store = filled(tmp_path, SPECS[:4])
    store.write(SPECS[5], result(metrics={"accuracy": 0.1, "nll": math.nan, "loss": math.inf}), ENVIRONMENT)
    remembering = Store(tmp_path, remember=True)
    records = {record.key: record for record in remembering.records()}
    assert all(remembering.read(key) is record for key, record in records.items())
    pd.testing.assert_frame_equal(remembering.frame(), store.frame())
    assert list(remembering.frame().columns) == list(store.frame().columns)


def test_the_checksums_of_images_are_known_from_the_frame(tmp_path, monkeypatch):
    store = Store(tmp_path)
    images = {SPECS[0].key: {"train": "a", "test": "b"}, SPECS[1].key: {}}
    for spec in SPECS[:2]:
        store.write(spec, result(data=images[spec.key]), ENVIRONMENT)
    assert {key: store.images(key) for key in images} == images
    store.frame()
    monkeypatch.setattr(store, "line", lambda _key: pytest.fail("a record was read again"))
    assert {key: store.images(key) for key in images} == images


def test_packing_many_records_takes_the_memory_of_few(tmp_path):
    """And where one is damaged, all stay as they were."""
    store, specs = Store(tmp_path), make_specs(75)
    for spec in specs:
        store.write(spec, result(curves={"loss": [0.5] * 50_000}), ENVIRONMENT)
    path = record_file(store, specs[7])
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"[0.5", b"[0.6", 1))
    with pytest.raises(StoreError, match=f"{path.name} was changed"):
        store.pack()
    assert not store.pack_path.exists()
    assert not list(tmp_path.rglob(".writing-*"))
    assert store.keys() == {spec.key for spec in specs}
    path.write_bytes(whole)
    tracemalloc.start()
    try:
        assert store.pack() == len(specs)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(whole) < len(whole) * len(specs) / 4
    finally:
        tracemalloc.stop()
    assert store.check().sound == len(specs)


def test_packed_records_read_like_loose_ones(tmp_path):
    store = filled(tmp_path, SPECS[:4])
    loose = {record.key: record for record in store.records()}
    frame = store.frame()
    assert store.pack() == 4
    assert not list((tmp_path / "records").rglob("*.json"))
    store.write(SPECS[4], result(), ENVIRONMENT)
    again = Store(tmp_path)
    assert again.missing(SPECS) == SPECS[5:]
    assert {key: again.read(key) for key in loose} == loose
    pd.testing.assert_frame_equal(
        again.frame()[again.frame()["key"].isin(loose)][frame.columns].reset_index(drop=True), frame
    )
    assert again.write(SPECS[0], result(0.9), ENVIRONMENT) is False
    assert again.pack() == 5
    assert again.check().sound == 5
    with pytest.raises(StoreError, match="has no record"):
        again.read("0" * 16)


def test_a_damaged_line_of_the_pack_is_named_and_never_lost(tmp_path, monkeypatch):
    with a_day_later(monkeypatch):
        store = filled(tmp_path / "store", SPECS[:3])
    store.pack()
    damaged = store.pack_path.read_bytes().replace(b'\n{"key"', b'\n {"key"', 1)
    store.pack_path.write_bytes(damaged)
    whole = min(store.keys())
    older = filled(tmp_path / "older", [spec for spec in SPECS if spec.key == whole], accuracy=0.9)
    for call in (store.pack, lambda: store.merge(older)):
        with pytest.raises(StoreError, match=r"records\.jsonl:2 is not a record.*nothing was changed"):
            call()
        assert store.pack_path.read_bytes() == damaged


def test_two_records_of_a_run_are_named_and_none_is_lost(tmp_path, monkeypatch):
    store = filled(tmp_path / "store", SPECS[:3])
    store.pack()
    lines = store.pack_path.read_bytes().splitlines(keepends=True)
    store.pack_path.write_bytes(b"".join([*lines, lines[0]]))
    report = store.check()
    assert (report.ok, report.sound, len(report.notes)) == (True, 3, 1)
    assert "records.jsonl, lines 1 and 4: the same record of the run" in report.notes[0]
    store.pack()
    assert store.pack_path.read_bytes() == b"".join(lines)
    assert store.check().notes == ()

    with a_day_later(monkeypatch):
        later = filled(tmp_path / "later", SPECS[:3], accuracy=0.9)
    twice = b"".join([*lines, later.line(min(store.keys())) + b"\n"])
    store.pack_path.write_bytes(twice)
    assert "lines 1 and 4: different records" in " ".join(store.check().problems)
    with pytest.raises(StoreError, match=r"lines 1 and 4: different records.*remove all but one.*Nothing was changed"):
        store.pack()
    assert store.pack_path.read_bytes() == twice

    store.pack_path.write_bytes(b"".join(lines))
    shutil.copytree(later.root / "records", store.root / "records", dirs_exist_ok=True)
    report = store.check()
    assert (report.sound, len(report.problems)) == (0, 3)
    with pytest.raises(StoreError, match=r"records\.jsonl hold different records of the run.*remove one of them"):
        store.pack()


def test_a_checkpoint_whose_runs_are_recorded_is_a_leftover(tmp_path):
    store = filled(tmp_path, SPECS[:2])
    over, going_on = (CohortCheckpoint(store.root / "work", specs) for specs in (SPECS[:2], SPECS[1:3]))
    for checkpoint in (over, going_on):
        checkpoint.save(1, 1.0, [{"w": torch.ones(1)} for _ in range(2)], [[torch.ones(3)], [torch.ones(3)]])
    (store.root / "work" / "cohort-cut.safetensors").write_bytes(over.path.read_bytes()[:20])
    assert store.check().leftovers == (over.path,)
    store.check(remove_leftovers=True)
    assert (over.load(), going_on.load() is not None) == (None, True)


def test_predictions_are_those_of_the_record_or_an_error(tmp_path, monkeypatch):
    spec, key = SPECS[0], SPECS[0].key
    (trained,) = train([spec])
    store, older = Store(tmp_path / "store"), Store(tmp_path / "older")
    with a_day_later(monkeypatch):
        store.write(spec, trained, ENVIRONMENT)
    file = tmp_path / "store" / "predictions" / key[:2] / f"{key}.npz"
    whole = file.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"another run's"):
        file.write_bytes(content)
        with pytest.raises(StoreError, match="is not what was recorded with the run"):
            store.predictions(key)
    file.write_bytes(whole)
    older.write(spec, result(0.9), ENVIRONMENT)  # without predictions
    assert store.merge(older).conflicts == (key,)
    assert (store.predictions(key), store.check()) == (None, older.check())
    left_by_a_killed_process = tmp_path / "older" / "predictions" / SPECS[1].key[:2] / f"{SPECS[1].key}.npz"
    left_by_a_killed_process.parent.mkdir(parents=True)
    left_by_a_killed_process.write_bytes(whole)
    older.write(SPECS[1], result(), ENVIRONMENT)
    assert older.predictions(SPECS[1].key) is None


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: text.replace('"accuracy":0.5', '"accuracy":0.9'), "changed after it was written"),
        (lambda text: text.replace('"seed":0', '"seed":1'), "changed after it was written"),
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: json.dumps(json.loads(text), indent=1), "reformatted"),
        (lambda text: "", "cut short"),
    ],
)
def test_a_record_edited_by_hand_is_found_and_left_alone(tmp_path, edit, message):
    store = filled(tmp_path)
    path = record_file(store)
    path.write_text(edit(path.read_text()))
    before = path.read_bytes()
    for call in (lambda: store.read(SPECS[0].key), store.frame, store.pack):
        with pytest.raises(StoreError, match=message):
            call()
    merged = Store(tmp_path / "m").merge(store)
    assert (len(merged.added), len(merged.damaged)) == (len(SPECS) - 1, 1)
    assert message in merged.damaged[0]
    into = store.merge(filled(tmp_path / "sound"))  # the other way round
    assert (len(into.same), len(into.damaged)) == (len(SPECS) - 1, 1)
    assert message in into.damaged[0]
    report = store.check()
    assert (report.sound, len(report.problems), report.ok) == (len(SPECS) - 1, 1, False)
    assert message in report.problems[0]
    assert str(path) in report.problems[0]
    assert path.read_bytes() == before
    assert store.missing(SPECS) == [], "a broken record is not silently redone"


def test_records_of_a_newer_version_say_so_and_are_skipped(tmp_path, monkeypatch, caplog):
    store = filled(tmp_path, SPECS[:1])
    with monkeypatch.context() as newer:
        newer.setattr("gence.lab.spec.run.SCHEMA_VERSION", 2)
        foreign = make_specs(1, losses=("gence",))[0]
        store.write(foreign, result(), ENVIRONMENT)
    with monkeypatch.context() as newer:
        newer.setattr("gence.lab.store.record.FORMAT_VERSION", 2)
        store.write(SPECS[1], result(), ENVIRONMENT)
    before = store.line(foreign.key)
    with pytest.raises(StoreError, match=r"newer version \(schema 2.*update gence"):
        store.read(foreign.key)
    assert list(store.frame()["key"]) == [SPECS[0].key]
    assert [record.key for record in store.records()] == [SPECS[0].key]
    assert (
        caplog.messages
        == [f"2 records in {tmp_path} were written by a newer version and are skipped: update gence to read them"] * 2
    )
    with pytest.raises(StoreError, match=r"newer version \(record format 2.*update gence"):
        store.read(SPECS[1].key)
    report = store.check()
    assert (report.sound, report.problems) == (1, ())
    assert [("schema 2" in note or "format 2" in note) for note in report.notes] == [True, True]
    assert store.pack() == 3
    assert list(store.frame()["key"]) == [SPECS[0].key]
    assert store.line(foreign.key) == before


def test_check_names_strangers_leftovers_and_wrong_predictions(tmp_path):
    store = Store(tmp_path)
    store.write(SPECS[0], train(SPECS[:1])[0], ENVIRONMENT)
    folder = record_file(store).parent
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "records" / "00").mkdir()
    shutil.copy(record_file(store), tmp_path / "records" / "00" / f"{'0' * 16}.json")
    (folder / f"{atomic.TEMPORARY_PREFIX}x").write_text("half")
    os.utime(folder / f"{atomic.TEMPORARY_PREFIX}x", (0, 0))
    (tmp_path / "predictions" / SPECS[0].key[:2] / f"{SPECS[0].key}.npz").write_bytes(b"other")
    report = store.check(remove_leftovers=True)
    text = "\n".join(report.problems)
    assert "notes.txt is not where and named as a record is" in text
    assert "holds the record of another run" in text
    assert "not what was recorded" in text
    assert [path.name for path in report.leftovers] == [f"{atomic.TEMPORARY_PREFIX}x"]
    assert store.check().leftovers == ()


def test_only_what_nobody_writes_any_more_is_a_leftover(tmp_path):
    code = "import sys; from pathlib import Path; from gence.lab.store import temporary_path as t;"
    dead = subprocess.run(
        [sys.executable, "-c", code + "print(t(Path(sys.argv[1]) / 'a.json'))", str(tmp_path)],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    mine = atomic.temporary_path(tmp_path / "records" / "ab" / "b.json")
    elsewhere = [tmp_path / f".writing-00000000-{os.getpid()}-7-00000000-{name}" for name in ("new", "old", "ahead")]
    strange = [tmp_path / f".writing-{name}" for name in ("old", "new")]
    mine.parent.mkdir(parents=True)
    for path in (Path(dead), mine, *elsewhere, *strange):
        path.write_bytes(b"half")
    os.utime(mine, (0, 0))
    for path, hours in zip([*elsewhere, *strange], (0, -2, 2, -2, 0), strict=True):
        os.utime(path, (time.time() + 3600 * hours,) * 2)
    expected = sorted([Path(dead), elsewhere[1], elsewhere[2], strange[0]])
    assert list(Store(tmp_path).check(remove_leftovers=True).leftovers) == expected
    assert sorted(tmp_path.rglob(".writing-*")) == sorted([mine, elsewhere[0], strange[1]])


def test_leftovers_can_be_removed_beside_a_living_writer(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); from gence.lab.store import RunResult, Store;"
        "from tests.lab.tiny_trainer import make_specs; store = Store(sys.argv[1]);"
        "[store.write(spec, RunResult(metrics={'accuracy': 1.0}), {}) for spec in make_specs(400)]"
    )
    root = tmp_path / "store"
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(root), str(Path(__file__).parents[3])], stderr=subprocess.PIPE, text=True
    )
    looped = 0
    while writer.poll() is None:
        for path in leftovers(root, ()):
            path.unlink()
        looped += 1
    _, said = writer.communicate()
    assert writer.returncode == 0, said
    assert looped > 10
    assert Store(root).check().sound == 800


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_umask_says_who_may_read_what_libraries_write(tmp_path, umask, mode):
    store = filled(tmp_path / "store")
    before = os.umask(umask)
    try:
        CohortCheckpoint(tmp_path, SPECS[:1]).save(1, 2.0, [{"w": torch.zeros(3)}], [[torch.zeros(1)]])
        store.export_parquet(tmp_path / "all.parquet")
        store.export_csv(tmp_path / "all.csv")
    finally:
        os.umask(before)
    found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_file()}
    assert found == dict.fromkeys(found, mode)
    assert len(found) == 3


def test_export(tmp_path):
    store = filled(tmp_path / "store")
    assert store.export_parquet(tmp_path / "all.parquet") == len(SPECS)
    assert store.export_csv(tmp_path / "all.csv") == len(SPECS)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "all.parquet"), store.frame())
    assert sorted(pd.read_csv(tmp_path / "all.csv")["key"]) == sorted(store.keys())


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path):
    frame = pd.DataFrame({"=name": ["=1+1", "@x", "-2", "+a", "-a", "cat"], "n": [1.5, -2, 3, 4, 5, math.nan]})
    lines = frame_as_csv(frame).splitlines()
    assert lines == ["'=name,n", "'=1+1,1.5", "'@x,-2.0", "-2,3.0", "'+a,4.0", "'-a,5.0", "cat,"]
    spec = SPECS[0].replace(data="@SUM(1)", ood=["=cmd|' /C calc'!A0"])
    store = Store(tmp_path / "store")
    assert store.write(spec, RunResult(metrics={"accuracy": -0.5}), {})
    store.export_csv(tmp_path / "all.csv")
    (row,) = csv.DictReader((tmp_path / "all.csv").read_text().splitlines())
    assert (row["data"], row["ood"], row["accuracy"]) == ("'@SUM(1)", "'=cmd|' /C calc'!A0", "-0.5")


@pytest.mark.parametrize("name", ["a\rb", "a\r", "a\r\n", "a\nb", 'a"b,c'])
def test_no_name_is_torn_in_a_csv_file(tmp_path, name):
    store = Store(tmp_path / "store")
    for seed in (0, 1):
        assert store.write(SPECS[0].replace(data=name, seed=seed), RunResult(metrics={"accuracy": 0.5}), {})
    store.export_csv(tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["data"], row["accuracy"]) for row in rows] == [(name, "0.5")] * 2
    header = (tmp_path / "all.csv").read_bytes().partition(b"\n")[0]
    assert not header.endswith(b"\r")


def test_a_path_that_cannot_be_a_store_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreError, match="file is a file"):
            Store(path)
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "absent", must_exist=True)


def test_readers_see_whole_records_while_others_write(tmp_path):
    specs = make_specs(40)
    store = Store(tmp_path)
    seen: list[int] = []

    def look() -> None:
        while len(seen) == 0 or seen[-1] < len(specs):
            seen.append(len([record.spec for record in Store(tmp_path).records()]))

    reader = threading.Thread(target=look)
    reader.start()
    for i, spec in enumerate(specs):
        store.write(spec, result(), ENVIRONMENT)
        if i % 13 == 5:
            store.pack()
    reader.join(timeout=300)
    assert seen[-1] == len(specs)
    assert seen == sorted(seen)


def test_a_pack_replaced_between_any_two_steps_of_a_reader_is_read_whole(tmp_path):
    store = filled(tmp_path)
    store.pack()
    first, *_, last = sorted(store.keys())
    lines = {key: line.rstrip(b"\n") for key, line in Pack(store.pack_path).lines()}
    without_first = [line for key, line in lines.items() if key != first]
    done = threading.Event()

    def replace_it() -> None:
        pack = Pack(store.pack_path)
        while not done.is_set():
            pack.write(without_first)
            pack.write(lines.values())

    writer = threading.Thread(target=replace_it)
    writer.start()
    try:
        for _ in range(300):
            assert Pack(store.pack_path).line(last) == lines[last]
    finally:
        done.set()
        writer.join()


@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [("records", "folder", "Is a directory"), ("records", "link", "symbolic links"), ("predictions", "folder", "Is a")],
)
def test_a_folder_or_a_link_in_a_files_place_is_named_and_hides_no_other(tmp_path, place, kind, message):
    store = Store(tmp_path)
    for spec, one in zip(SPECS[:2], train(SPECS[:2]), strict=True):
        store.write(spec, one, ENVIRONMENT)
    (path,) = (tmp_path / place).rglob(f"{SPECS[0].key}.*")
    path.unlink()
    path.mkdir() if kind == "folder" else path.symlink_to(path)
    report = store.check()
    assert report.sound == 1
    assert len(report.problems) == 1
    with pytest.raises(StoreError, match=f"cannot be read: .*{message}"):
        store.read(SPECS[0].key) if place == "records" else store.predictions(SPECS[0].key)


def test_a_folder_in_the_packs_place_is_named(tmp_path):
    (tmp_path / "records.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"records\.jsonl cannot be read: Is a directory; restore it, or remove it"):
        Store(tmp_path).keys()
