from __future__ import annotations

import csv
import random

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gence.lab.data import DataError, load
from gence.lab.models import create_model
from gence.lab.train.checkpoint import read_tensors, write_tensors
from gence.lab.train.cohort import train_cohort
from gence.lab.train.saved.judge import evaluate_model
from gence.lab.train.saved.network import TrainedModel, load_model
from gence.lab.train.saved.predict import predict_folder, write_predictions
from tests.lab.small_runs import small_spec, write_images


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, its result and the network that it saved."""
    folder = tmp_path_factory.mktemp("models")
    spec = small_spec("gence", n=100, ood=("digits",), **{"recipe.epochs": 10, "recipe.head_bias": False})
    (result,) = train_cohort([spec], device="cpu", models_dir=folder)
    return spec, result, folder / f"{spec.key}.safetensors"


@pytest.fixture
def digits_folder(tmp_path):
    """Forty test digits as PNG files with names that need care, and one file that is not an image."""
    test = load("digits").test
    folder = tmp_path / "images"
    (folder / "deep" / "er").mkdir(parents=True)
    names = ['a,"b".png', "new\nline.png", "=1+1.PNG", "deep/er/ü.png", *(f"{i:02d}.png" for i in range(36))]
    for image, name in zip(test.images, names, strict=False):
        Image.fromarray(image[0].numpy()).save(folder / name, format="png")
    (folder / "notes.txt").write_text("no image")
    return folder, dict(zip(names, range(40), strict=True))


def test_a_saved_network_predicts_what_the_run_was_judged_by(trained):
    spec, result, path = trained
    model = load_model(path, "cpu")
    assert model.spec == spec
    assert model.classes == tuple("0123456789")
    metrics = evaluate_model(model, "digits", ["digits"])
    assert metrics == pytest.approx({name: result.metrics[name] for name in metrics})
    assert {"accuracy", "offset/nll", "ood/digits/auroc_energy", "offset/ood/digits/auroc_energy"} <= metrics.keys()


def test_every_image_has_a_line_under_its_own_name(trained, digits_folder, tmp_path):
    folder, positions = digits_folder
    model = load_model(trained[2], "cpu")
    out = tmp_path / "new" / "p.csv"
    assert write_predictions(model, folder, out) == 40
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "predicted", "confidence", *(f"p_{k}" for k in range(10))]
    assert "'=1+1.PNG" in [row["file"] for row in rows], "no cell is a formula"
    for row in rows:
        row["file"] = row["file"].removeprefix("'")
    assert [row["file"] for row in rows] == sorted(positions)
    expected = model.logits(load("digits").test.images[:40]).softmax(1)
    for row in rows:
        probs = expected[positions[row["file"]]]
        np.testing.assert_allclose([float(row[f"p_{k}"]) for k in range(10)], probs, rtol=1e-4)
        assert row["predicted"] == str(int(probs.argmax()))
        assert row["confidence"] == row[f"p_{row['predicted']}"]
    assert [path.name for path in out.parent.iterdir()] == ["p.csv"]


def test_the_offset_is_added_where_asked(trained, digits_folder):
    model = load_model(trained[2], "cpu")
    (names, raw), (again, shifted) = (next(predict_folder(model, digits_folder[0], offset=o)) for o in (False, True))
    assert names == again
    expected = (raw.log() + model.offset).softmax(1)
    torch.testing.assert_close(shifted, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(raw, shifted)


def test_images_of_another_size_and_colour_are_brought_to_the_networks(trained, tmp_path):
    folder = write_images(tmp_path / "x", {"a": 3}, mode="RGB", size=20)
    ((names, probs),) = predict_folder(load_model(trained[2], "cpu"), folder)
    assert names == ("a/000.png", "a/001.png", "a/002.png")
    torch.testing.assert_close(probs.sum(1), torch.ones(3))


def test_archives_are_read_too(trained, digits_folder, tmp_path):
    import zipfile

    folder, positions = digits_folder
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.write(folder / "00.png", "00.png")
    model = load_model(trained[2], "cpu")
    ((names, probs),) = predict_folder(model, tmp_path / "x.zip")
    assert names == ("00.png",)
    torch.testing.assert_close(probs, model.probabilities(load("digits").test.images[positions["00.png"]][None]))


def test_many_images_are_predicted_piece_by_piece(trained, digits_folder, monkeypatch):
    model = load_model(trained[2], "cpu")
    ((names, whole),) = predict_folder(model, digits_folder[0])
    monkeypatch.setattr("gence.lab.train.saved.predict._CHUNK", 7)
    parts = list(predict_folder(model, digits_folder[0]))
    assert len(parts) == 6
    assert sum((part for part, _ in parts), ()) == names
    torch.testing.assert_close(torch.cat([probs for _, probs in parts]), whole)


def test_a_damaged_image_is_named_and_no_file_is_written(trained, digits_folder, tmp_path):
    (digits_folder[0] / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n no more")
    with pytest.raises(DataError, match=r"bad\.png is not a readable image"):
        write_predictions(load_model(trained[2], "cpu"), digits_folder[0], tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_folders_without_images(trained, tmp_path):
    model = load_model(trained[2], "cpu")
    with pytest.raises(DataError, match="holds no images"):
        next(predict_folder(model, tmp_path))
    with pytest.raises(DataError, match="does not exist"):
        next(predict_folder(model, tmp_path / "nowhere"))


def test_two_sources_of_one_name_are_refused(trained, tmp_path):
    places = [str(write_images(tmp_path / name / "plain", {"a": 3}, mode="L")) for name in ("d", "o2")]
    with pytest.raises(ValueError, match=r"d/plain and .*o2/plain would share the name 'plain'"):
        evaluate_model(load_model(trained[2], "cpu"), "digits", places, cache_dir=tmp_path / "cache")


def test_a_network_that_diverged_predicts_nothing(trained, digits_folder, tmp_path):
    spec = trained[0].replace(**{"recipe.lr": 1e30, "recipe.epochs": 1})
    (result,) = train_cohort([spec], device="cpu", models_dir=tmp_path / "models")
    assert result.status == "diverged"
    model = load_model(tmp_path / "models" / f"{spec.key}.safetensors", "cpu")
    with pytest.raises(ValueError, match="this network diverged in training"):
        write_predictions(model, digits_folder[0], tmp_path / "out" / "p.csv")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(ValueError, match="this network diverged in training"):
        evaluate_model(model, "digits")


def test_other_classes_are_refused(trained, tmp_path):
    data = write_images(tmp_path / "d", {"0": 5, "cat": 5}, mode="L")
    with pytest.raises(ValueError, match="has 2 classes and the model 10"):
        evaluate_model(load_model(trained[2], "cpu"), str(data), cache_dir=tmp_path / "cache")


def test_files_that_are_no_model(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_model(tmp_path / "none.safetensors")
    save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="has no spec"):
        load_model(tmp_path / "other.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(trained[2].read_bytes()[:500])
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        load_model(tmp_path / "cut.safetensors")


def test_a_network_without_offset_says_so(trained):
    import dataclasses

    model = dataclasses.replace(load_model(trained[2], "cpu"), offset=None)
    with pytest.raises(ValueError, match="has no offset"):
        model.probabilities(torch.zeros(1, *model.image_shape, dtype=torch.uint8), offset=True)
    assert not any(name.startswith("offset/") for name in evaluate_model(model, "digits"))


def test_images_that_are_not_square_are_predicted_in_their_own_shape(tmp_path):
    """A network on 20 x 12 images: files of that size are taken as they are, larger ones are fitted to it."""
    draw = np.random.default_rng(0)
    arrays = draw.integers(0, 256, (6, 20, 12), dtype=np.uint8)
    for i, image in enumerate(arrays):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    Image.fromarray(arrays[0]).resize((24, 40), Image.Resampling.NEAREST).save(tmp_path / "6.png")
    spec = small_spec("ce", n=40)
    model = TrainedModel(
        create_model("small_cnn", num_classes=3, in_channels=1, image_size=20, seed=0).eval(), spec, ("a", "b", "c"),
        (1, 20, 12), torch.tensor([0.5]), torch.tensor([0.25]), None,
    )  # fmt: skip
    (found,) = predict_folder(model, tmp_path)
    torch.testing.assert_close(found[1][:6], model.probabilities(torch.from_numpy(arrays)[:, None]))
    assert found[1].shape == (7, 3)
    with pytest.raises(ValueError, match=r"images: shape \(6, 1, 20, 20\) was given, \(n, 1, 20, 12\) expected"):
        model.logits(torch.zeros(6, 1, 20, 20, dtype=torch.uint8))


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_model_file_is_one_error_that_names_it(trained, tmp_path, seed):
    data, draw = bytearray(trained[2].read_bytes()), random.Random(seed)
    header = int.from_bytes(data[:8], "little")
    for _ in range(3):  # half of it in the header, where names, shapes and notes are
        data[draw.randrange(8, 8 + header) if draw.random() < 0.5 else draw.randrange(len(data))] ^= (
            1 << draw.randrange(8)
        )
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged\.safetensors"):
        load_model(damaged)


@pytest.mark.parametrize("notes", [{"image_shape": "[1, 8]"}, {"image_shape": "7"}, {"image_shape": "[1, 8, 8.5]"},
                                   {"image_shape": "[1, 8, 0]"}, {"classes": "[1, 2]"},
                                   {"classes": "[]"}, {"spec": "{}"}, {"spec": "[]"}, {"data": "x"}])  # fmt: skip
def test_notes_that_make_no_sense_are_one_error_that_names_the_file(trained, tmp_path, notes):
    tensors, written = read_tensors(trained[2])
    strange = tmp_path / "strange.safetensors"
    write_tensors(strange, tensors, written | notes)
    with pytest.raises(ValueError, match=r"strange\.safetensors"):
        load_model(strange)
