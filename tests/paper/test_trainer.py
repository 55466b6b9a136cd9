"""Sharing what is loaded changes nothing about what is trained."""

from __future__ import annotations

import pickle

from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES
from gence.lab.spec.run import RunSpec, Subset
from gence.lab.sweep.trainers import CohortTrainer
from gence.lab.train.cohort import train_cohort


def test_cohorts_share_a_loader_and_come_out_the_same() -> None:
    recipe = RECIPES["tiny"].replace(epochs=2)
    base = RunSpec(
        data="digits", subset=Subset(n=100), model="small_cnn", loss=LossSpec(name="ce"), recipe=recipe, seed=0
    )
    specs = [base, base.replace(seed=1), base.replace(loss="gence")]
    trainer = CohortTrainer()
    shared = [trainer([spec], device="cpu")[0] for spec in specs]
    alone = [train_cohort([spec], device="cpu")[0] for spec in specs]
    assert [result.metrics for result in shared] == [result.metrics for result in alone]
    assert len(trainer._loaders) == 1
    travelled = pickle.loads(pickle.dumps(CohortTrainer(compile=True)))
    assert (travelled.compile, travelled._loaders) == (True, {})
    assert pickle.loads(pickle.dumps(trainer))._loaders == {}
