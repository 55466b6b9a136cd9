"""Detectors on features: naive references, pytorch-ood, real features, and what they refuse."""

import numpy as np
import pytest
import torch
from pytorch_ood.detector import KNN, Mahalanobis as TheirMahalanobis, MaxLogit, ViM
from sklearn.covariance import LedoitWolf
from torch.testing import assert_close

from gence.lab.data import load
from gence.metrics import (
    auroc,
    detection_metrics,
    fit_knn,
    fit_mahalanobis,
    fit_vim,
    max_logit,
)

SHAPES = [(60, 7, 3), (30, 40, 4), (12, 25, 2)]  # rows, features, classes: more rows than features, and fewer


def problem(n, D, K, seed=0):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % K
    means = 3 * torch.randn(K, D, generator=draw)
    rows = means[labels] + torch.randn(n, D, generator=draw) @ torch.randn(D, D, generator=draw) / D**0.5
    other = 4 * torch.randn(20, D, generator=draw)
    weight, bias = torch.randn(K, D, generator=draw), torch.randn(K, generator=draw)
    return rows, labels, torch.cat([rows[:5] + 0.1, other]), weight, bias


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("k", [1, 5])
def test_knn_is_the_loop_and_pytorch_ood(shape, k):
    rows, labels, new, *_ = problem(*shape)
    found = fit_knn(rows, k)(new)
    for x, score in zip(new.double(), found, strict=True):
        distances = [float((x / x.norm() - row / row.norm()).norm()) for row in rows.double()]
        assert -score.item() == pytest.approx(sorted(distances)[k - 1], abs=2e-3)
    theirs = KNN(None, k=k).fit_features(rows, labels).predict_features(new)
    assert_close(-found, torch.as_tensor(theirs, dtype=torch.float64), atol=2e-3, rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shrink", [False, True])
def test_mahalanobis_is_the_loop(shape, shrink):
    rows, labels, new, *_ = problem(*shape)
    x, y = rows.double().numpy(), labels.numpy()
    means = np.stack([x[y == k].mean(0) for k in np.unique(y)])
    within = x - means[y]
    if shrink:
        inverse = LedoitWolf(assume_centered=True).fit(within).precision_
    else:
        inverse = np.linalg.pinv(within.T @ within / len(x), rcond=1e-10, hermitian=True)
    expected = [-min((row - mean) @ inverse @ (row - mean) for mean in means) for row in new.double().numpy()]
    found = fit_mahalanobis(rows, labels, shrink=shrink)(new)
    assert_close(found, torch.tensor(expected), rtol=1e-6, atol=1e-8)


def test_mahalanobis_is_that_of_pytorch_ood_times_a_constant():
    rows, labels, new, *_ = problem(200, 7, 3)
    theirs = TheirMahalanobis(None).fit_features(rows, labels).predict_features(new)
    # Half the distance by the sum, not the mean, of squares.
    found = -fit_mahalanobis(rows, labels, shrink=False)(new) / (2 * len(rows))
    assert_close(found, theirs.double(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_vim_is_the_loop_and_pytorch_ood(shape):
    rows, labels, new, weight, bias = problem(*shape)
    dim = 5
    found = fit_vim(rows, rows @ weight.T + bias, weight, bias, dim)(new, new @ weight.T + bias)
    x, w, b, z = (value.double().numpy() for value in (rows, weight, bias, new))
    origin = -np.linalg.pinv(w) @ b
    _, vectors = np.linalg.eigh((x - origin).T @ (x - origin) / len(x))
    null = vectors[:, :-dim]
    alpha = (x @ w.T + b).max(1).mean() / np.linalg.norm((x - origin) @ null, axis=1).mean()
    expected = np.log(np.exp(z @ w.T + b).sum(1)) - alpha * np.linalg.norm((z - origin) @ null, axis=1)
    assert_close(found, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    theirs = ViM(None, dim, weight, bias).fit_features(rows, labels).predict_features(new)
    assert_close(-found, theirs.double(), rtol=1e-3, atol=1e-2)


def test_max_logit_is_that_of_pytorch_ood():
    logits = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    assert_close(-max_logit(logits), MaxLogit.score(logits).double())


def test_on_real_digits_every_detector_tells_digits_it_has_never_seen():
    digits = load("digits")
    x, y = digits.train.images.flatten(1).float() / 16, digits.train.labels
    new, label = digits.test.images.flatten(1).float() / 16, digits.test.labels
    known = y < 8
    x, y = x[known], y[known]
    inside, outside = new[label < 8], new[label >= 8]
    hot = torch.nn.functional.one_hot(y, 8).float()
    weight = torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1)], 1), 8 * hot, driver="gelsd").solution.T
    weight, bias = weight[:, :-1], weight[:, -1]
    knn, gauss, vim = fit_knn(x, 10), fit_mahalanobis(x, y), fit_vim(x, x @ weight.T + bias, weight, bias)
    scores = [
        {"knn": knn(rows), "mahalanobis": gauss(rows), "vim": vim(rows, rows @ weight.T + bias)}
        for rows in (inside, outside)
    ]
    found = detection_metrics(*scores)
    assert found["auroc_knn"] > 0.9
    assert found["auroc_mahalanobis"] > 0.85
    assert found["auroc_vim"] > 0.7
    assert found["auroc_knn"] == auroc(scores[0]["knn"], scores[1]["knn"]).item()


def test_few_and_constant_rows_give_finite_scores():
    draw = torch.Generator().manual_seed(0)
    for n, D in ((2, 9), (4, 30), (5, 3)):
        rows = torch.randn(n, D, generator=draw)
        rows[:, 0] = 1.0
        labels = torch.arange(n) % 2
        weight = torch.zeros(2, D)
        for found in (
            fit_knn(rows, 1)(rows),
            fit_mahalanobis(rows + torch.randn(n, D, generator=draw), labels % 1)(rows),
            fit_vim(rows, torch.zeros(n, 2), weight, torch.zeros(2))(rows, torch.zeros(n, 2)),
        ):
            assert bool(found.isfinite().all())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_knn(torch.ones(3, 2), 4), "k: 4 was given"),
        (lambda: fit_knn(torch.full((3, 2), torch.nan)), "NaN or infinite"),
        (lambda: fit_knn(torch.ones(3)), r"tensor \(n, D\)"),
        (lambda: fit_knn(torch.ones(3, 2), 1)(torch.ones(3, 4)), r"\(m, 2\) expected"),
        (lambda: fit_mahalanobis(torch.eye(3), torch.tensor([0, 1])), "2 were given for 3 rows"),
        (lambda: fit_mahalanobis(torch.eye(2), torch.tensor([0, 1])), "all equal"),
        (lambda: fit_vim(torch.eye(2), torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)), "weight and bias"),
        (lambda: fit_vim(torch.eye(2), torch.ones(2, 3), torch.ones(3, 2), torch.ones(3), 5), "dim: 5"),
        (lambda: detection_metrics({"a": torch.ones(2)}, {}), "detectors"),
    ],
)
def test_refuses_with_a_clear_error(call, words):
    with pytest.raises(ValueError, match=words):
        call()
