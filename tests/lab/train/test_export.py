"""An exported network says what the network says, in onnxruntime and in torch.export, for any number of images."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from gence.lab.data import load
from gence.lab.train.cohort import train_cohort
from gence.lab.train.saved.export import export_model
from gence.lab.train.saved.network import load_model
from tests.lab.small_runs import small_spec


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    spec = small_spec("gence", n=100, **{"recipe.epochs": 3})
    train_cohort([spec], device="cpu", models_dir=folder)
    return load_model(folder / f"{spec.key}.safetensors", device="cpu")


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_onnxruntime_agrees(model, tmp_path, offset, count):
    runtime = pytest.importorskip("onnxruntime")
    path = export_model(model, tmp_path / "model.onnx", offset=offset)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = load("digits").test.images[:count]
    (found,) = session.run(["probabilities"], {"images": images.numpy()})
    np.testing.assert_allclose(found, model.probabilities(images, offset=offset).numpy(), atol=1e-4)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(model.classes)


def test_torch_export_agrees(model, tmp_path):
    path, notes = export_model(model, tmp_path / "model.pt2"), {"classes.json": ""}
    loaded = torch.export.load(path, extra_files=notes).module()
    images = load("digits").test.images[:11]
    torch.testing.assert_close(loaded(images), model.probabilities(images), atol=1e-5, rtol=0)
    assert json.loads(notes["classes.json"]) == list(model.classes)


def test_another_ending_is_refused_and_nothing_is_written(model, tmp_path):
    with pytest.raises(ValueError, match=r"model\.pth was given; expected a name that ends in \.onnx"):
        export_model(model, tmp_path / "model.pth")
    assert list(tmp_path.iterdir()) == []
