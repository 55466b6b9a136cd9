"""The table on the front page: rows come from records, and a store without them says so."""

from __future__ import annotations

import pytest

from gence.lab.spec import LossSpec
from gence.lab.store import RunResult, Store
from gence.paper import default_results
from gence.paper.does_it_help import HARSH, MILD, decision_guide, does_it_help_table, help_cells
from gence.paper.exhibits.table1 import table1


def test_pairs_share_a_seed(writer):
    assert does_it_help_table(writer.store) == "Nothing is measured yet.\n"
    base = table1().rows[0].base
    for loss, accuracies in (("ce", (0.5, 0.6, 0.7)), ("gence", (0.4, 0.4, 0.9)), ("gence(anchor=0.1)", (0.6,) * 4)):
        for seed, accuracy in enumerate(accuracies):
            result = RunResult(metrics={"accuracy": accuracy, "ece": accuracy / 10})
            writer.store.write(base.replace(loss=LossSpec.parse(loss), seed=seed), result, {"device": "test device"})
    (cell,) = help_cells(writer.store)
    assert cell.accuracy["gence"] == pytest.approx((-10, -20, 20))
    assert cell.accuracy["gence(anchor=0.1)"] == pytest.approx((10, 0, -10)), "the fourth seed has no partner"
    table = does_it_help_table(writer.store)
    assert "Anchored GenCE +0.0 points of accuracy, better in 1 of 3 pairs" in table
    assert "Plain GenCE -3.3 points of accuracy, better in 1 of 3 pairs" in table


def test_what_it_advises_is_what_the_records_say():
    table = [line.split(" | ") for line in does_it_help_table(Store(default_results())).splitlines()[2:]]
    by_situation = {line[0].strip("| "): line for line in table if len(line) == 3}
    assert len(by_situation) <= 8
    for situation, line in by_situation.items():
        if "a mild recipe" in situation:
            assert "ResNet-50: Keep cross-entropy" in line[2]
            assert "VGG-19: Try `GenCELoss(anchor=0.1)`" in line[2]
        if situation == "The same with 5000 labels":
            cells = {cell.data: cell.accuracy["gence(anchor=0.1)"] for cell in help_cells(Store(default_results()))}
            assert "classes are many" in line[2]
            assert sum(cells["cifar100"]) > sum(cells["cifar10"])


def test_the_guide_has_a_row_for_what_is_not_measured(writer):
    guide = decision_guide(writer.store)
    assert "| any number, long tail | head on a frozen pretrained encoder | any | compare on your data |" in guide
    assert "not measured yet" in guide
    assert "In all of these" not in guide


def test_with_2000_labels_a_milder_recipe_gains_more_than_any_loss():
    """What the guide says below its table."""
    frame = Store(default_results()).frame()
    frame = frame[(frame["evaluate_on"] == "test") & (frame["subset.n"].astype(float) == 2000)]
    cells = frame.groupby(["data", "model", "recipe", "loss"])["accuracy"].mean()
    for data in ("cifar10", "cifar100"):
        for model in ("resnet50", "vgg19"):
            assert cells[data, model, MILD, "ce"] > cells[data, model, HARSH].drop("ce").max()
