from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gence.lab.models import create_model
from gence.lab.train.cohort import train_cohort
from gence.lab.train.contrastive import encode, fit_linear_head
from tests.lab.small_runs import small_spec


def blobs(n: int = 200, K: int = 3, d: int = 5):
    labels = torch.arange(n) % K
    return torch.randn(n, d) + 2.0 * F.one_hot(labels, d), labels


def test_the_head_is_at_the_minimum():
    features, labels = blobs()
    head = nn.Linear(5, 3)
    fit_linear_head(head, features, labels)
    loss = F.cross_entropy(head(features), labels) + 1e-4 * head.weight.square().sum()
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-4


def test_the_head_is_scikit_learns():
    from sklearn.linear_model import LogisticRegression

    features, labels = blobs()
    head = nn.Linear(5, 3)
    fit_linear_head(head, features, labels, penalty=1e-2)
    # Its objective is C * (sum of losses) + |W|^2 / 2.
    other = LogisticRegression(C=1 / (2 * 1e-2 * len(labels)), max_iter=1000, tol=1e-8).fit(features, labels)
    torch.testing.assert_close(
        head(features).softmax(1).detach().double(), torch.from_numpy(other.predict_proba(features)), atol=1e-3, rtol=0
    )


def test_where_the_head_began_does_not_matter():
    features, labels = blobs()
    heads = [nn.Linear(5, 3), nn.Linear(5, 3)]
    for head in heads:
        fit_linear_head(head, features, labels)
    torch.testing.assert_close(heads[0].weight, heads[1].weight, atol=0, rtol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_features_that_are_not_finite_leave_the_head_at_zero(bad):
    features, labels = blobs()
    features[3, 1] = bad
    head = nn.Linear(5, 3)
    fit_linear_head(head, features, labels)
    torch.testing.assert_close(head.weight.detach(), torch.zeros(3, 5))


def test_features_are_those_of_evaluation():
    model = create_model("small_cnn", num_classes=3, in_channels=1, image_size=8, seed=0)
    images = torch.randn(20, 1, 8, 8)
    torch.testing.assert_close(encode(model, images), model.eval().features(images).detach())


def test_two_stages_learn_digits():
    # Labels of the head's epochs once shared memory that later epochs overwrote: 0.6 here, with good features.
    (result,) = train_cohort(
        [small_spec("supcon", n=100, **{"recipe.epochs": 30, "recipe.batch_size": 50})], device="cpu"
    )
    assert result.metrics["train_accuracy"] == 1.0
    assert result.metrics["accuracy"] > 0.88


def test_temperature_reaches_the_loss():
    cold, warm = train_cohort(
        [small_spec("supcon(temperature=0.05)"), small_spec("supcon(temperature=1)")], device="cpu"
    )
    assert cold.curves["train_loss"] != warm.curves["train_loss"]


def test_label_smoothing_means_nothing_here():
    with pytest.raises(ValueError, match="label_smoothing: supcon has no soft targets"):
        train_cohort([small_spec("supcon(label_smoothing=0.1)")], device="cpu")
