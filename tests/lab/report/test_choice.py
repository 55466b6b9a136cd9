"""What to choose: the best and those as good, and a recommendation that only follows significant differences."""

import pandas as pd
import pytest

from gence.lab.report import choose, recommendation
from gence.lab.report.choice import Candidate

NOISE = (0.0, 0.011, -0.012, 0.004, -0.003)


def frame(seeds=5, model="linear@efficientnet_lite0", **losses):
    """Rows of losses, each as accuracy, NLL and NLL after calibration; seeds move all alike, and each a little."""
    rows = []
    for number, (loss, (accuracy, nll, calibrated)) in enumerate(losses.items()):
        for seed in range(seeds):
            own = NOISE[seed] + 0.001 * NOISE[(seed + number + 1) % 5]
            row = {"loss": loss, "seed": seed, "status": "done", "model": model, "accuracy": accuracy + own}
            row |= {"nll": nll + own, "calibrated/accuracy": accuracy + own}
            rows.append(row if calibrated is None else {**row, "calibrated/nll": calibrated + 0.999 * own})
    return pd.DataFrame(rows)


def test_the_best_of_each_aim_and_those_that_are_as_good():
    found = {c.aim: c for c in choose(frame(ce=(0.7, 0.9, 0.8), gence=(0.7000001, 0.8, 0.79), mae=(0.5, 2.0, 1.5)))}
    assert found["accuracy"].best == Candidate("gence")
    assert found["accuracy"].level == (Candidate("ce"),)
    assert found["accuracy"].is_worse(Candidate("mae"))
    assert found["probabilities"].best == Candidate("gence", True)
    assert found["probabilities"].level == ()
    assert "sets" not in found
    assert "GenCE has the best mean, 70.0 % (Accuracy, 5 seeds); not significantly worse: CE" in (
        found["accuracy"].sentence()
    )


def test_no_difference_on_frozen_features_is_said_plainly():
    said = recommendation(frame(ce=(0.7, 0.9, 0.8), gence=(0.7000001, 0.8, 0.8000001)))
    assert said.startswith("On these frozen features the loss does not matter for accuracy: use CE, from which")
    assert "Calibrate its probabilities (NLL 0.900 raw, 0.800 calibrated): no loss has better ones." in said
    same = recommendation(frame(ce=(0.7, 0.9, 0.8), gence=(0.7, 0.8, 0.8000001)))
    assert "the loss does not matter for accuracy: use CE; none has a higher mean (70.0 %, 5 seeds)." in same
    worse = recommendation(frame(ce=(0.7, 0.9, 0.8), gence=(0.7, 0.8, 0.8000001), mae=(0.5, 2.0, 1.5)))
    assert worse.startswith("Use CE: no loss is more accurate (70.0 %, 5 seeds).")
    scratch = recommendation(frame(model="vgg19", ce=(0.7, 0.9, None), gence=(0.7000001, 0.8, None)))
    assert scratch.startswith("No loss is a clear winner: use CE")
    assert "For probabilities: GenCE has the best mean, 0.800" in scratch


def test_a_significantly_better_loss_is_recommended():
    said = recommendation(frame(ce=(0.6, 0.9, 0.95), gence=(0.7, 0.8, 0.85)))
    assert said.startswith(
        "Use GenCE: its accuracy of 70.0 % is significantly better than CE's (+10.0 points, 5 seeds)"
    )
    assert said.endswith(
        "Its probabilities need no calibration (NLL 0.800 raw, 0.850 calibrated): no loss has better ones."
    )


def test_better_probabilities_of_another_loss_are_said():
    said = recommendation(frame(ce=(0.7, 0.9, 0.85), gence=(0.6, 0.7, 0.65)))
    assert said.startswith("Use CE: no loss is more accurate (70.0 %, 5 seeds).")
    assert said.endswith("those of GenCE, calibrated are significantly better (0.650).")


def test_one_seed_recommends_more():
    assert recommendation(frame(1, ce=(0.7, 0.9, 0.8), gence=(0.8, 0.8, 0.7))).startswith("One seed cannot show")


def test_losses_without_every_seed_and_diverged_ones_are_no_choice():
    rows = frame(ce=(0.7, 0.9, 0.8), gence=(0.8, 0.8, 0.7), mae=(0.9, 0.9, 0.9))
    rows.loc[rows["loss"] == "mae", "status"] = "diverged"
    rows = rows.drop(rows[(rows["loss"] == "gence") & (rows["seed"] == 3)].index)
    (accuracy, *_) = choose(rows)
    assert list(accuracy.means) == [Candidate("ce")]
    assert accuracy.sentence().endswith("nothing else was measured.")
    assert recommendation(rows).startswith("CE alone was run: accuracy 70.0 %")


@pytest.mark.parametrize("count", [2, 7])
def test_many_equals_are_counted(count):
    values = {f"gence(anchor={k})": (0.7 + 1e-6 * k, 0.9, 0.8) for k in range(1, count + 1)}
    (accuracy, *_) = choose(frame(**values))
    assert len(accuracy.level) == count - 1
    assert ("3 more" in accuracy.sentence()) == (count == 7)
