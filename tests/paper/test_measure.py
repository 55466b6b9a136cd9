from __future__ import annotations

import math

import pytest

from gence.lab.report.tables import Table
from gence.lab.store.store import Store
from gence.paper.exhibit import Exhibit
from gence.paper.exhibit_registry import load_exhibit, shown
from gence.paper.exhibit_table import exhibit_table
from gence.paper.exhibits.reliability import reliability
from gence.paper.exhibits.table1 import table1
from gence.paper.records import measure
from gence.paper.studies.costs import cost_table

ROW = "cifar100-2000-vgg19"


def row_table(exhibit: Exhibit, store: Store) -> Table:
    return exhibit_table(exhibit, measure(exhibit, store, rows=[ROW]))


def cell(store: Store, column: str, row: str = ROW, exhibit: str = "table1"):
    return measure(load_exhibit(exhibit), store, rows=[row])[0].cells[column]


def test_the_difference_uses_both_standard_deviations(writer) -> None:
    writer.cell(table1(), ROW, "ce", [15.0, 16.0, 17.0, 18.0, 19.0])
    found = cell(writer.store, "ce")
    assert found.complete
    assert found.difference == pytest.approx(17 - 14.92)
    # Ours: variance 2.5 over 5 seeds; the paper's: 0.58 over 5.
    assert found.standard_errors == pytest.approx((17 - 14.92) / math.sqrt(2.5 / 5 + 0.58**2 / 5))


def test_one_seed_has_no_standard_error(writer) -> None:
    writer.cell(table1(), ROW, "ce", [15.0])
    found = cell(writer.store, "ce")
    assert (found.complete, found.recorded, found.standard_errors) == (False, 1, None)
    assert found.difference == pytest.approx(0.08)


def test_missing_and_diverged_cells_are_told_apart(writer) -> None:
    writer.cell(table1(), ROW, "mae", [1.0, 1.0], metrics={"accuracy": 0.01}, status="diverged")
    table = row_table(load_exhibit("ece"), writer.store)
    texts = [c.text for c in table.rows[0].cells]
    assert texts[2 + 4] == "no number (2 of 5)"
    assert texts[2] == "missing (0 of 5)"
    accuracy = row_table(table1(), writer.store)
    assert accuracy.rows[0].cells[2 + 4].text == "1.00 ± 0.00 (2 of 5)"


def test_the_table_has_ours_the_paper_s_and_the_difference(writer) -> None:
    writer.printed(table1(), ROW, shift=2.0)
    table = row_table(table1(), writer.store)
    assert [row.cells[1].text for row in table.rows] == ["ours", "paper", "difference"]
    assert [row.cells[2].text for row in table.rows[:2]] == ["26.40 ± 1.00", "24.40 ± 1.12"]
    errors = 2 / math.sqrt(1 / 5 + 1.12**2 / 5)
    assert table.rows[2].cells[2].text == f"+2.00 ({errors:+.1f} SE)"
    assert "6 of 8 cells are complete" in table.caption
    # Ours is not marked: two of our own columns are missing, so the row is incomplete.
    assert not any(c.best for c in table.rows[0].cells)
    assert [c.best for c in table.rows[1].cells].index(True) == 2


def test_the_best_of_a_complete_row_is_marked(writer) -> None:
    writer.printed(table1(), ROW)
    offset = {"metrics": {"accuracy": 0.26, "offset/accuracy": 0.26}}
    writer.cell(table1(), ROW, "anchored", [28.0] * 5)
    store = Store(writer.store.root.parent / "other")
    store.merge(writer.store)
    assert not any(c.best for c in row_table(table1(), store).rows[0].cells)
    fresh = type(writer)(Store(writer.store.root.parent / "fresh"))
    fresh.cell(table1(), ROW, "gence", [26.0] * 5, **offset)
    for column in ("ce", "generalized_ce", "focal", "mae", "brier"):
        fresh.cell(table1(), ROW, column, [20.0] * 5)
    fresh.cell(table1(), ROW, "anchored", [28.0] * 5)
    best = [c.best for c in row_table(table1(), fresh.store).rows[0].cells]
    assert best.index(True) == 2 + 6
    assert sum(best) == 1


def test_no_calibration_error_is_the_best(writer) -> None:
    ece = load_exhibit("ece")
    for column in ece.columns:
        writer.cell(ece, ROW, column.name, [20.0] * 5)
    (ours,) = row_table(ece, writer.store).rows[:1]
    assert not any(cell.best for cell in ours.cells)


def test_the_table_is_about_the_rows_and_seeds_that_are_asked_for(writer) -> None:
    writer.printed(table1(), ROW)
    assert len(shown("table1", writer.store, rows=[ROW])[0].rows) == 3
    with pytest.raises(ValueError, match="seeds is 0; expected at least 1"):
        shown("table1", writer.store, seeds=0)


def test_overconfidence_is_that_of_the_confident_bins(writer) -> None:
    empty = {"count": [0] * 10, "confidence": [None] * 10, "accuracy": [None] * 10}
    bins = {
        "count": [*empty["count"], 0, 100, 0, 0, 300],
        "confidence": [*empty["confidence"], None, 0.75, None, None, 0.95],
        "accuracy": [*empty["accuracy"], None, 0.85, None, None, 0.75],
    }
    writer.cell(reliability(), "cifar10-2000-vgg19", "ce", [0.0, 0.0], tables={"reliability": bins})
    found = cell(writer.store, "ce", "cifar10-2000-vgg19", "reliability")
    assert found.summary.mean == pytest.approx(100 * (100 * -0.1 + 300 * 0.2) / 400)
    few = {**bins, "count": [*empty["count"], 0, 1, 0, 0, 3]}
    writer.cell(reliability(), "cifar10-2000-vgg19", "mae", [0.0, 0.0], tables={"reliability": few})
    assert cell(writer.store, "mae", "cifar10-2000-vgg19", "reliability").summary is None


def test_costs_count_every_run_once(writer) -> None:
    writer.cell(table1(), ROW, "ce", [15.0] * 5)
    table = cost_table([table1(), load_exhibit("ece")], writer.store)
    assert table.caption.startswith("0 of 12 cells are complete; 0.5 device minutes. All other runs of the store ")
    row = next(row for row in table.rows if row.cells[0].text == ROW)
    assert [c.text for c in row.cells[1:]] == ["5 of 35", "0.5", "6.0", "test device"]
