"""Calibration after training: calibrators of logits, and prediction sets that keep what they promise.

A calibrator is fitted on logits of samples that the model was not trained on: held-out ones, or, so that no label is
lost to validation, those of cross-fitted heads (`gence.lab.features.cross_fit_heads`).
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.calibrate.calibrators import (
        METHODS,
        Calibrator,
        fit_calibrator,
        fit_isotonic,
        fit_offset,
        fit_temperature,
        fit_vector,
    )
    from gence.calibrate.conformal import (
        SCORES,
        PredictionSets,
        conformal_scores,
        cross_conformal_sets,
        fit_sets,
        sets_metrics,
    )

__getattr__, __dir__, __all__ = front_door(__name__)
