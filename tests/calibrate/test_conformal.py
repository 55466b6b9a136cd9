"""Prediction sets: the promised coverage, MAPIE's sets, and a naive loop for cross-conformal prediction."""

import math

import numpy as np
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import APSConformityScore, LACConformityScore
from sklearn.base import BaseEstimator, ClassifierMixin

from gence.calibrate import SCORES, PredictionSets, conformal_scores, cross_conformal_sets, fit_sets, sets_metrics
from tests.calibrate.test_calibrators import drawn


class Known(ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities are its input."""

    def __init__(self, K=5):
        self.K = K
        self.classes_ = np.arange(K)

    def fit(self, x, y):
        return self

    def __sklearn_is_fitted__(self):
        return True

    def predict_proba(self, x):
        return x

    def predict(self, x):
        return x.argmax(1)


class Zeros(np.random.RandomState):
    """MAPIE takes a random share of the right class's probability off its APS score; this share is 0."""

    def uniform(self, low=0.0, high=1.0, size=None):
        return np.zeros(size)


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("score", SCORES)
def test_sets_are_those_of_mapie(score, level):
    z, y = drawn(150, 5, 2.0)
    new, _ = drawn(300, 5, 2.0, seed=1)
    held, p = z.softmax(1), new.softmax(1)
    other = LACConformityScore() if score == "lac" else APSConformityScore()
    mapie = SplitConformalClassifier(
        Known(), confidence_level=level, conformity_score=other, prefit=True, random_state=Zeros()
    )
    mapie.conformalize(held.numpy(), y.numpy())
    options = {} if score == "lac" else {"conformity_score_params": {"include_last_label": False}}
    _, theirs = mapie.predict_set(p.numpy(), **options)
    ours = fit_sets(held, y, score=score, level=level)(p)
    if score == "aps":  # MAPIE never gives an empty set: the likeliest class is always in
        ours[torch.arange(len(ours)), p.argmax(1)] = True
    assert ours.tolist() == theirs[:, :, 0].tolist()


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("score", SCORES)
def test_sets_hold_the_right_class_as_often_as_promised(score, level):
    coverages = []
    for seed in range(20):
        held, y = drawn(1000, 10, 3.0, seed)  # overconfident: the promise does not need calibrated probabilities
        new, truth = drawn(2000, 10, 3.0, 1000 + seed)
        sets = fit_sets(held.softmax(1), y, score=score, level=level)(new.softmax(1))
        coverages.append(float(sets.gather(1, truth[:, None]).double().mean()))
    assert level - 0.02 <= np.mean(coverages) <= level + 0.02


def test_cross_conformal_sets_are_those_of_the_definition():
    g = torch.Generator().manual_seed(0)
    scores, fold_of = torch.rand(17, generator=g), torch.arange(17) % 3
    new = [torch.rand(6, 4, generator=g) for _ in range(3)]
    found = cross_conformal_sets(scores, fold_of, new, level=0.8)
    for i in range(6):
        for k in range(4):
            as_bad = sum(float(s) >= float(new[int(f)][i, k]) for s, f in zip(scores, fold_of, strict=True))
            assert bool(found[i, k]) == ((1 + as_bad) / 18 > 0.2 * (1 + 1e-12))


def test_cross_conformal_sets_of_one_model_are_split_conformal():
    held, y = drawn(99, 5, 2.0)
    new, _ = drawn(200, 5, 2.0, seed=1)
    own = conformal_scores(held.softmax(1)).gather(1, y[:, None]).squeeze(1)
    found = cross_conformal_sets(own, torch.zeros(99, dtype=torch.long), [conformal_scores(new.softmax(1))], level=0.9)
    assert torch.equal(found, fit_sets(held.softmax(1), y, level=0.9)(new.softmax(1)))


def test_too_few_samples_promise_nothing_and_so_everything():
    sets = fit_sets(torch.eye(3, dtype=torch.float64), torch.arange(3), level=0.9)
    assert sets.threshold == math.inf
    assert bool(sets(torch.eye(3)).all())


def test_metrics_are_those_of_the_sets():
    held, y = drawn(200, 5, 1.0)
    new, truth = drawn(300, 5, 1.0, seed=1)
    found = sets_metrics(held.softmax(1), y, new.softmax(1), truth)
    assert set(found) == {f"{what}/{s}{q}" for what in ("coverage", "set_size") for s in SCORES for q in (90, 95)}
    sets = fit_sets(held.softmax(1), y, score="aps", level=0.95)(new.softmax(1))
    assert found["set_size/aps95"] == pytest.approx(float(sets.double().sum(1).mean()))
    assert found["coverage/aps95"] == pytest.approx(float(sets.gather(1, truth[:, None]).double().mean()))


def test_errors_name_what_came():
    with pytest.raises(ValueError, match="score: 'raps' was given, expected one of lac, aps"):
        conformal_scores(torch.eye(2), "raps")
    with pytest.raises(ValueError, match="level: 90 was given"):
        fit_sets(torch.eye(2), torch.arange(2), level=90)
    assert PredictionSets("lac", 0.9, 1.0)(torch.eye(2)).all()
