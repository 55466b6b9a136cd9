from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from gence.lab.report.style import ACCURACY, ECE, NLL
from gence.lab.report.tables import difference_table
from gence.lab.report.verdict import describe, judge
from gence.lab.report.warnings import data_concerns, run_concerns
from gence.lab.spec.loss import LossSpec


def frame(values, metric="accuracy", **columns):
    rows = [
        {"loss": loss, "seed": seed, "status": "done", metric: value, **{k: v[loss] for k, v in columns.items()}}
        for loss, found in values.items()
        for seed, value in enumerate(found)
    ]
    return pd.DataFrame(rows)


def specs(*losses):
    return [LossSpec.parse(loss) for loss in losses]


CLEAR = {"ce": [0.60, 0.62, 0.61, 0.63, 0.60], "gence": [0.70, 0.73, 0.71, 0.72, 0.71]}
EVEN = {"ce": [0.60, 0.62, 0.61, 0.63, 0.60], "gence": [0.61, 0.61, 0.62, 0.62, 0.60]}


def test_a_clear_difference_is_told_as_one():
    found = judge(frame(CLEAR), quantities=[ACCURACY])
    accuracy = found.of("accuracy")
    assert accuracy.best == ("gence",)
    assert accuracy.comparisons["gence"].outcome == "better"
    assert found.headline == "GenCE against CE: better in accuracy."
    assert "GenCE has the best mean, 71.4 ± 1.1 % (n = 5)" in accuracy.sentence()
    assert "+10.2 points (95 % interval" in accuracy.sentence()


def test_an_interval_excludes_0_only_where_a_difference_is_seen():
    draw = np.random.default_rng(0)
    outcomes = set()
    for _ in range(60):
        values = {loss: list(0.6 + shift + 0.02 * draw.standard_normal(5)) for loss, shift in
                  (("ce", 0), ("gence", 0.02), ("focal", 0.03), ("mae", 0.06))}  # fmt: skip
        for found in judge(frame(values), quantities=[ACCURACY]).of("accuracy").comparisons.values():
            assert (found.outcome in ("better", "worse")) == (not found.low <= 0 <= found.high)
            outcomes.add((found.outcome, found.difference.t_low <= 0 <= found.difference.t_high))
    assert ("no difference seen", False) in outcomes  # where the uncorrected interval would have said otherwise


def test_no_difference_is_told_as_one_and_with_the_seeds_it_would_take():
    found = judge(frame(EVEN), quantities=[ACCURACY])
    assert found.headline == "GenCE against CE: no difference seen in accuracy."
    assert any("“No difference seen” is not proof of equality" in note for note in found.notes)


def test_five_seeds_cannot_reach_significance_by_ranks_and_it_is_said():
    found = judge(frame(CLEAR), quantities=[ACCURACY])
    assert any("With 5 seeds the signed-rank test" in note and "0.0625" in note for note in found.notes)
    assert found.of("accuracy").comparisons["gence"].wilcoxon_p == pytest.approx(0.0625)


def test_lower_is_better_for_nll():
    found = judge(frame(CLEAR, "nll"), quantities=[NLL])
    assert found.of("nll").best == ("ce",)
    assert found.of("nll").comparisons["gence"].outcome == "worse"


def test_holm_corrects_over_the_losses():
    values = {**EVEN, "gence": [0.62, 0.63, 0.64, 0.65, 0.61], "mae": EVEN["gence"], "brier": EVEN["gence"]}
    alone = judge(frame({k: values[k] for k in ("ce", "gence")}), quantities=[ACCURACY]).of("accuracy")
    among = judge(frame(values), quantities=[ACCURACY]).of("accuracy")
    assert among.comparisons["gence"].t_p == pytest.approx(3 * alone.comparisons["gence"].t_p)


def test_seeds_that_one_loss_lacks_are_left_out_on_both_sides():
    values = {"ce": [0.6, 0.7, 0.8], "gence": [0.65, math.nan, 0.9]}
    found = judge(frame(values), quantities=[ACCURACY]).of("accuracy")
    difference = found.comparisons["gence"].difference
    assert difference is not None
    assert difference.n == 2
    assert difference.mean == pytest.approx(0.075)


def test_one_seed_and_no_seed_cannot_be_judged():
    one = judge(frame({"ce": [0.5], "gence": [0.6]}), quantities=[ACCURACY])
    assert one.of("accuracy").comparisons["gence"].outcome == "cannot be judged"
    assert any("With one seed no difference can be significant" in note for note in one.notes)
    none = judge(frame({"ce": [0.5], "gence": [math.nan]}), quantities=[ACCURACY]).of("accuracy")
    assert describe(none.comparisons["gence"], ACCURACY) == "no seed in common, cannot be judged"


def test_one_loss_alone_is_compared_with_nothing():
    found = judge(frame({"ce": CLEAR["ce"]}), quantities=[ACCURACY])
    assert found.headline == "CE alone was run: there is nothing to compare it with."
    assert found.of("accuracy").sentence() == "Accuracy: CE has the mean 61.2 ± 1.3 % (n = 5); no other loss was run."


def test_a_store_without_ce_compares_with_its_first_loss():
    found = judge(frame({"gence": [0.5, 0.6], "mae": [0.4, 0.5]}), quantities=[ACCURACY])
    assert found.reference == "gence"
    assert found.headline.startswith("MAE against GenCE")
    alone = judge(frame({"ce": [0.5, 0.6]}), quantities=[ACCURACY, ECE])
    assert "nothing to compare" in alone.headline
    assert alone.of("ece").sentence() == "ECE: no run has a number."
    with pytest.raises(ValueError, match="reference is 'focal'; the losses are ce"):
        judge(frame({"ce": [0.5]}), reference="focal")


def test_concerns_about_data():
    few = data_concerns([3, 20], ["cat", "dog"], batch_size=10, losses=specs("ce"))
    assert len(few) == 1
    assert "cat (3)" in few[0]
    narrow = data_concerns([10] * 20, [str(k) for k in range(20)], batch_size=8, losses=specs("gence"))
    assert "--batch-size 40" in narrow[0]
    assert data_concerns([10] * 20, [str(k) for k in range(20)], batch_size=8, losses=specs("ce")) == []
    assert data_concerns([50, 50], ["a", "b"], batch_size=50, losses=specs("gence")) == []


def test_concerns_about_drifting_and_diverged_runs():
    rows = frame({"gence": [0.1, 0.7], "ce": [0.7, 0.7]})
    rows["marginal_kl"] = [2.0, 0.01, 0.0, 0.0]
    rows["offset/accuracy"] = [0.7, 0.7, 0.7, 0.7]
    rows.loc[3, "status"] = "diverged"
    drift, divergence = run_concerns(rows)
    assert drift.startswith("GenCE: in 1 of 2 runs")
    assert "from 10.0 to 70.0 % accuracy" in drift
    assert "gence(anchor=0.1)" in drift
    assert divergence.startswith("CE: 1 of 2 runs diverged")
    hidden = rows.assign(**{"marginal_kl": 0.0, "status": "done"})
    assert len(run_concerns(hidden)) == 1  # the offset's gain alone tells


def test_losses_whose_means_are_printed_alike_share_the_best():
    values = {"gence": [0.7, 0.5], "ce": [0.6, 0.6], "focal": [0.5998, 0.6], "mae": [0.1, 0.2]}
    found = judge(frame(values), quantities=[ACCURACY]).of("accuracy")
    assert found.best == ("gence", "ce", "focal")
    assert found.sentence().startswith("Accuracy: GenCE, CE and Focal share the best mean, 60.0 %.")


def test_the_same_difference_with_every_seed_is_not_certainty():
    two = judge(frame({"ce": [0.6, 0.7], "gence": [0.62, 0.72]}), quantities=[ACCURACY])
    found = two.of("accuracy").comparisons["gence"]
    assert found.outcome == "no difference seen"
    assert math.isnan(found.t_p)
    assert describe(found, ACCURACY) == (
        "+2.0 points (the same with all 2 seeds, which a t-test cannot judge; corrected signed-rank p = 0.5): "
        "no difference seen"
    )
    cells = [cell.text for cell in difference_table(two).rows[0].cells]
    assert cells[2:] == ["+2.0", "missing", "missing", "0.500", "2", "no difference seen"]
    ten = judge(frame({"ce": [0.6] * 10, "gence": [0.62] * 10}), quantities=[ACCURACY]).of("accuracy")
    assert ten.comparisons["gence"].outcome == "better"
    assert ten.comparisons["gence"].p == pytest.approx(2 / 2**10)


def test_losses_that_never_trained_are_not_judged():
    rows = frame({"ce": [0.1, 0.1], "gence": [0.1, 0.1], "mae": [0.05, 0.06]})
    rows["status"] = ["diverged"] * 4 + ["diverged", "done"]
    found = judge(rows, quantities=[ACCURACY])
    assert found.headline == (
        "GenCE against CE: cannot be judged (all runs diverged) in accuracy. "
        "Runs that diverged: 2 of 2 of GenCE, 2 of 2 of CE, 1 of 2 of MAE."
    )
    assert found.of("accuracy").best == ("mae",)
    assert {c.outcome for c in found.of("accuracy").comparisons.values()} == {"cannot be judged (all runs diverged)"}
    alone = judge(rows[rows["loss"] != "mae"], quantities=[ACCURACY]).of("accuracy")
    assert alone.sentence() == "Accuracy: all runs diverged."


def test_only_what_can_be_judged_is_counted():
    one = judge(frame({"ce": [0.7], "mae": [0.5], "focal": [0.6]}), quantities=[ACCURACY]).of("accuracy")
    assert one.sentence().endswith("With one seed none of the other losses can be judged.")
    values = {"ce": [0.7, 0.71, 0.72], "mae": [0.69, 0.72, 0.71], "focal": [0.6, math.nan, math.nan]}
    some = judge(frame(values), quantities=[ACCURACY]).of("accuracy")
    assert some.sentence().endswith("Not significantly different from it: 1 of 1 other loss that can be judged.")


def test_an_anchored_loss_is_not_told_to_use_an_anchor():
    classes = [str(k) for k in range(20)]
    (narrow,) = data_concerns([10] * 20, classes, batch_size=8, losses=specs("gence(anchor=0.1)", "ce"))
    assert narrow.endswith("Use --batch-size 40 or more, or a larger anchor.")
    rows = frame({"gence(anchor=0.1)": [0.1, 0.7]}).assign(marginal_kl=[2.0, 0.0])
    (drift,) = run_concerns(rows)
    assert "Use an anchor larger than 0.1, train longer, or fold gence.marginal_offset" in drift


@pytest.mark.parametrize(
    ("losses", "warned"), [(["ce", "focal"], False), (["gence(anchor=0.1)"], False), (["ce", "gence"], True)]
)
def test_batches_of_one_row_worry_gence_without_an_anchor_alone(losses, warned):
    found = data_concerns([10, 10], ["a", "b"], batch_size=1, losses=specs(*losses))
    assert any("one row" in concern for concern in found) == warned


def test_no_loss_is_called_the_best_over_losses_with_other_seeds():
    two = judge(frame({"ce": [0.4, 0.4, 0.3, 0.3], "gence": [0.41, 0.40]}), quantities=[ACCURACY]).of("accuracy")
    assert two.best == ()
    assert two.sentence().startswith(
        "Accuracy: the losses do not have the same seeds (GenCE 2, CE 4), so none is called the best. GenCE "
        "against CE: +0.5 points"
    )
    other = judge(frame({"ce": [0.4, 0.5, 0.3], "mae": [0.41, 0.40]}), quantities=[ACCURACY]).of("accuracy")
    assert other.sentence().endswith("Not significantly different from CE: 1 of 1 other loss that can be judged.")
    values = {"ce": [0.4, 0.5, 0.3], "mae": [0.2, 0.2, 0.2], "gence": [0.9]}
    three = judge(frame(values), quantities=[ACCURACY]).of("accuracy")
    assert three.best == ("ce",)
    assert three.sentence().startswith(
        "Accuracy: CE has the best mean of the losses that have every seed, 40.0 ± 10.0 % (n = 3). GenCE against CE: "
    )
