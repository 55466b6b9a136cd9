"""What tuning found, without the tuning."""

from __future__ import annotations

from gence.lab.spec.loss import LossSpec
from gence.lab.spec.run import RunSpec
from gence.lab.store.store import Store
from gence.lab.sweep.trials import TunedLoss
from gence.lab.sweep.tuning import TuneReport, save_tuned


def tuned_report(store: Store) -> TuneReport:
    """Write what tuning cross-entropy and GenCE's anchor might find for a cell of Table 1; return it."""
    base = RunSpec.from_dict(
        {"data": "cifar100", "subset": 2000, "model": "vgg19", "recipe": "paper", "loss": "ce", "seed": 0}
    )
    changes = {"recipe.lr": 0.05, "recipe.weight_decay": 0.001, "recipe.warmup_epochs": 5.0}
    best = [
        TunedLoss(
            asked=LossSpec.parse("ce"), changes={**changes, "loss": "ce"}, value=0.2, trials=4, pruned=1, budget=4
        ),
        TunedLoss(
            asked=LossSpec.parse("gence(anchor=tune)"),
            changes={**changes, "loss": LossSpec.parse("gence(anchor=0.3)")},
            value=0.25,
            trials=4,
            pruned=0,
            budget=4,
        ),
    ]
    made = TuneReport(base=base, seeds=(1000,), best=tuple(best), trials=4, complete=True)
    save_tuned(store, made)
    return made
