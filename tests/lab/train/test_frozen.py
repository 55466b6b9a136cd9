"""Heads on frozen features as runs: judged, recorded, saved, read back, exported; the same alone and together."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from gence.lab.data import load
from gence.lab.features import embedded_encoder_is_installed
from gence.lab.spec import RECIPES, LossSpec, RunSpec, SpecError
from gence.lab.train.checkpoint import read_tensors, write_tensors
from gence.lab.train.cohort import train_cohort
from gence.lab.train.saved.export import export_model
from gence.lab.train.saved.judge import evaluate_model
from gence.lab.train.saved.network import load_model
from gence.lab.train.saved.predict import predict_folder
from tests.lab.small_runs import same_outcome

pytestmark = pytest.mark.skipif(not embedded_encoder_is_installed(), reason="the extra pretrained is not installed")
HEAD = RECIPES["head"].replace(epochs=5, batch_size=20)


def spec_of(data, loss="gence(anchor=0.1)", head="linear", seed=0, **changes):
    spec = RunSpec(
        data=str(data), model=f"{head}@efficientnet_lite0", loss=LossSpec.parse(loss), recipe=HEAD, seed=seed
    )  # fmt: skip
    return spec.replace(**changes)


@pytest.fixture(scope="module")
def trained(photographs, tmp_path_factory):
    """Runs of three losses and two seeds, their results and the heads that they saved."""
    folder = tmp_path_factory.mktemp("heads")
    losses = ("gence(anchor=0.1)", "ce", "mae")
    specs = [spec_of(photographs, loss, seed=seed, subset=60) for seed in (0, 1) for loss in losses]
    return specs, train_cohort(specs, device="cpu", models_dir=folder), folder


def test_heads_learn_and_are_judged_as_networks_are(trained):
    specs, results, _ = trained
    for spec, result in zip(specs, results, strict=True):
        assert result.status == "done"
        assert {"accuracy", "nll", "ece", "offset/accuracy", "marginal_kl", "train_accuracy"} <= result.metrics.keys()
        assert len(result.curves["train_loss"]) == 5
        assert result.tables["encoder"]["features"] == 1280
        assert {"train", "test", "encoder"} == result.data.keys()
        if spec.loss.name != "mae":
            assert result.metrics["accuracy"] >= 0.9


def test_a_run_alone_is_the_run_among_others(trained):
    specs, results, _ = trained
    (alone,) = train_cohort([specs[3]], device="cpu")
    for name, value in alone.metrics.items():
        assert value == pytest.approx(results[3].metrics[name], abs=1e-4), name
    again = train_cohort(specs, device="cpu")
    for one, other in zip(results, again, strict=True):
        same_outcome(one, other)


@pytest.mark.parametrize(("head", "size"), [("linear", 128), ("mlp", 128), ("cosine", 128), ("linear", None)])
def test_a_saved_head_says_what_the_run_was_judged_by(photographs, tmp_path, head, size):
    spec = spec_of(photographs, head=head, image_size=size)
    (result,) = train_cohort([spec], device="cpu", models_dir=tmp_path)
    model = load_model(tmp_path / f"{spec.key}.safetensors", device="cpu")
    found = evaluate_model(model, str(photographs))
    assert found["accuracy"] == pytest.approx(result.metrics["accuracy"], abs=1e-9)
    assert found["nll"] == pytest.approx(result.metrics["nll"], abs=2e-3)
    names, probabilities = next(iter(predict_folder(model, photographs / "china")))
    assert len(names) == len(probabilities) == 63
    runtime = pytest.importorskip("onnxruntime")
    images = load(photographs, image_size=size).test.images[:5]
    session = runtime.InferenceSession(export_model(model, tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    (exported,) = session.run(["probabilities"], {"images": images.numpy()})
    np.testing.assert_allclose(exported, model.probabilities(images).numpy(), atol=1e-4)


def test_a_head_is_calibrated_out_of_fold_and_detects_on_features(photographs, tmp_path):
    spec = spec_of(photographs, "ce", subset=60, ood=("digits",))
    (result,) = train_cohort([spec], device="cpu", models_dir=tmp_path)
    metrics = result.metrics
    for name in ("entropy", "confidence", "energy", "max_logit", "knn", "mahalanobis", "vim"):
        for area in ("auroc", "fpr95", "aupr_in", "aupr_out"):
            assert 0 <= metrics[f"ood/digits/{area}_{name}"] <= 1
    assert metrics["ood/digits/auroc_knn"] > 0.85
    assert {"calibrated/nll", "coverage/lac90", "calibrated/set_size/lac95", "nll_calibration"} <= metrics.keys()
    model = load_model(tmp_path / f"{spec.key}.safetensors", device="cpu")
    found = evaluate_model(model, str(photographs), ["digits"])
    for name, value in found.items():
        assert value == pytest.approx(metrics[name], abs=5e-3), name
    assert {"calibrated/ece", "ood/digits/auroc_vim", "calibrated/ood/digits/auroc_entropy"} <= found.keys()
    images = load(photographs).test.images[:5]
    temperature = result.tables["calibration"]["temperature"]
    expected = (model.logits(images) / temperature).softmax(1)
    torch.testing.assert_close(model.probabilities(images, calibrated=True), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="give one"):
        model.probabilities(images, offset=True, calibrated=True)
    with pytest.raises(ValueError, match="has no calibrator: a head gets one where every class has two"):
        dataclasses.replace(model, calibrator=None).probabilities(images, calibrated=True)
    runtime = pytest.importorskip("onnxruntime")
    path = export_model(model, tmp_path / "calibrated.onnx", calibrated=True)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (exported,) = session.run(["probabilities"], {"images": images.numpy()})
    np.testing.assert_allclose(exported, expected.numpy(), atol=1e-4)


def test_a_head_says_when_the_encoder_s_weights_are_others(trained, tmp_path):
    specs, _, folder = trained
    tensors, notes = read_tensors(folder / f"{specs[0].key}.safetensors")
    encoder = {**json.loads(notes["encoder"]), "weights": "0" * 64}
    write_tensors(tmp_path / "other.safetensors", tensors, {**notes, "encoder": json.dumps(encoder)})
    with pytest.raises(
        ValueError, match=r"other\.safetensors .* trained on features of efficientnet_lite0 with weights 0000"
    ):
        load_model(tmp_path / "other.safetensors")


def test_the_full_data_equation_is_an_optimizer(photographs):
    changes = {"recipe.optimizer": "lbfgs", "recipe.epochs": 200, "recipe.weight_decay": 0.01}
    one, two = train_cohort([spec_of(photographs, "ce", seed=seed, **changes) for seed in (0, 1)], device="cpu")
    assert one.metrics["nll"] == pytest.approx(two.metrics["nll"], abs=1e-5)  # all images, and no order of batches
    with pytest.raises(ValueError, match="'lbfgs', which trains heads on frozen features"):
        train_cohort([spec_of(photographs, "ce", **changes, **{"recipe.tune_encoder": "all"})], device="cpu")


def test_held_out_rows_are_judged_while_tuning(photographs):
    spec = spec_of(photographs, subset=60, evaluate_on="val", **{"subset.val_fraction": 0.3})
    (result,) = train_cohort([spec], device="cpu")
    assert len(result.predictions["label"]) == 18


def test_gray_images_have_features_too():
    (result,) = train_cohort([spec_of("digits", subset=50)], device="cpu")
    assert result.metrics["accuracy"] > 0.5
    assert torch.isfinite(torch.tensor(result.metrics["nll"]))


def test_fields_that_do_nothing_are_refused(photographs):
    with pytest.raises(ValueError, match=r"recipe\.flip is True, which has no effect on embedded features"):
        train_cohort([spec_of(photographs, **{"recipe.flip": True})], device="cpu")
    with pytest.raises(SpecError, match="did you mean 'lbfgs'"):
        spec_of(photographs, **{"recipe.optimizer": "lbgfs"})
