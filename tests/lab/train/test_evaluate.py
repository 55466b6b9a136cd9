from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from gence.calibrate import fit_temperature, sets_metrics
from gence.lab.data.augment.epoch import normalize
from gence.lab.models import create_model
from gence.lab.spec.run import ood_name
from gence.lab.train.evaluate import evaluate, predict_logits, score
from gence.losses import marginal_offset
from gence.metrics import classification_metrics, marginal_divergence, ood_metrics, score_parts
from tests.lab.small_runs import problem_of, small_spec


@pytest.fixture(scope="module")
def problem():
    return problem_of(small_spec(n=100, ood=("digits",)))


@pytest.fixture
def model():
    return create_model("small_cnn", num_classes=10, in_channels=1, image_size=8, seed=0)


def test_logits_are_float32_in_evaluation_mode_and_the_mode_is_put_back(problem, model):
    model.train()
    logits = predict_logits(model, problem.judged.images, problem.mean, problem.std)
    assert model.training
    assert logits.dtype == torch.float32
    assert not logits.requires_grad
    with torch.no_grad():
        whole = model.eval()(normalize(problem.judged.images, problem.mean, problem.std))
    torch.testing.assert_close(logits, whole)


def test_metrics_are_those_of_the_logits_raw_and_after_the_offset(problem, model):
    found = evaluate(model, problem)
    logits = predict_logits(model, problem.judged.images, problem.mean, problem.std)
    train = predict_logits(model, problem.train.images, problem.mean, problem.std)
    offset = marginal_offset(train, problem.prior)
    torch.testing.assert_close(found.offset, offset)
    expected = classification_metrics(logits, problem.judged.labels)
    expected |= {f"ood/digits/{k}": v for k, v in ood_metrics(logits, logits).items()}
    shifted = classification_metrics(logits + offset, problem.judged.labels)
    expected |= {f"offset/{k}": v for k, v in shifted.items()}
    expected["marginal_kl"] = float(marginal_divergence(train, problem.prior))
    assert {name: found.metrics[name] for name in expected} == pytest.approx(expected)
    assert found.metrics["offset/ood/digits/auroc_entropy"] == pytest.approx(0.5)
    assert found.finite


def test_predictions_are_compact_and_point_back_to_the_images(problem, model):
    predictions = evaluate(model, problem).predictions
    logits = predict_logits(model, problem.judged.images, problem.mean, problem.std)
    assert {name: str(values.dtype) for name, values in predictions.items()} == {
        "index": "uint32", "label": "uint16", "predicted": "uint16", "confidence": "float16"
    }  # fmt: skip
    np.testing.assert_array_equal(predictions["predicted"], logits.argmax(1))
    np.testing.assert_array_equal(predictions["label"], problem.judged.labels)
    np.testing.assert_array_equal(predictions["index"], np.arange(len(logits)))
    np.testing.assert_allclose(predictions["confidence"], logits.softmax(1).amax(1), rtol=1e-3)


def test_tables_fit_a_record(problem, model):
    import json

    tables = evaluate(model, problem).tables
    json.dumps(tables, allow_nan=False)
    assert sum(tables["reliability"]["count"]) == len(problem.judged.labels)
    assert np.sum(tables["confusion"]) == len(problem.judged.labels)
    assert sum(tables["marginal"]) == pytest.approx(1, abs=1e-4)
    assert set(tables["ood_histograms"]) == {"digits/confidence", "digits/entropy"}


def test_a_network_that_is_not_finite_has_an_accuracy_and_nothing_else(problem, model):
    nn.init.constant_(model.head.weight, torch.nan)
    found = evaluate(model, problem)
    assert not found.finite
    assert set(found.metrics) == {"accuracy"}
    assert found.offset is None


def test_predictions_too_sharp_for_an_offset_have_none(problem, model):
    with torch.no_grad():
        model.head.weight.mul_(1e20)  # every prediction is 0 or 1, and the marginal moves in jumps of 1/n
    uneven = torch.linspace(1, 2, 10) / 15
    found = evaluate(model, dataclasses.replace(problem, prior=uneven))
    assert found.finite
    assert found.offset is None
    assert "accuracy" in found.metrics
    assert not any(name.startswith("offset/") for name in found.metrics)


def test_two_sources_of_one_name_are_refused(problem, model):
    images = problem.judged.images[:10]
    clash = dataclasses.replace(problem, ood={"a/x.zip": images, "b/x.zip": images})
    with pytest.raises(ValueError, match=r"a/x\.zip and b/x\.zip would share the name 'x'"):
        evaluate(model, clash)


@pytest.mark.parametrize(("source", "name"), [
    ("svhn", "svhn"), ("/data/my set/", "my set"), ("a/b/textures.tar.gz", "textures"), ("x.tgz", "x"),
    ("hf:owner/name", "name"),
])  # fmt: skip
def test_short_names_of_ood_sources(source, name):
    assert ood_name(source) == name


def test_score_of_perfect_predictions():
    logits = 50.0 * torch.eye(4).repeat(3, 1)
    found = score(logits, torch.arange(4).repeat(3), {"noise": torch.zeros(5, 4)})
    assert (found["accuracy"], found["ood/noise/auroc_confidence"]) == (1.0, 1.0)
    assert found["ece"] == pytest.approx(0, abs=1e-6)


def test_a_held_out_part_calibrates_a_network(model):
    """The temperature and the sets are those of the held-out images alone; with none, nothing is calibrated."""
    spec = small_spec(n=200, ood=("digits",)).replace(**{"subset.val_fraction": 0.25})
    own = problem_of(spec)
    assert own.held is not None
    assert not set(own.held.index.tolist()) & set(own.train.index.tolist())
    seen = evaluate(model, own)
    held = predict_logits(model, own.held.images, own.mean, own.std)
    logits = predict_logits(model, own.judged.images, own.mean, own.std)
    fitted = fit_temperature(held, own.held.labels)
    expected = {
        f"calibrated/{k}": v for k, v in classification_metrics(fitted.logits(logits), own.judged.labels).items()
    }
    sets = sets_metrics(held.double().softmax(1), own.held.labels, logits.double().softmax(1), own.judged.labels)
    expected |= sets | score_parts(logits, own.judged.labels)._asdict()
    assert {name: seen.metrics[name] for name in expected} == pytest.approx(expected)
    whole = seen.metrics["calibrated/nll_calibration"] + seen.metrics["calibrated/nll_refinement"]
    assert whole == pytest.approx(seen.metrics["calibrated/nll"])
    assert seen.metrics["calibrated/ood/digits/auroc_entropy"] == pytest.approx(0.5)
    assert sum(seen.tables["calibrated_reliability"]["count"]) == len(own.judged.labels)
    assert seen.tables["calibration"]["temperature"] == pytest.approx(float(fitted.tensors["temperature"]), rel=1e-4)
    without = evaluate(model, problem_of(small_spec(n=200)))
    assert without.calibrator is None
    assert not any(name.startswith(("calibrated/", "coverage/")) for name in without.metrics)
