"""Accuracy, likelihood and Brier score: by hand, against scikit-learn, and for what they refuse."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from sklearn import metrics as sk
from torch.testing import assert_close

from gence.metrics import (
    balanced_accuracy,
    brier_score,
    classification_metrics,
    confusion_matrix,
    negative_log_likelihood,
    per_class_accuracy,
    top1_accuracy,
)
from tests.metrics.strategies import predictions

KEYS = ["accuracy", "balanced_accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "debiased_ece", "ks"]
KEYS += ["mce", "aurc", "mean_confidence"]


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.fixture
def sample():
    generator = torch.Generator().manual_seed(3)
    return 2 * torch.randn(500, 7, generator=generator), torch.randint(7, (500,), generator=generator)


def test_agrees_with_scikit_learn(sample):
    logits, target = sample
    probs, predicted = logits.double().softmax(1), logits.argmax(1)
    assert_close(top1_accuracy(logits, target), f64(sk.accuracy_score(target, predicted)))
    assert_close(balanced_accuracy(logits, target), f64(sk.balanced_accuracy_score(target, predicted)))
    assert_close(confusion_matrix(logits, target), torch.tensor(sk.confusion_matrix(target, predicted)))
    assert_close(per_class_accuracy(logits, target), f64(sk.recall_score(target, predicted, average=None)))
    # scikit-learn's log_loss clips probabilities at machine epsilon, so it is right only for logits as mild as these.
    assert_close(negative_log_likelihood(logits, target), f64(sk.log_loss(target, probs)))
    one_hot = torch.eye(7, dtype=torch.float64)[target]
    assert_close(brier_score(probs, target), f64(7 * sk.mean_squared_error(one_hot, probs)))


def test_probabilities_and_logits_have_the_same_accuracy(sample):
    logits, target = sample
    assert_close(top1_accuracy(logits.softmax(1), target), top1_accuracy(logits, target))


def test_nll_is_exact_where_probabilities_underflow():
    logits = torch.tensor([[0.0, 1e4]])
    assert_close(negative_log_likelihood(logits, torch.tensor([0])), f64(1e4))
    assert_close(negative_log_likelihood(logits, torch.tensor([1])), f64(0.0))


def test_a_class_that_is_ruled_out():
    logits = torch.tensor([[0.0, -math.inf]])
    assert_close(negative_log_likelihood(logits, torch.tensor([0])), f64(0.0))
    assert negative_log_likelihood(logits, torch.tensor([1])).item() == math.inf


def test_a_missing_class_is_nan_and_not_averaged():
    scores, target = torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 0])
    assert_close(per_class_accuracy(scores, target), f64([2 / 3, math.nan, math.nan]), equal_nan=True)
    assert_close(balanced_accuracy(scores, target), f64(2 / 3))


def test_equal_scores_go_to_the_lowest_class():
    assert_close(top1_accuracy(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])), f64(0.75))


@pytest.mark.parametrize(
    ("probs", "expected"), [([[1.0, 0.0]], 0.0), ([[0.0, 1.0]], 2.0), ([[0.5, 0.5]], 0.5), ([[0.2, 0.8]], 1.28)]
)
def test_brier_by_hand(probs, expected):
    assert_close(brier_score(f64(probs), torch.tensor([0])), f64(expected))


@given(predictions())
def test_summary_is_bounded_and_agrees_with_the_single_functions(sample):
    logits, target = sample
    found = classification_metrics(logits, target)
    assert list(found) == KEYS
    assert all(0 <= value <= 1 for name, value in found.items() if name not in ("nll", "brier"))
    assert found["nll"] >= 0
    assert 0 <= found["brier"] <= 2
    assert found["mce"] >= found["ece"] - 1e-12
    assert_close(found["accuracy"], top1_accuracy(logits, target).item())
    assert_close(found["balanced_accuracy"], balanced_accuracy(logits, target).item())
    assert_close(found["nll"], negative_log_likelihood(logits, target).item())
    assert_close(found["brier"], brier_score(logits.double().softmax(1), target).item())


@given(predictions())
def test_summary_does_not_depend_on_the_order_of_the_rows(sample):
    logits, target = sample
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(1))
    one, other = classification_metrics(logits, target), classification_metrics(logits[order], target[order])
    for name in KEYS:
        assert_close(one[name], other[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_type_comes_back_in_float64(sample, dtype):
    logits, target = sample
    logits = logits.to(dtype).requires_grad_()
    result = brier_score(logits.softmax(1), target)
    assert result.dtype == torch.float64
    assert not result.requires_grad
    assert_close(result, brier_score(logits.double().softmax(1), target), rtol=0, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_every_integer_type_of_target(sample, dtype):
    logits, target = sample
    assert classification_metrics(logits, target.to(dtype)) == classification_metrics(logits, target)


LOGITS, TARGET = torch.zeros(3, 2), torch.tensor([0, 1, 0])


@pytest.mark.parametrize(
    ("logits", "target", "error", "words"),
    [
        (torch.zeros(3), TARGET, ValueError, r"logits: shape \(3,\)"),
        (torch.zeros(0, 2), TARGET[:0], ValueError, r"logits: shape \(0, 2\)"),
        (torch.zeros(3, 0), TARGET, ValueError, r"logits: shape \(3, 0\)"),
        (torch.zeros(3, 2, 4), TARGET, ValueError, "Flatten"),
        (torch.zeros(3, 2).long(), TARGET, TypeError, "logits: dtype torch.int64"),
        ([[0.0, 1.0]], TARGET, TypeError, "logits: list was given"),
        (torch.tensor([[0.0, 1.0], [0.0, math.nan]]), TARGET[:2], ValueError, "logits: row 1 holds NaN"),
        (torch.tensor([[0.0, math.inf]]), TARGET[:1], ValueError, "logits: row 0"),
        (torch.tensor([[-math.inf, -math.inf]]), TARGET[:1], ValueError, "logits: row 0"),
        (LOGITS, TARGET[:2], ValueError, r"target: shape \(2,\) was given, \(3,\) expected"),
        (LOGITS, LOGITS, ValueError, "target: shape"),
        (LOGITS, TARGET.double(), TypeError, "target: dtype torch.float64"),
        (LOGITS, TARGET.bool(), TypeError, "target: dtype torch.bool"),
        (LOGITS, TARGET + 1, ValueError, "from 1 to 2 were given, 0 to 1 expected"),
        (LOGITS, TARGET - 100, ValueError, "ignored"),
        (LOGITS, [0, 1, 0], TypeError, "target: list"),
        (LOGITS, TARGET.to("meta"), ValueError, "target: is on meta"),
    ],
)
def test_refuses_with_a_clear_error(logits, target, error, words):
    with pytest.raises(error, match=words):
        classification_metrics(logits, target)


@pytest.mark.parametrize(
    "probs", [[[2.0, -1.0]], [[0.5, 0.6]], [[0.0, 0.0]], [[math.nan, 1.0]], [[3.1, 0.2]], [[math.inf, 0.0]]]
)
def test_logits_given_as_probabilities_are_refused(probs):
    with pytest.raises(ValueError, match=r"probs: row 0.*softmax"):
        brier_score(torch.tensor(probs), torch.tensor([0]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_what_the_cpu_gives(sample):
    logits, target = sample
    on_gpu = classification_metrics(logits.cuda(), target.cuda())
    for name, value in classification_metrics(logits, target).items():
        assert_close(on_gpu[name], value, rtol=1e-10, atol=1e-12)


def test_many_classes_take_little_memory_beside_their_logits():
    code = """
import resource, torch
from gence.metrics import classification_metrics, marginal_divergence
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
logits, target = torch.randn(4_000, 10_000), torch.arange(4_000)
before = peak()
marginal_divergence(logits, torch.full((10_000,), 1e-4))
classification_metrics(logits, target)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 120, "megabytes; in float64 the logits would take 305"
