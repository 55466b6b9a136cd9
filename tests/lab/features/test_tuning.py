"""Cross-validation: equal budgets, only training rows, and the references on the same folds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from gence.lab.data import DataError
from gence.lab.features.heads import references
from gence.lab.features.heads.problem import HEAD_RECIPE, HeadProblem, HeadRun
from gence.lab.features.heads.references import (
    REFERENCES,
    STRENGTHS,
    _logistic,
    _strengths,
    affordable_references,
    fit_references,
)
from gence.lab.features.heads.training import train_heads
from gence.lab.features.heads.tuning import (
    SPACES,
    Trial,
    choose_trial,
    cross_fit_heads,
    points,
    stratified_folds,
    tune_heads,
)
from gence.lab.spec import LossSpec
from tests.lab.features.test_heads import problem

QUICK = HEAD_RECIPE.replace(epochs=5, batch_size=20)
LOSSES = [LossSpec.parse(text) for text in ("ce", "gence(anchor=0.1)")]


def test_folds_are_stratified_and_follow_the_smallest_class() -> None:
    labels = torch.tensor([0] * 20 + [1] * 7 + [2] * 3)
    fold = stratified_folds(labels, 3, seed=0)
    assert int(fold.max()) == 2
    for k, (low, high) in enumerate([(6, 7), (2, 3), (1, 1)]):
        counts = fold[labels == k].bincount(minlength=3)
        assert low <= int(counts.min()) <= int(counts.max()) <= high
    assert not torch.equal(fold, stratified_folds(labels, 3, seed=1))


def test_a_class_with_one_sample() -> None:
    with pytest.raises(DataError, match="class 'cat' has one training sample, and cross-validation needs two"):
        stratified_folds(torch.tensor([0, 0, 1]), 2, seed=0, classes=["dog", "cat"])


def test_every_loss_tries_the_same_points_and_each_trial_is_what_it_says() -> None:
    rows = problem()
    tuned = tune_heads(rows, LOSSES, recipe=QUICK, trials=4, folds=3)
    expected = points(SPACES["sgd"], 4)
    for one in tuned:
        assert [{"lr": t.lr, "weight_decay": t.weight_decay} for t in one.trials] == expected
        assert one.best is choose_trial(one.trials, len(rows))
        assert one.recipe(QUICK).lr == one.best.lr
    fold, right = stratified_folds(rows.labels, 3, 0, 3), 0
    trial = tuned[1].trials[2]
    for k in range(3):
        kept = HeadProblem(rows.features[fold != k], rows.labels[fold != k], 3)
        run = HeadRun(loss=LOSSES[1], recipe=QUICK.replace(lr=trial.lr, weight_decay=trial.weight_decay))
        (alone,) = train_heads([kept], [run])
        right += int((alone.head.logits(rows.features[fold == k]).argmax(1) == rows.labels[fold == k]).sum())
    assert trial.accuracy == pytest.approx(right / len(rows))


def test_rows_outside_the_problem_are_not_looked_at() -> None:
    rows, index = problem(), torch.arange(0, 90, 2)
    outside = rows.features.clone()
    outside[1::2] = 1e3
    found = [
        tune_heads(HeadProblem(features, rows.labels[index], 3, index), LOSSES, recipe=QUICK, trials=3)
        for features in (rows.features, outside)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("D", [12, 150])
def test_references_on_the_same_folds(D: int) -> None:
    rows = problem(D=D)
    rows.features[:, 0] = 1.0  # a feature that does not vary
    found = fit_references(rows, stratified_folds(rows.labels, 3, seed=0))
    assert tuple(reference.name for reference in found) == REFERENCES
    for reference in found:
        logits = reference.logits(rows.features)
        assert logits.shape == (90, 3)
        right = float((logits.argmax(1) == rows.labels).double().mean())
        assert right > 0.9 or (reference.name == "majority" and right == pytest.approx(float(rows.prior.max())))
        torch.testing.assert_close(logits.exp().sum(1), torch.ones(90))
        chosen = {"logistic": {"weight_decay"}, "knn": {"k"}, "svm": {"C", "gamma"}}
        assert set(reference.chosen) == chosen.get(reference.name, set())


def test_folds_of_labels_beyond_the_classes_are_an_error() -> None:
    with pytest.raises(ValueError, match="labels: expected 0 to 1 of 2 classes, got 2"):
        stratified_folds(torch.tensor([0, 0, 1, 1, 2, 2]), 2, seed=0)


def test_references_keep_remarks_on_few_rows_to_themselves() -> None:
    few = problem(n=60, K=30)  # one row of each class where the other is held out; warnings are errors here
    found = fit_references(few, stratified_folds(few.labels, 30, seed=0))
    assert [one.name for one in found] == list(REFERENCES)


@pytest.mark.filterwarnings("error")
def test_logistic_regression_is_the_full_batch_of_cross_entropy(recwarn) -> None:
    """Both solve one problem, try the same strengths and choose by one rule; with two rows per class, silently."""
    noisy = problem(n=60, D=150)
    noisy = HeadProblem(noisy.features + 2 * torch.randn(60, 150, generator=torch.Generator().manual_seed(1)),
                        torch.arange(60) // 2, 30)  # fmt: skip
    fold_of = torch.arange(60) % 2
    (reference,) = fit_references(noisy, fold_of, ["logistic"])
    recipe = HEAD_RECIPE.replace(optimizer="lbfgs", epochs=1000)
    (tuned,) = tune_heads(noisy, LOSSES[:1], recipe=recipe, full_batch=True, fold_of=fold_of)
    assert reference.chosen == {"weight_decay": tuned.best.weight_decay}
    (one,) = train_heads([noisy], [HeadRun(loss=LOSSES[0], recipe=tuned.recipe(recipe), full_batch=True)])
    mine, theirs = one.head.logits(noisy.features).softmax(1), reference.logits(noisy.features).softmax(1)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-3)


@pytest.mark.parametrize("K", [2, 15])
def test_all_strengths_together_take_few_steps_and_each_ends_at_its_minimum(K: int) -> None:
    x = torch.randn(300, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = (x[:, :K].argmax(1) if K > 2 else (x[:, 0] > 0).long()).numpy()
    x, out, y, y_out = x[:200].numpy() / 20**0.5, x[200:].numpy() / 20**0.5, labels[:200], labels[200:]
    steps = alone = 0
    for decay, model in zip(STRENGTHS, _strengths(STRENGTHS, x, y), strict=True):
        exact = _logistic(decay, len(x)).fit(x, y)
        nll, least = (-np.log(one.predict_proba(out)[np.arange(100), y_out]).mean() for one in (model, exact))
        assert nll == pytest.approx(least, rel=0.01)
        steps, alone = steps + int(model.n_iter_[0]), alone + int(exact.n_iter_[0])
    assert 3 * steps < alone


def test_references_of_two_classes_and_of_many_pixels() -> None:
    rows = problem()
    few = HeadProblem(rows.features, (rows.labels == 1).long(), 2)
    (machine,) = fit_references(few, stratified_folds(few.labels, 2, seed=0), ["svm"])
    assert float((machine.logits(rows.features).argmax(1) == few.labels).double().mean()) > 0.9
    assert affordable_references(few, "pixels") == ("majority", "logistic", "svm")
    many = HeadProblem(torch.zeros(6000, 2000), torch.zeros(6000, dtype=torch.long), 10)
    assert affordable_references(many, "pixels") == ("majority",)
    wide, wider = (HeadProblem(torch.zeros(n, 768), torch.zeros(n, dtype=torch.long), 100) for n in (5000, 7000))
    assert "logistic" in affordable_references(wide, "features")
    assert "logistic" not in affordable_references(wider, "features")


def test_references_multiply_in_one_thread(monkeypatch) -> None:
    threads, make = [], references._knn

    def observed(*given):
        threads.extend(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return make(*given)

    monkeypatch.setattr(references, "_knn", observed)
    rows = problem()
    with threadpool_limits(2, user_api="blas"):
        fit_references(rows, stratified_folds(rows.labels, 3, seed=0), ["knn"])
    assert set(threads) == {1}


@pytest.mark.parametrize("full_batch", [False, True])
def test_cross_fitted_heads_are_a_loop_over_folds(full_batch: bool) -> None:
    rows = problem()
    recipe = QUICK.replace(optimizer="lbfgs", epochs=50) if full_batch else QUICK
    runs = [HeadRun(loss=loss, recipe=recipe, seed=seed, full_batch=full_batch) for seed in (0, 3) for loss in LOSSES]
    found = cross_fit_heads([rows], runs, folds=3)
    for run, held in zip(runs, found, strict=True):
        fold_of = stratified_folds(rows.labels, rows.num_classes, run.seed, 3)
        logits, labels = [], []
        for fold in range(3):
            kept, out = (fold_of != fold).nonzero().squeeze(1), (fold_of == fold).nonzero().squeeze(1)
            own = HeadProblem(rows.rows(kept), rows.labels[kept], rows.num_classes)
            (one,) = train_heads([own], [run])
            logits.append(one.head.logits(rows.rows(out)))
            labels.append(rows.labels[out])
        assert held is not None
        torch.testing.assert_close(held.logits, torch.cat(logits), rtol=1e-3, atol=1e-4)
        assert torch.equal(held.labels, torch.cat(labels))


def test_beyond_many_rows_one_fold_is_held_out_and_a_single_row_is_not() -> None:
    rows = problem()
    (held,) = cross_fit_heads([rows], [HeadRun(loss=LOSSES[0], recipe=QUICK)], folds=4, most=10)
    assert held is not None
    assert len(held.labels) == int((stratified_folds(rows.labels, rows.num_classes, 0, 4) == 0).sum())
    labels = torch.zeros(len(rows), dtype=torch.long)
    labels[0] = 1
    lonely = HeadProblem(rows.features, labels, 2)
    runs = [HeadRun(problem=i, loss=LOSSES[0], recipe=QUICK) for i in (0, 1)]
    found = cross_fit_heads([lonely, rows], runs, folds=2)
    assert found[0] is None
    assert found[1] is not None


def test_among_trials_that_few_rows_cannot_order_the_lowest_nll_wins() -> None:
    accuracies = ((0.78, 2.0), (0.77, 0.9), (0.70, 0.5), (0.9, float("inf")))
    trials = [Trial(1.0, 0.0, accuracy, nll) for accuracy, nll in accuracies]
    assert choose_trial(trials, 400) is trials[1]
    assert choose_trial(trials, 400, errors=0) is trials[0]
    assert choose_trial(trials, 400, errors=10) is trials[2]
    assert choose_trial(trials, 10**6) is trials[0]
