"""What is concluded from the comparison of remedies, with records whose numbers are known."""

from __future__ import annotations

import pytest
from gence.paper.studies.remedies_evidence import (
    START,
    against,
    choose,
    collapses,
    findings,
    headline,
    mean_ranks,
    read_study,
)

from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.losses.drift.monitor import REMEDY
from gence.paper.records import checkout, default_results
from gence.paper.registry import shown
from gence.paper.studies.remedies import remedies
from tests.paper.remedies_records import ROW, fill_row, record, run_of


def test_a_part_is_compared_but_nothing_is_recommended(writer) -> None:
    for row in remedies().rows[:4]:
        record(writer.store, row.name, "gence", [20.0, 21.0, 22.0], offset=-3.0)
        record(writer.store, row.name, "anchor-0.1", [22.0, 23.0, 24.5])
        record(writer.store, row.name, "no-bias", [19.0, 21.5, 22.0])
    record(writer.store, ROW, "batch-200", [30.0, 31.0])
    study = read_study(writer.store)
    found = against(study.accuracy, "gence", study.titles)
    assert set(found) == {"offset", "anchor-0.1", "no-bias", "batch-200"}
    anchored = found["anchor-0.1"]  # differences 2, 2 and 2.5
    assert anchored.mean == pytest.approx(6.5 / 3)
    assert (anchored.up, len(anchored.differences), anchored.settings) == (12, 12, 4)
    assert anchored.p == pytest.approx(4 * 2 / 2**12)  # four lines are compared, and all pairs go one way
    assert [found[name].verdict for name in ("offset", "anchor-0.1", "no-bias", "batch-200")] == [-1, 1, 0, 0]
    count, what, recommended, _ = findings(study)
    assert count == "38 of 384 runs are recorded."
    assert what == (
        "What was found: of the networks 0 of 12 with plain GenCE, 0 of 12 with an anchor, 0 of 12 without a bias and "
        "0 of 2 in larger batches collapsed (below half of what the offset makes of the same network). More accurate "
        "than plain GenCE, by 2.2 points: anchor 0.1 (batch labels). Did not help, as far as can be shown: no bias in "
        "the last layer. Less accurate than plain GenCE, by 3.0 points: offset after training. Too few pairs to tell, "
        "below 8: batch 200."
    )
    assert recommended == "No line is named the best before every setting has all its runs; 0 of 8 have."


def test_the_rescue_of_a_single_collapsed_seed_counts(writer) -> None:
    """Its spread is as large as its gain: an error of the mean over seeds would hide what the offset does."""
    for row in remedies().rows[1:5]:
        record(writer.store, row.name, "gence", [20.0, 21.0, 22.0], offset=0.1)
    record(writer.store, ROW, "gence", [20.0, 21.0], offset=0.1)
    writer.store.write(run_of("gence", ROW, 2), RunResult(metrics={"accuracy": 0.1, "offset/accuracy": 0.6}))
    record(writer.store, ROW, "anchor-0.1", [20.1, 22.1, 60.0])
    study = read_study(writer.store)
    assert collapses(study.accuracy, study.offset, ["gence"]) == (1, 15)
    assert collapses(study.accuracy, study.offset, ["anchor-0.1"]) == (0, 3)
    offset = against(study.accuracy, "gence", study.titles)["offset"]
    assert (offset.up, len(offset.differences), offset.verdict) == (15, 15, 1)
    assert offset.mean == pytest.approx((14 * 0.1 + 50) / 15)


def test_where_no_offset_could_be_fitted_it_gains_nothing_and_the_network_has_collapsed(writer) -> None:
    fill_row(writer.store, ROW, {}, offset=None)
    study = read_study(writer.store, rows=[ROW])
    assert study.without_offset == 3
    assert len(study.complete_rows()) == 1
    assert against(study.accuracy, "gence", ["offset"])["offset"].differences == (0.0, 0.0, 0.0)
    assert collapses(study.accuracy, study.offset, ["gence"]) == (3, 3)
    ranks = mean_ranks(study.complete_rows())
    assert ranks["offset"] == ranks["gence"]
    assert "No offset could be fitted to 3 of plain GenCE's" in findings(study)[1]
    assert shown("remedies", writer.store, rows=[ROW])[0].rows[2].cells[-1].text == "20.00 ± 1.00"


def fill(store: Store, changes: dict[str, float], offset: float = 2.0, **of_rows: dict[str, float]) -> None:
    """Write the whole comparison; rows that are named have changes of their own besides."""
    for row in remedies().rows:
        fill_row(store, row.name, changes | of_rows.get(row.name.replace("-", "_"), {}), offset)


CHANGES = {"anchor-0.3": 4.5, "anchor-0.1": 4.0, "ce": 1.0, "anchor-1": 9.0, "batch-400": -6.0}


def test_the_best_is_recommended_where_it_is_told_from_the_documented_start(writer) -> None:
    fill(writer.store, CHANGES)
    choice = choose(read_study(writer.store))
    assert (choice.best, choice.level, choice.recommended) == ("anchor-0.3", (), "anchor-0.3")
    assert "anchor 0.3 (batch labels), the best. Against" in findings(read_study(writer.store))[2]


def test_the_documented_start_is_recommended_where_it_is_not_told_from_the_best(writer) -> None:
    ahead = {"anchor-0.1": 9.0}
    fill(writer.store, CHANGES, cifar10_resnet50_paper=ahead, cifar10_vgg19_modern=ahead)
    study = read_study(writer.store)
    choice = choose(study)
    assert (choice.best, choice.level, choice.recommended) == ("anchor-0.3", ("anchor-0.1",), "anchor-0.1")
    _, what, recommended, _ = findings(study)
    assert "More accurate than plain GenCE, by 2.0 to 9.0 points: anchor 0.1, 0.3 and 1 (batch labels); " in what
    assert "Less accurate than plain GenCE, by 6.0 points: batch 400." in what
    assert recommended.startswith("By mean rank of accuracy over 8 settings the best remedy is anchor 0.3 (batch la")
    assert "; not told from it: anchor 0.1 (batch labels). Recommended: anchor 0.1 (batch labels), the" in recommended
    assert "pairs (more accurate). Its calibration error is 10.0 % on average, plain GenCE's 10.0, " in recommended
    table, _ = shown("remedies", writer.store)
    line = next(row for row in table.rows if row.cells[0].text == "batch 400")
    assert [cell.text for cell in line.cells[1:4]] == ["-5.97 (0 of 24 up, 8 settings)", "< 0.001", "17.0"]


def test_the_headline_is_against_cross_entropy_and_by_recipe(writer) -> None:
    assert headline(read_study(writer.store)) == "Nothing of the comparison of remedies is measured yet."
    for row in remedies().rows:
        better = 5.0 if row.name.endswith("paper") else 1.0
        record(writer.store, row.name, "ce", [20.0, 21.0, 22.0])
        record(writer.store, row.name, "anchor-0.1", [20.0 + better, 21.0 + better, 22.0 + better])
        record(writer.store, row.name, "gence", [18.0, 22.0, 20.0])
    assert headline(read_study(writer.store)).splitlines() == [
        "Accuracy less cross-entropy's, over pairs of runs that share one of 8 settings (data, network, recipe) with "
        "2000 labels and one of 3 seeds; the recipe is the same for every loss, and none is tuned:",
        "",
        "- **GenCE with an anchor of 0.1**: +3.00 points, up in 24 of 24 pairs (more accurate); +5.0 under `paper` and "
        "+1.0 under `modern`.",
        "- **plain GenCE**: -1.00 points, up in 8 of 24 pairs (less accurate); -1.0 under `paper` and -1.0 under "
        "`modern`.",
    ]


def test_cross_entropy_by_another_name_is_no_remedy(writer) -> None:
    fill(writer.store, {"ce": 9.0, "anchor-1": 9.0})
    assert choose(read_study(writer.store)).best != "anchor-1"


def test_the_best_of_remedies_that_do_not_help_is_not_recommended(writer) -> None:
    fill(writer.store, dict.fromkeys((one.name for one in remedies().columns[3:]), -5.0), offset=-1.0)
    study = read_study(writer.store)
    assert choose(study).recommended is None
    assert findings(study)[2].endswith("It was not shown to be better than plain GenCE: no remedy is recommended.")


def test_the_documented_start_is_the_documented_one() -> None:
    (start,) = (column for column in remedies().columns if column.name == START)
    assert str(start.loss) == "gence(anchor=0.1)"
    assert "anchor=0.1" in REMEDY
    assert "Set `anchor` (0.1 is a good start)" in " ".join((checkout() / "README.md").read_text().split())


def test_what_the_documentation_recommends_is_what_the_records_do() -> None:
    choice = choose(read_study(Store(default_results())))
    assert choice is not None  # every run of it is recorded
    assert choice.recommended == START


def test_ranks_are_shared_by_equals(writer) -> None:
    fill_row(writer.store, ROW, {"anchor-0.3": 5.0, "anchor-0.1": 4.0, "ce": 9.0, "batch-400": -6.0})
    fill_row(writer.store, "cifar10-vgg19-modern", {"anchor-0.3": 5.0, "anchor-0.1": 6.0, "ce": 9.0, "batch-400": -6.0})
    record(writer.store, "cifar10-resnet50-paper", "gence", [10.0] * 3)  # not complete: takes no part in the ranks
    rows = read_study(writer.store).complete_rows()
    assert [one.row.name for one in rows] == [ROW, "cifar10-vgg19-modern"]
    ranks = mean_ranks(rows)
    assert (ranks["ce"], ranks["anchor-0.1"], ranks["anchor-0.3"], ranks["batch-400"]) == (1.0, 2.5, 2.5, 17.0)
    assert sum(ranks.values()) == pytest.approx(17 * 18 / 2)
