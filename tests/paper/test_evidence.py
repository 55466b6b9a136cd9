"""What the studies of drift rest on, with records whose numbers are known."""

from __future__ import annotations

import math

import pytest

from gence.lab.store.record import RunResult
from gence.paper.exhibit_registry import Asked, shown
from gence.paper.studies.evidence import OUT, Course, against, mean_ranks
from gence.paper.studies.remedies import headline, read_remedies, remedies
from tests.paper.remedies_records import ROW, fill_row, record, run_of

NAMES = [column.name for column in remedies().columns]


def test_lines_are_compared_as_far_as_there_are_pairs(writer) -> None:
    for row in remedies().rows[:4]:
        record(writer.store, row.name, "gence", [20.0, 21.0, 22.0], offset=-3.0)
        record(writer.store, row.name, "anchor-0.1", [22.0, 23.0, 24.5])
        record(writer.store, row.name, "no-bias", [19.0, 21.5, 22.0])
    record(writer.store, ROW, "batch-200", [30.0, 31.0])
    found = against(read_remedies(Asked(writer.store)).accuracy, "gence", NAMES)
    assert set(found) == {"offset", "anchor-0.1", "no-bias", "batch-200"}
    anchored = found["anchor-0.1"]  # differences 2, 2 and 2.5
    assert anchored.mean == pytest.approx(6.5 / 3)
    assert (anchored.up, len(anchored.differences), anchored.settings) == (12, 12, 4)
    assert anchored.p == pytest.approx(4 * 2 / 2**12)  # four lines are compared, and all pairs go one way
    assert [found[name].verdict for name in ("offset", "anchor-0.1", "no-bias", "batch-200")] == [-1, 1, 0, 0]


def test_the_rescue_of_a_single_collapsed_seed_counts(writer) -> None:
    """Its spread is as large as its gain: an error of the mean over seeds would hide what the offset does."""
    for row in remedies().rows[1:5]:
        record(writer.store, row.name, "gence", [20.0, 21.0, 22.0], offset=0.1)
    record(writer.store, ROW, "gence", [20.0, 21.0], offset=0.1)
    writer.store.write(run_of("gence", ROW, 2), RunResult(metrics={"accuracy": 0.1, "offset/accuracy": 0.6}))
    offset = against(read_remedies(Asked(writer.store)).accuracy, "gence", ["offset"])["offset"]
    assert (offset.up, len(offset.differences), offset.verdict) == (15, 15, 1)
    assert offset.mean == pytest.approx((14 * 0.1 + 50) / 15)


def test_where_no_offset_could_be_fitted_it_gains_nothing(writer) -> None:
    fill_row(writer.store, ROW, {}, offset=None)
    recorded = read_remedies(Asked(writer.store, rows=[ROW]))
    assert len(recorded.complete_rows()) == 1
    assert against(recorded.accuracy, "gence", ["offset"])["offset"].differences == (0.0, 0.0, 0.0)
    ranks = mean_ranks(recorded.complete_rows())
    assert ranks["offset"] == ranks["gence"]
    assert shown("remedies", writer.store, rows=[ROW])[0].rows[2].cells[-1].text == "20.00 ± 1.00"


def test_the_table_has_the_evidence(writer) -> None:
    changes = {"anchor-0.3": 4.5, "anchor-0.1": 4.0, "ce": 1.0, "anchor-1": 9.0, "batch-400": -6.0}
    for row in remedies().rows:
        fill_row(writer.store, row.name, changes)
    table, _ = shown("remedies", writer.store)
    line = next(row for row in table.rows if row.cells[0].text == "batch 400")
    assert [cell.text for cell in line.cells[1:4]] == ["-5.97 (0 of 24 up, 8 settings)", "< 0.001", "17.0"]


def test_ranks_are_shared_by_equals(writer) -> None:
    fill_row(writer.store, ROW, {"anchor-0.3": 5.0, "anchor-0.1": 4.0, "ce": 9.0, "batch-400": -6.0})
    fill_row(writer.store, "cifar10-vgg19-modern", {"anchor-0.3": 5.0, "anchor-0.1": 6.0, "ce": 9.0, "batch-400": -6.0})
    record(writer.store, "cifar10-resnet50-paper", "gence", [10.0] * 3)  # not complete: takes no part in the ranks
    rows = read_remedies(Asked(writer.store)).complete_rows()
    assert [one.row.name for one in rows] == [ROW, "cifar10-vgg19-modern"]
    ranks = mean_ranks(rows)
    assert (ranks["ce"], ranks["anchor-0.1"], ranks["anchor-0.3"], ranks["batch-400"]) == (1.0, 2.5, 2.5, 17.0)
    assert sum(ranks.values()) == pytest.approx(17 * 18 / 2)


def test_the_headline_is_against_cross_entropy_and_by_recipe(writer) -> None:
    assert "over 0 pairs" in headline(writer.store)
    for row in remedies().rows:
        better = 5.0 if row.name.endswith("paper") else 1.0
        record(writer.store, row.name, "ce", [20.0, 21.0, 22.0])
        record(writer.store, row.name, "anchor-0.1", [20.0 + better, 21.0 + better, 22.0 + better])
        record(writer.store, row.name, "gence", [18.0, 22.0, 20.0])
    assert headline(writer.store).splitlines()[:4] == [
        "|  | mean difference | better in | recipe paper | recipe modern |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| GenCE with an anchor of 0.1 | +3.0 | 24 of 24 | +5.0 | +1.0 |",
        "| plain GenCE | -1.0 | 8 of 24 | -1.0 | -1.0 |",
    ]


def test_a_course_says_when_it_was_out() -> None:
    course = Course((0.2, 3.0, math.nan, OUT, 2.0))
    assert course.epochs_out == (2, 3, 5)
    assert course.out_at_end
    assert Course((0.2, 3.0, OUT)).epochs_out == (2,)
    assert not Course((0.2, 3.0, OUT)).out_at_end
    assert not Course((0.2, 0.1)).out_at_end


def test_three_quarters_in_one_of_ten_classes_are_about_out() -> None:
    uniform = [0.1] * 10
    one_class = [0.75] + [0.25 / 9] * 9
    found = sum(p * math.log(p / q) for p, q in zip(uniform, one_class, strict=True))
    assert found == pytest.approx(OUT, abs=0.1)
