"""``gence train`` and ``gence evaluate`` on folders of photographs, as people have them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gence.cli.app import create_app
from gence.lab.data import DataError
from gence.lab.store.store import Store
from gence.lab.train.saved.network import load_model
from tests.lab.small_runs import write_images

QUICK = ["--recipe", "tiny", "--set", "recipe.epochs=1", "--device", "cpu"]


def gence(*arguments: str):
    result = CliRunner().invoke(create_app(), list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    folder = write_images(tmp_path / "photos", {"cat": 10}, size=40)
    return write_images(folder, {"dog": 10}, size=50)


def test_images_of_several_sizes_are_brought_to_one_and_it_is_said(photos, tmp_path):
    result = gence("train", "--data", "photos/", *QUICK, "--save", "m.safetensors")
    assert "images are resized to 32 x 32 pixels" in result.stderr
    spec = load_model(tmp_path / "m.safetensors", "cpu").spec
    assert (spec.data, spec.image_size) == ("photos", 32)
    assert "m.safetensors on photos" in gence("evaluate", "m.safetensors", "--device", "cpu").stdout
    for given in (["--image-size", "16"], ["--set", "image_size=16"]):
        result = gence("train", "--data", "photos/", *given, *QUICK, "--save", "m.safetensors")
        assert "brought" not in result.stderr
        assert load_model(tmp_path / "m.safetensors", "cpu").spec.image_size == 16


def test_small_images_of_one_size_and_named_sources_stay_as_they_are(tmp_path):
    write_images(tmp_path / "small", {"cat": 10, "dog": 10})
    for source in ("small", "digits"):
        result = gence("train", "--data", source, *QUICK, "--save", "m.safetensors")
        assert "brought" not in result.stderr
        assert load_model(tmp_path / "m.safetensors", "cpu").spec.image_size is None


def test_folders_that_are_left_out_are_named(photos, tmp_path):
    write_images(photos, {".fox": 3})
    assert "note: photos: skipped .fox" in gence("train", "--data", "photos", *QUICK).stderr


def test_one_folder_has_one_key_and_a_changed_one_no_old_result(photos):
    arguments = [*QUICK, "--store", "store"]
    gence("train", "--data", "photos", *arguments)
    for spelling in ("photos/", "./photos", ".//photos/."):
        assert "already" in gence("train", "--data", spelling, *arguments).stderr
    (photos / "cat" / "000.png").unlink()
    for more in ([], ["--save", "m.safetensors"]):
        with pytest.raises(DataError, match=r"photos has changed since .* Name another folder"):
            gence("train", "--data", "photos", *arguments, *more)
    assert len(Store("store").keys()) == 1
    photos.rename("elsewhere")
    with pytest.raises(DataError, match="unknown data set photos"):
        gence("train", "--data", "photos", *arguments)
