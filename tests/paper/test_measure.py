from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from gence.paper.sentences import agreement
from gence.paper.tables import cost_table, exhibit_table

from gence.lab.report.tables import Table
from gence.lab.store.store import Store
from gence.paper.exhibit import Exhibit
from gence.paper.exhibits.reliability import reliability
from gence.paper.exhibits.table1 import table1
from gence.paper.records import measure
from gence.paper.registry import load_exhibit, shown

ROW = "cifar100-2000-vgg19"


def row_table(exhibit: Exhibit, store: Store) -> Table:
    return exhibit_table(exhibit, measure(exhibit, store, rows=[ROW]))


def sentences(exhibit: Exhibit, store: Store, rows: Sequence[str] = ()) -> list[str]:
    return agreement(exhibit, measure(exhibit, store, rows=rows))


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
    # Ours is not marked: two of our own columns are missing, so the row is no contest yet.
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


def test_sentences_are_about_the_rows_that_are_shown(writer) -> None:
    writer.printed(table1(), ROW)
    writer.printed(table1(), "cifar10-2000-vgg19", shift=50.0)
    assert sentences(table1(), writer.store)[0].startswith("6 of 12 measured cells")
    assert sentences(table1(), writer.store, rows=[ROW])[0].startswith("6 of 6 measured cells")
    assert shown("table1", writer.store, rows=[ROW])[1][0].startswith("6 of 6 measured cells")
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


def test_agreement_by_rule(writer) -> None:
    assert sentences(table1(), writer.store) == ["Nothing of this exhibit is measured yet."]
    writer.printed(table1(), ROW)
    (sentence,) = sentences(table1(), writer.store)
    assert sentence == (
        "6 of 6 measured cells lie within 2 standard errors of the printed value, and the printed best loss is the "
        "best of the paper's losses here too in 1 of 1 rows."
    )
    writer.cell(table1(), "cifar10-2000-vgg19", "ce", [75.0, 75.1, 75.2, 75.3, 75.4])
    writer.cell(table1(), "cifar10-2000-vgg19", "gence", [74.0, 74.1, 74.2, 74.3, 74.4])
    agrees, differs = sentences(table1(), writer.store)
    assert agrees.startswith("7 of 8 measured cells")
    assert differs.startswith(
        "Furthest from the print is CE at CIFAR-10, 2000, VGG-19: ours 75.20, the paper's 70.38 (+"
    )
    # Gaps: 9.48 and -1.00 here, 9.48 and 4.24 in print.
    assert differs.endswith(
        "GenCE less CE is +4.24 here and +6.86 in print, mean over the 2 rows where both have two seeds."
    )
    writer.cell(table1(), ROW, "anchored", [24.92] * 5)  # the printed CE is 14.92
    assert sentences(table1(), writer.store)[1].endswith(
        "have two seeds; with an anchor of 0.1, which the paper does not have, +10.00 over 1 row."
    )


def test_it_is_said_why_nothing_can_be_judged(writer) -> None:
    ece, beside = load_exhibit("ece"), ", so no difference from the print can be judged."
    writer.cell(ece, "cifar100-2000-vgg19", "ce", [2.0])
    assert sentences(ece, writer.store) == ["No cell has two seeds yet" + beside]
    writer.cell(ece, "cifar100-2000-vgg19", "gence", [2.0, 2.1, 2.2])
    assert sentences(ece, writer.store) == ["No cell with two seeds has a printed value" + beside]


def test_agreement_of_the_figures(writer) -> None:
    batch = load_exhibit("batch_size")
    accuracies = {25: 60.0, 50: 66.0, 100: 65.0, 200: 61.0}
    for size, accuracy in accuracies.items():
        for column, more in (("gence", 2.0), ("ce", 0.0)):
            writer.cell(batch, f"cifar10-2000-vgg19-b{size}", column, [accuracy + more, accuracy + more])
    (sentence,) = sentences(batch, writer.store)
    assert sentence.startswith("VGG-19: GenCE is best at B = 50 and 6.00 points worse at worst; CE is best at B = 50")


def test_agreement_where_the_paper_names_no_setting(writer) -> None:
    for row in load_exhibit("ood").selected(["cifar10-2000-vgg19/far-entropy"]):
        writer.printed(load_exhibit("ood"), row.name, shift=-30)
    (sentence,) = sentences(load_exhibit("ood"), writer.store)
    assert sentence.startswith("If the paper's setting is N = 2000 and VGG-19: 0 of 6 measured cells lie within")
    assert "the best of the paper's losses here too in 1 of 1 rows" in sentence


def test_costs_count_every_run_once(writer) -> None:
    writer.cell(table1(), ROW, "ce", [15.0] * 5)
    table = cost_table([table1(), load_exhibit("ece")], writer.store)
    assert table.caption.startswith("0 of 12 cells are complete; 0.5 device minutes. All other runs of the store ")
    row = next(row for row in table.rows if row.cells[0].text == ROW)
    assert [c.text for c in row.cells[1:]] == ["5 of 35", "0.5", "6.0", "test device"]
