"""The small studies of cells: unlabelled rows, and a small network from scratch; made, resumed and shown."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gence.lab.data import load
from gence.lab.features import HEAD_RECIPE, HeadProblem, HeadRun, train_heads
from gence.lab.store import Store
from gence.paper.cells import SEEDS
from gence.paper.exhibit_registry import shown
from gence.paper.studies.small import end_to_end, unlabelled
from gence.paper.studies.small.unlabelled import PoolSetting, pool_of, train_with_pools
from gence.paper.studies.transfer_grid import SOURCES
from gence.paper.studies.transfer_runs import Features
from tests.paper.commands import invoke


@pytest.fixture(scope="module")
def digits() -> Features:
    splits = load("digits")
    train, test = (part.images.flatten(1).half() / 255 for part in (splits.train, splits.test))
    return Features(train, splits.train.labels, test, splits.test.labels, tuple(splits.train.classes), {}, {})


def named(*names: str) -> list[unlabelled.PoolLine]:
    return [line for line in unlabelled.LINES if line.name in names]


def test_without_a_pool_heads_are_those_of_the_ordinary_training(digits) -> None:
    index = torch.arange(230)
    problem = HeadProblem(digits.train, digits.train_labels[index], 10, index)
    lines = named("anchor_0.1", "anchor_2")
    recipes = [HEAD_RECIPE.replace(epochs=5, lr=lr, weight_decay=decay) for lr, decay in ((1.0, 1e-3), (0.3, 1e-2))]
    mine = train_with_pools(problem, lines, digits.train[:0], recipes, 3)
    runs = [HeadRun(loss=line.loss, recipe=recipe, seed=3) for line, recipe in zip(lines, recipes, strict=True)]
    for own, other in zip(mine, train_heads([problem], runs, curves=False), strict=True):
        torch.testing.assert_close(own.tensors["weight"], other.head.tensors["weight"], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(own.tensors["bias"], other.head.tensors["bias"], rtol=1e-3, atol=1e-4)


def test_a_pool_has_no_row_that_was_drawn_and_classes_alike(digits) -> None:
    drawn = torch.arange(0, 200, 2)
    pool = pool_of(digits.train_labels, drawn, 400, 0)
    assert len(pool.unique()) == 400
    assert not bool(torch.isin(pool, drawn).any())
    assert digits.train_labels[pool].bincount().tolist() == [40] * 10
    assert pool_of(digits.train_labels, drawn, 50, 0).tolist() == pool[:50].tolist()
    assert pool_of(digits.train_labels, drawn, 50, 1).tolist() != pool[:50].tolist()


def test_unlabelled_rows_change_what_is_learnt_and_detached_ones_otherwise(digits, tmp_path) -> None:
    setting = PoolSetting(study="unlabelled", source="cifar10", per_class=2)
    lines = named("ce", "anchor_1", "anchor_1_u500", "anchor_0.1", "anchor_0.1_u500", "anchor_0.1_u500_detached")
    cells = unlabelled.make_cells(setting, lines, digits)
    found = {cell["cell"].rpartition("/")[2]: cell for cell in cells}
    assert all(len(cell["metrics"]["accuracy"]) == SEEDS for cell in cells)
    assert found["anchor_1"]["tuned"] == found["anchor_1_u500"]["tuned"]
    nll = {name: cell["metrics"]["nll"] for name, cell in found.items()}
    assert len({str(nll[name]) for name in nll if "0.1" in name}) == 3
    # In a balanced batch an anchor of 1 cancels the denominator: what is in it changes nothing, and this is CE.
    assert nll["anchor_1_u500"] == pytest.approx(nll["ce"], rel=1e-2)
    assert max(found["anchor_0.1_u500"]["metrics"]["accuracy"]) > 0.2  # some drift, with an anchor as weak as this
    store = Store(tmp_path)
    unlabelled.GRID.records(store).add(cells)
    table, _ = shown("unlabelled", store)
    assert f"6 of {sum(len(lines) for _, lines in unlabelled.GRID.asked())} cells" in table.caption
    assert table.rows[0].cells[1].text == "missing"
    large = next(row for row in table.rows if "2000 unlabelled" in row.cells[0].text)
    assert [one.text for one in large.cells].count("–") == 3  # the sign digits have too few rows
    listed = invoke("run", "unlabelled", "--dry-run", "--store", tmp_path, "--rows", "unlabelled/cifar10/2")
    assert "10 of 16 cells are missing" in listed


def test_a_network_from_scratch_is_a_cell_and_is_not_trained_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(end_to_end, "EPOCHS", 1)
    monkeypatch.setattr(end_to_end, "LABELS", 100)
    monkeypatch.setitem(SOURCES, "cifar10", dataclasses.replace(SOURCES["cifar10"], data="digits"))
    said: list[str] = []
    store = Store(tmp_path)
    for _ in range(2):
        end_to_end.GRID.run(store, ("end_to_end/cifar10/mild",), ("ce",), None, said.append)
    assert "1 cells" in said[0]
    assert said[1:] == ["all cells that were asked for are there"] * 2
    (cell,) = end_to_end.GRID.records(store).read().values()
    assert cell["cell"] == "end_to_end/cifar10/mild/ce"
    assert {"accuracy", "nll", "ece", "offset_accuracy"} <= set(cell["metrics"])
    assert end_to_end.GRID.records(store).about()["sources"]["cifar10"]["train"]
    table, _ = shown("end_to_end", store)
    rows = {row.cells[0].text: [one.text for one in row.cells] for row in table.rows}
    assert rows["CE"].count("missing") == len(end_to_end.SETTINGS) - 1


@pytest.mark.parametrize("study", [unlabelled, end_to_end])
def test_unknown_names_are_errors(study) -> None:
    for rows, losses in ((("table1",), ()), ((), ("hinge",))):
        with pytest.raises(ValueError, match=r"matches no setting|hinge"):
            study.GRID.asked(rows, losses)
