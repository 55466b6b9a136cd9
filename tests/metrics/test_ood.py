"""OOD scores and areas: orientation, ties, scikit-learn, a double loop."""

import math

import pytest
import torch
from hypothesis import given
from sklearn import metrics as sk
from torch.testing import assert_close

from gence.metrics import (
    aupr_in,
    aupr_out,
    auroc,
    fpr_at_tpr,
    max_logit,
    max_probability,
    negative_energy,
    negative_entropy,
    ood_metrics,
    score_histograms,
)
from tests.metrics.strategies import score_pairs

AREAS = [auroc, aupr_in, aupr_out, fpr_at_tpr]


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


def labelled(inside, outside):
    return [1] * len(inside) + [0] * len(outside), torch.cat([inside, outside]).double().numpy()


def test_scores_are_higher_for_the_surer_prediction():
    logits = torch.tensor([[5.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    for score in (negative_entropy, max_probability, negative_energy, max_logit):
        values = score(logits)
        assert values.dtype == torch.float64
        assert values[0] > values[1] > values[2]


def test_scores_by_hand():
    logits = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    assert_close(negative_entropy(logits), f64([0.25 * math.log(0.25) + 0.75 * math.log(0.75)]))
    assert_close(max_probability(logits), f64([0.75]))
    assert_close(negative_energy(logits), f64([math.log(4.0)]))
    assert_close(negative_energy(logits, temperature=2.0), f64([2 * math.log(1 + math.sqrt(3.0))]))


def test_scores_survive_extreme_logits():
    logits = torch.tensor([[1e4, -1e4], [0.0, -math.inf]])
    assert_close(negative_entropy(logits), f64([0.0, 0.0]))
    assert_close(max_probability(logits), f64([1.0, 1.0]))
    assert_close(negative_energy(logits), f64([1e4, 0.0]))


def test_perfect_and_reversed():
    high, low = torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0])
    assert [metric(high, low).item() for metric in AREAS] == [1.0, 1.0, 1.0, 0.0]
    assert auroc(low, high).item() == 0.0
    assert fpr_at_tpr(low, high).item() == 1.0


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 1), (7, 21)])
def test_all_scores_equal(n, m):
    same = (torch.full((n,), 0.3), torch.full((m,), 0.3))
    assert_close(auroc(*same), f64(0.5))
    assert_close(fpr_at_tpr(*same), f64(1.0))
    assert_close(aupr_in(*same), f64(n / (n + m)))
    assert_close(aupr_out(*same), f64(m / (n + m)))


@given(score_pairs())
def test_agrees_with_scikit_learn(pair):
    labels, scores = labelled(*pair)
    assert_close(auroc(*pair), f64(sk.roc_auc_score(labels, scores)))
    assert_close(aupr_in(*pair), f64(sk.average_precision_score(labels, scores)))
    assert_close(aupr_out(*pair), f64(sk.average_precision_score([1 - label for label in labels], -scores)))
    false, true, _ = sk.roc_curve(labels, scores, drop_intermediate=False)
    assert_close(fpr_at_tpr(*pair), f64(false[true >= 0.95 - 1e-12][0]))


@given(score_pairs())
def test_auroc_equals_the_double_loop_and_its_symmetry(pair):
    inside, outside = pair
    wins = sum((a > b) + 0.5 * (a == b) for a in inside.tolist() for b in outside.tolist())
    assert auroc(inside, outside).item() == wins / (len(inside) * len(outside))
    assert_close(auroc(inside, outside) + auroc(outside, inside), f64(1.0))
    assert_close(auroc(inside.flip(0), outside), auroc(inside, outside), rtol=0, atol=0)
    for metric in AREAS:
        assert 0 <= metric(inside, outside).item() <= 1


@pytest.mark.parametrize("n", [20, 60, 100, 140, 1000, 10_000])
@pytest.mark.parametrize("percent", [5, 10, 70, 80, 90, 95, 100])
def test_a_share_of_the_rows_is_not_one_row_more(n, percent):
    # Scores 1..n: a threshold of lost + 1 keeps exactly that share, so an OOD row right below it is rejected. The
    # floats 0.7, 0.9 and 0.95 lie on different sides of the fractions they stand for.
    inside, lost = torch.arange(1, n + 1).double(), n * (100 - percent) // 100
    assert fpr_at_tpr(inside, f64([lost + 0.5]), percent / 100).item() == 0.0
    assert fpr_at_tpr(inside, f64([lost + 1.0]), percent / 100).item() == 1.0


def test_infinite_scores_have_a_rank():
    assert_close(auroc(f64([math.inf, 0.0]), f64([-math.inf, 0.0])), f64(0.875))


def test_ood_metrics_names_and_values():
    generator = torch.Generator().manual_seed(0)
    inside = 3 * torch.randn(50, 4, generator=generator)
    outside = torch.randn(30, 4, generator=generator)
    found = ood_metrics(inside, outside)
    scores = {
        "entropy": negative_entropy,
        "confidence": max_probability,
        "energy": negative_energy,
        "max_logit": max_logit,
    }
    metrics = {"auroc": auroc, "fpr95": fpr_at_tpr, "aupr_in": aupr_in, "aupr_out": aupr_out}
    assert set(found) == {f"{metric}_{score}" for metric in metrics for score in scores}
    for metric, function in metrics.items():
        for score, of in scores.items():
            assert_close(found[f"{metric}_{score}"], function(of(inside), of(outside)).item(), rtol=1e-12, atol=0)
    assert found["auroc_entropy"] > 0.6


def test_histograms_hold_every_score():
    inside, outside = torch.tensor([0.0, 0.5, 1.0, 1.0]), torch.tensor([-1.0, 0.25])
    found = score_histograms(inside, outside, bins=4)
    assert_close(found.edges, f64([-1.0, -0.5, 0.0, 0.5, 1.0]))
    assert found.id_count.tolist() == [0, 0, 1, 3]
    assert found.ood_count.tolist() == [1, 0, 1, 0]
    constant = score_histograms(torch.ones(3), torch.ones(2), bins=5)
    assert constant.id_count.tolist() == [0, 0, 3, 0, 0]
    assert constant.ood_count.sum().item() == 2


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: auroc(torch.zeros(0), torch.zeros(1)), ValueError, r"id_scores: shape \(0,\)"),
        (lambda: auroc(torch.zeros(1), torch.zeros(1, 2)), ValueError, r"ood_scores: shape \(1, 2\)"),
        (lambda: auroc(torch.zeros(1), torch.tensor([math.nan])), ValueError, "ood_scores: row 0 is NaN"),
        (lambda: auroc(torch.zeros(1).int(), torch.zeros(1)), TypeError, "id_scores: dtype"),
        (lambda: auroc([0.5], torch.zeros(1)), TypeError, "id_scores: list"),
        (lambda: fpr_at_tpr(torch.zeros(1), torch.zeros(1), tpr=95), ValueError, "tpr: 95"),
        (lambda: negative_energy(torch.zeros(1, 2), temperature=0.0), ValueError, "temperature: 0.0"),
        (lambda: ood_metrics(torch.zeros(1, 2), torch.zeros(1, 3)), ValueError, "ood_logits: 3 classes"),
        (lambda: ood_metrics(torch.zeros(1, 2), torch.full((1, 2), math.nan)), ValueError, "ood_logits: row 0"),
        (lambda: score_histograms(torch.zeros(1), torch.tensor([math.inf])), ValueError, "finite scores"),
    ],
)
def test_refuses_with_a_clear_error(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_what_the_cpu_gives():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(500, 10, generator=generator), torch.randn(300, 10, generator=generator)
    on_gpu = ood_metrics(inside.cuda(), outside.cuda())
    for name, value in ood_metrics(inside, outside).items():
        assert_close(on_gpu[name], value, rtol=1e-9, atol=1e-12)
