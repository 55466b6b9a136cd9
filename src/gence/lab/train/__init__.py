"""One cohort of runs trained together: task, batches, epochs, evaluation, checkpoints; in `saved`, trained models used.

`train_cohort` is the way in; it reads top to bottom in `cohort`, `run` and `batches`.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.train.backbone import RunBackbone, check_device, pretrained_encoder, resolve_device, run_backbone
    from gence.lab.train.cohort import Cohort, CohortProgress, train_cohort
    from gence.lab.train.evaluate import FeatureDetectors, Outputs, evaluate_outputs, of_training
    from gence.lab.train.frozen import FeatureData, PixelData, embed_data, is_frozen, pixel_data
    from gence.lab.train.run import uses_bf16
    from gence.lab.train.saved import (
        RowModel,
        TrainedModel,
        check_adjustments,
        evaluate_model,
        evaluate_row_model,
        export_model,
        images_to_judge,
        is_row_model,
        load_model,
        load_row_model,
        rows_to_judge,
        write_predictions,
        write_row_predictions,
    )
    from gence.lab.train.task import Problem, ProblemLoader, drawn_counts, most_balanced

__getattr__, __dir__, __all__ = front_door(__name__)
