from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from gence.lab.report.frame import by_seed, cells, load_rows, losses_in, ood_sets, settings
from gence.lab.spec.recipe import RECIPES
from gence.lab.spec.run import RunSpec
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store


def spec(loss="ce", seed=0, **changes):
    base = {"data": "digits", "model": "small_cnn", "recipe": RECIPES["tiny"], "subset": 100}
    return RunSpec.from_dict({**base, "loss": loss, "seed": seed}).replace(**changes)


def store_with(path, runs):
    store = Store(path)
    for run, metrics in runs:
        store.write(run, RunResult(metrics=metrics), {"device": "cpu", "commit": None})
    return store


def test_cells_count_missing_and_infinite_values_as_missing():
    frame = pd.DataFrame({"loss": ["a", "a", "a", "b"], "nll": [1.0, 3.0, math.inf, math.nan]})
    found = cells(frame, ["loss"], "nll")
    assert found.loc["a"].tolist() == pytest.approx([2.0, math.sqrt(2), 2, 3])
    assert found.loc["b", "n"] == 0
    assert math.isnan(found.loc["b", "mean"])


def test_cells_of_a_metric_nobody_has():
    frame = pd.DataFrame({"loss": ["a", "a"]})
    assert cells(frame, ["loss"], "ood/x/auroc_entropy")["n"].tolist() == [0]
    assert by_seed(frame.assign(seed=[0, 1]), "a", "nll") == {}


def test_load_rows_keeps_tuning_runs_apart(tmp_path):
    tuning = spec(seed=7, evaluate_on="val", **{"subset.val_fraction": 0.2})
    store = store_with(tmp_path, [(spec(), {"accuracy": 0.5}), (tuning, {"accuracy": 0.9})])
    assert load_rows(store)["accuracy"].tolist() == [0.5]
    assert load_rows(store, evaluate_on="val")["accuracy"].tolist() == [0.9]
    assert len(load_rows(store, keys=["0" * 16])) == 0
    assert len(load_rows(Store(tmp_path / "empty"))) == 0


def test_settings_split_sweeps_but_not_tuned_losses(tmp_path):
    tuned = [(spec("ce", s, **{"recipe.lr": 0.1}), {"accuracy": 0.5}) for s in range(2)]
    tuned += [(spec("gence", s, **{"recipe.lr": 0.3}), {"accuracy": 0.6}) for s in range(2)]
    other = [(spec("ce", 0, **{"subset.n": 200}), {"accuracy": 0.7})]
    found = settings(load_rows(store_with(tmp_path / "tuned", tuned + other)))
    assert [len(s.frame) for s in found] == [4, 1]
    assert found[0].title == "digits, 100 labels, small_cnn"
    assert found[1].title == "digits, 200 labels, small_cnn"
    sweep = [(spec("ce", 0, **{"recipe.lr": lr}), {"accuracy": 0.5}) for lr in (0.1, 0.2)]
    titles = {s.title for s in settings(load_rows(store_with(tmp_path / "sweep", sweep)))}
    assert titles == {"digits, 100 labels, small_cnn, lr 0.1", "digits, 100 labels, small_cnn, lr 0.2"}


def test_losses_and_ood_sets_of_a_real_comparison(compared):
    frame = compared.frame
    assert losses_in(frame) == ["gence", "gence(anchor=0.1)", "ce"]
    assert ood_sets(frame) == ["<b>noise<b>"]
    assert len(frame) == 9
    assert sorted(by_seed(frame, "ce", "accuracy")) == [0, 1, 2]


def test_pooled_histograms_lose_nobody():
    from gence.lab.report.frame import pooled_histogram

    draw = np.random.default_rng(0)
    histograms = []
    for shift in (0.0, 2.0):
        inside, outside = draw.normal(shift, 1, 500), draw.normal(-1, 1, 300)
        edges = np.linspace(min(inside.min(), outside.min()), max(inside.max(), outside.max()), 31)
        histograms.append(
            {"edges": edges, "id": np.histogram(inside, edges)[0], "ood": np.histogram(outside, edges)[0]}
        )
    edges, inside, outside = pooled_histogram(histograms)
    assert inside.sum() == pytest.approx(1)
    assert outside.sum() == pytest.approx(1)
    assert len(edges) == len(inside) + 1
    middle = (edges[1:] + edges[:-1]) / 2
    assert (inside * middle).sum() == pytest.approx(1.0, abs=0.15)  # halfway between the two runs


def test_pooled_reliability_weights_bins_by_their_counts():
    from gence.lab.report.frame import pooled_reliability

    tables = [
        {"count": [0, 10], "confidence": [None, 0.9], "accuracy": [None, 1.0]},
        {"count": [0, 30], "confidence": [None, 0.7], "accuracy": [None, 0.6]},
    ]
    counts, confidence, accuracy = pooled_reliability(tables)
    assert counts.tolist() == [0, 40]
    assert math.isnan(confidence[0])
    assert math.isnan(accuracy[0])
    assert confidence[1] == pytest.approx(0.75)
    assert accuracy[1] == pytest.approx(0.7)


def test_tuned_runs_beside_untuned_ones_are_one_comparison(tmp_path):
    runs = [(spec(loss, s), {"accuracy": 0.5}) for loss in ("ce", "gence") for s in range(2)]
    rates = {"ce": 0.3, "gence": 0.2}
    runs += [(spec(loss, s, **{"recipe.lr": lr}), {"accuracy": 0.6}) for loss, lr in rates.items() for s in range(2)]
    found = settings(load_rows(store_with(tmp_path / "both", runs)))
    assert [s.title for s in found] == ["digits, 100 labels, small_cnn", "digits, 100 labels, small_cnn, tuned"]
    assert [losses_in(s.frame) for s in found] == [["gence", "ce"]] * 2
    again = [(spec(loss, 0, **{"recipe.lr": lr, "recipe.weight_decay": 0.1}), {"accuracy": 0.6})
             for loss, lr in rates.items()]  # fmt: skip
    titles = [s.title for s in settings(load_rows(store_with(tmp_path / "twice", runs + again)))]
    assert len(set(titles)) == 5  # which rates belong together cannot be known, so each has its own title
    assert titles[0].startswith("digits, 100 labels, small_cnn, lr ")
