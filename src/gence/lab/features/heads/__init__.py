"""Heads on cached features: all runs of a comparison train together, tuned by cross-validation; and references.

`train_heads` is the way in; `gradients` has the losses of stacked runs, `full_batch` the exact full-data equation.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.features.heads.problem import (
        HEAD_RECIPE,
        Head,
        HeadProblem,
        HeadRun,
        Scaling,
        TrainedHead,
        logits_of,
    )
    from gence.lab.features.heads.projections import PROJECTION, train_projections
    from gence.lab.features.heads.references import REFERENCES, Reference, affordable_references, fit_references
    from gence.lab.features.heads.stacks import HEADS
    from gence.lab.features.heads.training import train_heads
    from gence.lab.features.heads.tuning import (
        FOLDS,
        TRIALS,
        HeldOut,
        Trial,
        Tuned,
        choose_trial,
        cross_fit_heads,
        stratified_folds,
        tune_heads,
    )

__getattr__, __dir__, __all__ = front_door(__name__)
