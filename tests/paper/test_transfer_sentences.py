"""What docs/transfer.md and the findings say in words about heads on frozen features is so in the records.

Each test is skipped while the cells that it needs are not recorded.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from gence.lab.store import Store
from gence.paper import default_results
from gence.paper.studies.small import unlabelled
from gence.paper.studies.transfer_evidence import differences, evidence
from gence.paper.studies.transfer_grid import PARTS, Records, Setting

STORE = Store(default_results())
CELLS = Records.beside(STORE).read()
PAGE = " ".join((Path(__file__).parents[2] / "docs" / "transfer.md").read_text(encoding="utf-8").split())


def settings_with(part: str, *lines: str, least: int) -> list[Setting]:
    """The settings of a part that have all these lines; skip the test where there are fewer than `least`."""
    found = [one for one in PARTS[part].settings if all(f"{one.name}/{line}" in CELLS for line in lines)]
    if len(found) < least:
        pytest.skip(f"{len(found)} settings of {part} have {', '.join(lines)}; {least} are needed")
    return found


def mean_differences(
    settings: list[Setting], line: str, metric: str = "accuracy", reference: str = "ce"
) -> list[float]:
    """One mean difference per setting, in points."""
    return [statistics.fmean(seeds) for seeds in differences(CELLS, settings, line, metric, reference)]


@pytest.fixture(scope="module")
def pooled() -> dict[tuple[str, int], dict[str, float]]:
    """(Source, labels per class) -> line -> mean difference from cross-entropy, where there is a sentence."""
    cells = unlabelled.GRID.records(STORE).read()
    asked = [one for one in unlabelled.GRID.asked() if one[0].source in ("cifar10", "sign-digits")]
    if missing := sum(f"{setting.name}/{line.name}" not in cells for setting, lines in asked for line in lines):
        pytest.skip(f"{missing} cells are missing")
    return {
        (setting.source, setting.per_class): {
            line.name: statistics.fmean(difference)
            for line in lines
            for difference in differences(cells, [setting], line.name, "accuracy")
        }
        for setting, lines in asked
    }


def test_with_an_anchor_of_2_unlabelled_rows_help_where_labels_are_fewest(pooled) -> None:
    assert all(one["anchor_2_u500"] > max(0.0, one["anchor_2"]) for one in pooled.values())
    for place, said in ((("cifar10", 1), "2.4"), (("sign-digits", 1), "1.4"), (("cifar10", 20), "0.1")):
        assert f"{pooled[place]['anchor_2_u500']:.1f}" == said
        assert said in unlabelled.FINDINGS[0]
    cells = unlabelled.GRID.records(STORE).read()
    both = [one for one in unlabelled.SETTINGS if (one.source, one.per_class) in pooled]
    lines = [line for line in unlabelled.LINES if line.pool < max(unlabelled.POOLS)]
    assert evidence(cells, {"": both}, lines, "accuracy")["", "anchor_2_u500"].verdict == 1
    for place in (("cifar10", 5), ("cifar10", 10), ("sign-digits", 5)):
        assert pooled[place]["anchor_2_u500"] < pooled[place[0], 1]["anchor_2_u500"]


def test_with_an_anchor_of_a_tenth_a_gradient_through_unlabelled_rows_does_harm(pooled) -> None:
    pools = [f"anchor_0.1_u{pool}" for pool in unlabelled.POOLS]
    there = [(one, pool) for one in pooled.values() for pool in pools if pool in one]
    losses = [one["anchor_0.1"] - one[pool] for one, pool in there]
    assert (round(min(losses)), round(max(losses))) == (8, 51)
    assert "by 8 to 51 points" in unlabelled.FINDINGS[1]
    changes = [one[f"{pool}_detached"] - one["anchor_0.1"] for one in pooled.values() for pool in pools if pool in one]
    assert f"{max(map(abs, changes)):.1f}" == "2.4"
    assert "by 2.4 points at most" in unlabelled.FINDINGS[1]


def test_with_an_anchor_of_1_unlabelled_rows_change_nothing(pooled) -> None:
    for (_, size), one in pooled.items():
        if size and size <= 10:  # 100 labels at most: every batch is the whole, balanced subset
            assert all(abs(value) < 0.02 for name, value in one.items() if name.startswith("anchor_1"))
