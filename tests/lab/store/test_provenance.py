"""A record, a checkpoint and a saved network know the images they were made from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from gence.lab.data import DataError, load
from gence.lab.spec.run import RunSpec
from gence.lab.store.provenance import check_same_data, checksums_at_hand, data_checksums
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep.run import run_grid
from gence.lab.sweep.trials import TuneSettings
from gence.lab.sweep.tuning import tune
from gence.lab.train.checkpoint import CohortCheckpoint, read_tensors, write_tensors
from gence.lab.train.cohort import train_cohort
from gence.lab.train.saved.judge import evaluate_model, images_to_judge
from gence.lab.train.saved.network import load_model
from tests.lab.small_runs import small_spec, write_images


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def photos(tmp_path) -> Path:
    return write_images(tmp_path / "photos", {"cat": 20, "dog": 20})


def spec_of(photos: Path, **changes) -> RunSpec:
    return small_spec(n=20, data=str(photos), **{"recipe.epochs": 2, **changes})


def add_images(photos: Path) -> None:
    write_images(photos.with_name("more"), {"cat": 9}, seed=1)
    for image in (photos.with_name("more") / "cat").iterdir():
        image.rename(photos / "cat" / f"00-{image.name}")


def test_a_record_has_the_checksums_of_its_images_and_its_key_does_not(photos, tmp_path):
    outside = write_images(tmp_path / "else", {"x": 3}, mode="L", size=20)
    spec = spec_of(photos, ood=(str(outside),))
    (result,) = train_cohort([spec], device="cpu")
    store = Store(tmp_path / "store")
    store.write(spec, result)
    record = store.read(spec.key)
    splits = load(photos)
    assert record.environment["data"] == record.result.data == checksums_at_hand(spec)
    assert record.result.data | data_checksums(splits) == record.result.data
    assert record.result.data.keys() == {"train", "test", f"ood/{outside}"}
    check_same_data([record], checksums_at_hand(spec), store.root)

    (outside / "x" / "000.png").unlink()
    with pytest.raises(DataError, match=f"{spec.key} in {store.root} was recorded .the images of {outside} differ"):
        check_same_data([record], checksums_at_hand(spec), store.root)
    add_images(photos)
    assert spec_of(photos, ood=(str(outside),)).key == spec.key
    with pytest.raises(
        DataError, match=r"the training images and the test images and .* differ.*--store, .* remove the old"
    ):
        check_same_data([record], checksums_at_hand(spec), store.root)


def test_records_without_checksums_and_data_that_are_not_here_are_accepted(photos, tmp_path):
    store = Store(tmp_path / "store")
    spec = spec_of(photos)
    store.write(spec, RunResult(metrics={"accuracy": 0.5}))
    record = store.read(spec.key)
    assert "data" not in record.environment
    check_same_data([record], checksums_at_hand(spec), store.root)
    assert checksums_at_hand(spec.replace(data=str(tmp_path / "gone"))) == {}
    assert checksums_at_hand(spec.replace(data="digits")) == {}


def test_a_grid_does_not_go_on_with_other_images(photos, tmp_path, quiet_console):
    def run(*losses):
        return run_grid([spec_of(photos, loss=loss) for loss in losses], store, device="cpu", console=quiet_console)

    store = Store(tmp_path / "store")
    assert run("ce").complete
    assert run("ce", "gence").complete
    add_images(photos)
    for losses in (("ce",), ("ce", "gence", "focal")):
        with pytest.raises(DataError, match=r"the training images and the test images differ.*--store"):
            run(*losses)
    assert len(store.keys()) == 2
    photos.rename(photos.with_name("elsewhere"))
    assert len(run("ce", "gence").skipped) == 2  # what is not here cannot be compared


def test_tuning_does_not_go_on_with_other_images(photos, tmp_path, quiet_console):
    def run(trials):
        settings = TuneSettings(trials=trials, batch=1, rungs=(1.0,))
        return tune(spec_of(photos), ["ce"], tmp_path / "store", settings=settings, device="cpu", console=quiet_console)

    assert run(1).complete
    add_images(photos)
    with pytest.raises(DataError, match="differ"):
        run(2)


def test_a_checkpoint_of_other_images_is_not_gone_on_from(photos, tmp_path):
    spec = spec_of(photos)
    epochs = []  # before the first one ends there is nothing to keep
    assert train_cohort(
        [spec], device="cpu", workdir=tmp_path / "work", on_epoch=epochs.append, should_stop=lambda: bool(epochs)
    ) == [None]
    place = CohortCheckpoint(tmp_path / "work", [spec], data_checksums(load(photos)))
    assert place.load() is not None
    assert CohortCheckpoint(tmp_path / "work", [spec]).load() is not None  # nothing is known about the images
    add_images(photos)
    assert CohortCheckpoint(tmp_path / "work", [spec], data_checksums(load(photos))).load() is None


@pytest.fixture
def saved(photos, tmp_path) -> Path:
    spec = spec_of(photos)
    train_cohort([spec], device="cpu", models_dir=tmp_path / "models")
    return tmp_path / "models" / f"{spec.key}.safetensors"


def test_a_network_is_not_judged_on_images_it_may_have_seen(photos, saved, monkeypatch):
    model = load_model(saved, "cpu")
    before = evaluate_model(model, str(photos))
    monkeypatch.chdir(photos.parent)
    assert evaluate_model(model, "photos/") == before
    add_images(photos)
    for spelling in (str(photos), "./photos/"):
        with pytest.raises(DataError, match=r"has changed since .* may have been trained on. Train again"):
            evaluate_model(model, spelling)
    photos.rename(photos.with_name("renamed"))
    assert evaluate_model(model, "renamed").keys() == before.keys()  # another source: the user's word counts


def test_all_of_a_new_source_without_a_test_part_is_judged(photos, saved, tmp_path):
    model = load_model(saved, "cpu")
    assert len(images_to_judge(model, str(photos))) == 8
    new = write_images(tmp_path / "new", {"cat": 7, "dog": 1}, seed=3)
    assert len(images_to_judge(model, str(new))) == 8
    parts = write_images(tmp_path / "parts" / "train", {"cat": 5, "dog": 5}, seed=4).parent
    write_images(parts / "test", {"cat": 2, "dog": 3}, seed=5)
    assert len(images_to_judge(model, str(parts))) == 5
    before = evaluate_model(model, str(photos))
    photos.rename(photos.with_name("renamed"))
    # The folder it was trained on, under another name: most of its images were trained on.
    assert evaluate_model(model, str(photos.with_name("renamed"))) == before


def test_a_test_part_that_was_named_as_such_may_change(photos, tmp_path):
    data = write_images(tmp_path / "data" / "train", {"cat": 10, "dog": 10}).parent
    write_images(data / "test", {"cat": 4, "dog": 4}, seed=1)
    spec = spec_of(data)
    train_cohort([spec], device="cpu", models_dir=tmp_path)
    model = load_model(tmp_path / f"{spec.key}.safetensors", "cpu")
    (data / "train" / "cat" / "000.png").unlink()
    (data / "test" / "cat" / "000.png").unlink()
    assert evaluate_model(model, str(data))["accuracy"] >= 0


def test_networks_of_older_versions_are_read(photos, saved):
    tensors, notes = read_tensors(saved)
    assert json.loads(notes.pop("data")) == data_checksums(load(photos))
    write_tensors(saved, tensors, notes)
    add_images(photos)
    model = load_model(saved, "cpu")
    assert model.data == {}
    assert evaluate_model(model, str(photos)) == evaluate_model(dataclasses.replace(model), str(photos))
