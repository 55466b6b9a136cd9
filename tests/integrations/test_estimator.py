"""The estimator in scikit-learn's own company: searches, pipelines, calibration, pickles."""

from __future__ import annotations

import inspect
import json
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_sample_images, load_wine
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from gence.integrations.estimator import GenCEClassifier
from gence.lab.features import embedded_encoder_is_installed

X, y = load_wine(return_X_y=True)
X = StandardScaler().fit_transform(X)
NAMES = np.array(["barolo", "grignolino", "barbera"])


def with_batch_norm(n_features: int, n_classes: int, width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Linear(n_features, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, n_classes)
    )


def fitted(**params: Any) -> GenCEClassifier:
    return GenCEClassifier(**{"random_state": 0, "max_iter": 40, **params}).fit(X[::2], y[::2])


def test_string_labels_and_consistent_outputs() -> None:
    model = fitted().fit(X[::2], NAMES[y[::2]])
    assert list(model.classes_) == sorted(NAMES)
    probabilities, scores = model.predict_proba(X), model.decision_function(X)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probabilities.argmax(1)])
    np.testing.assert_array_equal(scores.argmax(1), probabilities.argmax(1))
    assert model.score(X[1::2], NAMES[y[1::2]]) > 0.9
    assert model.n_iter_ == len(model.loss_curve_) <= 40
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert fitted(network="mlp").n_iter_ == 40


def test_two_classes_have_one_score() -> None:
    data, target = load_breast_cancer(return_X_y=True)
    data = StandardScaler().fit_transform(data)
    model = GenCEClassifier(random_state=0, max_iter=30).fit(data[:200], target[:200])
    scores = model.decision_function(data)
    assert scores.shape == (len(data),)
    np.testing.assert_array_equal(scores > 0, model.predict(data) == 1)


def test_same_seed_same_weights_and_torch_is_left_alone() -> None:
    before = torch.get_rng_state()
    one, other, third = fitted(batch_size=16), fitted(batch_size=16), fitted(batch_size=16, random_state=1)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    assert not np.allclose(one.predict_proba(X), third.predict_proba(X))


@pytest.mark.parametrize("network", ["mlp", "linear", with_batch_norm, partial(with_batch_norm, width=8)])
def test_networks_and_pickles(network: Any) -> None:
    model = fitted(network=network, batch_size=32)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert model.score(X[1::2], y[1::2]) > 0.85
    assert not hasattr(clone(model), "module_")


@pytest.mark.parametrize("loss", ["gence", "ce", "mae", "brier", "generalized_ce", "focal", "logit_adjusted", "cosine"])
def test_every_loss_on_logits_trains(loss: str) -> None:
    assert fitted(loss=loss).score(X[1::2], y[1::2]) > 0.9


def test_grid_search_over_loss_and_anchor() -> None:
    grid = {"genceclassifier__loss": ["ce", "gence"], "genceclassifier__anchor": [0.0, 0.1]}
    pipeline = make_pipeline(StandardScaler(), GenCEClassifier(random_state=0, max_iter=10))
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.best_score_)
    # The anchor is GenCE's alone.
    by_params = dict(zip(map(str, search.cv_results_["params"]), search.cv_results_["mean_test_score"], strict=True))
    ce = [score for params, score in by_params.items() if "'ce'" in params]
    gence = [score for params, score in by_params.items() if "'gence'" in params]
    assert ce[0] == ce[1]
    assert gence[0] != gence[1]


def test_calibrated_classifier() -> None:
    calibrated = CalibratedClassifierCV(GenCEClassifier(random_state=0, max_iter=20), cv=2, method="sigmoid")
    calibrated.fit(X, y, sample_weight=np.linspace(0.5, 1.5, len(X)))
    assert log_loss(y, calibrated.predict_proba(X)) < 0.5


def test_integer_weights_are_repeated_rows() -> None:
    data, target = load_iris(return_X_y=True)
    weights = np.arange(len(data)) % 4
    weighted = GenCEClassifier(random_state=0, max_iter=30).fit(data, target, sample_weight=weights)
    repeated = GenCEClassifier(random_state=0, max_iter=30).fit(data.repeat(weights, 0), target.repeat(weights))
    np.testing.assert_allclose(weighted.predict_proba(data), repeated.predict_proba(data), rtol=1e-8)
    unweighted = GenCEClassifier(random_state=0, max_iter=30).fit(data, target)
    assert not np.allclose(weighted.predict_proba(data), unweighted.predict_proba(data), rtol=1e-3)


def test_early_stopping_keeps_the_best_epoch() -> None:
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(len(y)) < 0.4, rng.integers(0, 3, len(y)), y)
    model = GenCEClassifier(
        random_state=0, early_stopping=True, max_iter=300, learning_rate=0.05, validation_fraction=0.3
    ).fit(X, noisy)
    assert model.n_iter_ < 300
    curve = model.validation_curve_
    assert curve is not None
    assert int(np.argmin(curve)) == model.n_iter_ - 1 - model.n_iter_no_change
    # The rows that were held out, drawn again: their log loss is the curve's smallest value.
    _, held_out = train_test_split(
        np.arange(len(X)), test_size=0.3, random_state=np.random.RandomState(0), stratify=noisy
    )
    np.testing.assert_allclose(log_loss(noisy[held_out], model.predict_proba(X[held_out])), min(curve))
    assert fitted().validation_curve_ is None


def held_out(data: Any, target: Any, seeds: range) -> np.ndarray:
    """Accuracy and log loss of ours and of scikit-learn's logistic regression on the same halves: (splits, 2, 2)."""
    found = []
    for seed in seeds:
        train, test, a, b = train_test_split(data, target, test_size=0.5, stratify=target, random_state=seed)
        ours, theirs = (
            GenCEClassifier(random_state=seed),
            LogisticRegressionCV(
                Cs=10, scoring="neg_log_loss", max_iter=1000, l1_ratios=(0.0,), use_legacy_attributes=False
            ),
        )
        models = [make_pipeline(StandardScaler(), model).fit(train, a) for model in (ours, theirs)]
        found.append([[model.score(test, b), log_loss(b, model.predict_proba(test))] for model in models])
    return np.array(found)


@pytest.mark.parametrize("load", [load_wine, load_digits])
def test_the_defaults_reach_logistic_regression_with_its_penalty_chosen(load: Any) -> None:
    data, target = load(return_X_y=True)
    ours, theirs = held_out(data[:600], target[:600], range(3)).mean(0)
    assert ours[0] > theirs[0] - 0.01
    assert ours[1] < theirs[1] + 0.05


def test_weight_decay_is_chosen_among_those_tried() -> None:
    model = fitted()
    tried = model.cv_log_loss_
    assert tried is not None
    assert model.weight_decay_ == min(tried, key=tried.__getitem__)
    assert list(tried) == sorted(tried, reverse=True)
    given = fitted(weight_decay=model.weight_decay_)
    assert given.cv_log_loss_ is None
    np.testing.assert_array_equal(given.predict_proba(X), model.predict_proba(X))
    # A single row per class leaves nothing to hold out, and one class has nothing to tell apart.
    alone = GenCEClassifier().fit(X[[0, 70, 150]], y[[0, 70, 150]])
    assert alone.cv_log_loss_ == {}
    assert alone.score(X, y) > 0.5


def test_float32_is_close_to_float64() -> None:
    np.testing.assert_allclose(fitted(dtype="float32").predict_proba(X), fitted().predict_proba(X), atol=5e-3)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"loss": "supcon"}, "loss: expected a loss on logits"),
        ({"loss": "genec"}, "did you mean 'gence'"),
        ({"network": "resnet"}, 'network: expected "mlp", "linear" or a function'),
        ({"max_iter": 0}, "max_iter: expected at least 1, got 0"),
        ({"batch_size": 0}, "batch_size: expected at least 1"),
        ({"dtype": "float16"}, 'dtype: expected "float64" or "float32"'),
        ({"anchor": -1.0}, "anchor"),
        ({"weight_decay": "cv"}, 'weight_decay: expected a number >= 0 or "auto"'),
        ({"weight_decay": -1.0}, 'weight_decay: expected a number >= 0 or "auto"'),
    ],
)
def test_wrong_parameters_are_named(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(**params)


def test_wrong_factory_and_weights_are_named() -> None:
    with pytest.raises(TypeError, match=r"network: expected a function that returns an nn\.Module, got int"):
        fitted(network=lambda n_features, n_classes: n_features)
    with pytest.raises(ValueError, match="sample_weight: expected numbers >= 0"):
        GenCEClassifier().fit(X, y, sample_weight=-np.ones(len(y)))
    with pytest.raises(ValueError, match=r"(?i)sample.weight"):  # scikit-learn's own words from 1.9 on
        GenCEClassifier().fit(X, y, sample_weight=np.zeros(len(y)))


def test_early_stopping_holds_out_rows_that_count() -> None:
    data, target = load_iris(return_X_y=True)
    weights = np.zeros(150)
    weights[::15] = 1.0  # ten rows; a tenth of all 150 would mostly be rows that do not count
    model = GenCEClassifier(early_stopping=True, random_state=0, max_iter=20).fit(data, target, weights)
    again = GenCEClassifier(early_stopping=True, random_state=0, max_iter=20).fit(data[::15], target[::15])
    assert model.validation_curve_ is not None
    assert np.isfinite(model.validation_curve_).all()
    assert model.validation_curve_ == again.validation_curve_
    with pytest.raises(ValueError, match=r"validation_fraction: 0\.1 of the 1 rows .* leaves none to train on"):
        GenCEClassifier(early_stopping=True).fit(data, target, np.eye(150)[0])
    bagged = BaggingClassifier(
        GenCEClassifier(early_stopping=True, random_state=0, max_iter=2), n_estimators=40, random_state=0
    ).fit(data[::5], target[::5])
    assert all(np.isfinite(one.validation_curve_).all() for one in bagged.estimators_)


@pytest.mark.parametrize("outputs", [2, 5])
def test_a_network_with_the_wrong_number_of_outputs_is_named(outputs: int) -> None:
    with pytest.raises(ValueError, match=rf"network: expected .* shape \(89, 3\) here, got \(89, {outputs}\)"):
        fitted(network=lambda n_features, n_classes: nn.Linear(n_features, outputs))


@pytest.mark.skipif(not embedded_encoder_is_installed(), reason="the extra pretrained is not installed")
def test_images_are_read_through_an_encoder(tmp_path, monkeypatch):
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "cache"))
    photographs = load_sample_images().images
    draw = np.random.default_rng(0)
    places = [(k, draw.integers(0, 300), draw.integers(0, 500)) for k in (0, 1) for _ in range(20)]
    X = np.stack([photographs[k][top : top + 64, left : left + 64] for k, top, left in places])
    y = np.array(["china", "flower"])[[k for k, *_ in places]]
    model = GenCEClassifier("linear", encoder="efficientnet_lite0", learning_rate=0.1, random_state=0)
    model.fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) >= 0.9
    names = []
    for i, image in enumerate(X[1::2]):
        names.append(str(tmp_path / f"{i}.png"))
        Image.fromarray(image).save(names[-1])
    assert (model.predict(names) == model.predict(X[1::2])).mean() >= 0.9  # files are resized by another filter
    with pytest.raises(ValueError, match="with encoder='efficientnet_lite0' expected images, uint8"):
        model.fit(np.zeros((4, 3)), y[:4])


def test_the_advice_is_what_was_measured():
    """The docstring's figures, from the record."""
    place = Path(__file__).parents[2] / "results" / "bench" / "estimator.json"
    found = {(row["data"], row["model"]): row for row in json.loads(place.read_text())["results"]}
    for (_, model), row in found.items():
        if model == "GenCEClassifier()":
            mean, spread = row["accuracy_difference"]
            assert -0.5 < mean < 0.7
            assert row["log_loss_difference"][0] < 0.01
            assert mean > -2.8 * spread / row["splits"] ** 0.5
    embeddings = next(name for name, _ in found if "MiniLM" in name)
    ours = found[embeddings, "GenCEClassifier()"]["accuracy"][0]
    assert round(ours - found[embeddings, "LogisticRegression()"]["accuracy"][0]) == 4
    assert round(found[embeddings, 'GenCEClassifier("mlp")']["accuracy_difference"][0]) == -2
    assert round(found["digits", 'GenCEClassifier("mlp")']["accuracy_difference"][0]) == 1
    assert "within 0.7 points and 0.01 nats" in inspect.getdoc(GenCEClassifier)
