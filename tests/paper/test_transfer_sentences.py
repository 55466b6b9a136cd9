"""What docs/transfer.md and the findings say in words about heads on frozen features is so in the records.

Each test is skipped while the cells that it needs are not recorded.
"""

from __future__ import annotations

import statistics

import pytest
from scipy.stats import wilcoxon

from gence.lab.store import Store
from gence.paper import default_results
from gence.paper.cells import Records
from gence.paper.exhibit_registry import shown
from gence.paper.studies import after_calibration
from gence.paper.studies.small import end_to_end, unlabelled
from gence.paper.studies.transfer_evidence import (
    AGREES,
    ANSWERS,
    ENOUGH,
    all_lines,
    answers,
    differences,
    evidence,
    logistic_summary,
    regimes,
    settings_for,
)
from gence.paper.studies.transfer_grid import PARTS, SOURCES, Setting

STORE = Store(default_results())
CELLS = Records.beside(STORE).read()


def answered(part: str) -> list[Setting]:
    """The settings that a part's answer is about; skip the test while there are too few for it to be given."""
    found = settings_for(part, CELLS)
    if len(found) < ENOUGH[part]:
        pytest.skip(f"{len(found)} settings of {part} are recorded; {ENOUGH[part]} are needed")
    assert ANSWERS[part] in answers(STORE)
    return found


def mean(settings: list[Setting], line: str) -> float:
    """Mean difference from cross-entropy over all settings and seeds, in points of accuracy."""
    return statistics.fmean(one for seeds in differences(CELLS, settings, line, "accuracy") for one in seeds)


def test_on_a_pretrained_encoder_gence_brings_no_accuracy() -> None:
    settings = answered("balanced")
    groups = {name: found for name, found in regimes().items() if name.startswith("Balanced")}
    found = evidence(CELLS, groups, all_lines(), "accuracy")
    for line in ("gence", "anchored"):
        assert abs(mean(settings, line)) < 0.3, line
        assert all(one.verdict < 1 for (_, name), one in found.items() if name == line)
    behind = [mean([one], "gence") for one in settings]
    assert len(settings) == 37
    assert round(min(behind)) == -10
    assert sorted(behind)[1] > -2
    many = [one for one in settings if SOURCES[one.source].classes > 10]
    lines = [line for line in all_lines() if line.name in ("mae", "brier", "generalized_ce")]
    found = {name: one for (_, name), one in evidence(CELLS, {"many": many}, lines, "accuracy").items()}
    assert all(one.verdict == -1 for one in found.values())
    assert max(found["mae"].mean, found["brier"].mean) < -8
    assert round(found["generalized_ce"].mean) == -3


def test_under_imbalance_corrections_for_the_prior_gain() -> None:
    settings = answered("tail")
    found = evidence(CELLS, {"": settings}, PARTS["tail"].all_lines, "accuracy")
    for line in ("logit_adjusted", "resampled", "class_weights", "anchor_uniform"):
        assert found["", line].verdict == 1, line
    assert max(found, key=lambda key: found[key].mean) == ("", "logit_adjusted")
    assert round(found["", "gence"].mean) == 1
    assert 0 < found["", "anchor_uniform_1"].mean - found["", "gence"].mean < 0.5
    ece = evidence(CELLS, {"": settings}, PARTS["tail"].all_lines, "ece")
    assert ece["", "anchor_uniform_1"].verdict == 1


def test_logistic_regression_agrees_with_the_full_batch_in_every_setting() -> None:
    """An independent check of features, folds, tuning and training: one problem, solved by another library."""
    names = ("ce", "ce_full", "logistic")
    settings = [one for one in PARTS["balanced"].settings if all(f"{one.name}/{name}" in CELLS for name in names)]
    if not settings:
        pytest.skip("no setting has all three")
    apart = {
        setting.name: statistics.fmean(differences(CELLS, [setting], "ce_full", "accuracy", "logistic")[0])
        for setting in settings
    }
    assert max(map(abs, apart.values())) <= AGREES, apart
    assert f"Full batch: {len(apart)} of {len(apart)} differences are {AGREES:g} points or less" in logistic_summary(
        STORE
    )


def test_little_remains_of_gences_calibration_after_temperature_scaling() -> None:
    cells = after_calibration.GRID.records(STORE).read()
    if after_calibration.REMAINS not in shown("after_calibration", STORE)[1]:
        pytest.skip("too few settings are recorded")
    found = after_calibration.against_ce(cells, "ece", "calibrated/")
    assert (found["anchored"].verdict, found["gence"].verdict) == (-1, 0)
    assert f"{-100 * found['anchored'].mean:.1f} points below" in after_calibration.REMAINS
    assert f"plain GenCE {-100 * found['gence'].mean:.1f} points, which is not" in after_calibration.REMAINS
    nll = after_calibration.against_ce(cells, "nll", "calibrated/")
    assert nll["anchored"].verdict == nll["gence"].verdict == 0


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
    assert all(one["anchor_2_u500"] > max(0.0, one["anchor_2"]) for (_, size), one in pooled.items() if size < 5)
    for place, said in ((("cifar10", 1), "4.1"), (("sign-digits", 1), "2.4"), (("cifar10", 20), "0.6")):
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
    assert (round(min(losses)), round(max(losses))) == (27, 58)
    assert "by 27 to 58 points" in unlabelled.FINDINGS[1]
    changes = [one[f"{pool}_detached"] - one["anchor_0.1"] for one in pooled.values() for pool in pools if pool in one]
    assert f"{max(map(abs, changes)):.1f}" == "1.2"
    assert "by 1.2 points at most" in unlabelled.FINDINGS[1]


def test_with_an_anchor_of_1_unlabelled_rows_change_nothing(pooled) -> None:
    for (_, size), one in pooled.items():
        if size and size <= 10:  # 100 labels at most: every batch is the whole, balanced subset
            assert all(abs(value) < 0.02 for name, value in one.items() if name.startswith("anchor_1"))


def test_a_small_network_hardly_shows_the_gain_of_the_deep_ones() -> None:
    cells, (text,) = end_to_end.GRID.records(STORE).read(), end_to_end.FINDINGS
    found, plain = {}, []
    for setting in end_to_end.SETTINGS:
        (seeds,) = differences(cells, [setting], "anchored", "accuracy")
        assert len(seeds) == 5
        found[setting.source, setting.recipe] = statistics.fmean(seeds)
        plain += differences(cells, [setting], "gence", "accuracy")[0]
    assert f"{found['sign-digits', 'harsh']:.1f} points ahead" in text
    assert f"{-found['sign-digits', 'mild']:.1f} behind" in text
    assert all(abs(one) < 0.25 for (source, _), one in found.items() if source == "cifar10")
    assert f"behind in {sum(one < 0 for one in plain)} of {len(plain)} pairs" in text
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]).pvalue > 0.05
