"""Models that ``gence train --save`` wrote, in use: read back, evaluated, predicted with, exported.

`network` and `rows` read a file, of a network on images and of a head on the rows of a table.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.train.saved.export import export_model
    from gence.lab.train.saved.judge import evaluate_model, images_to_judge
    from gence.lab.train.saved.network import TrainedModel, check_adjustments, load_model
    from gence.lab.train.saved.predict import write_predictions
    from gence.lab.train.saved.rows import (
        RowModel,
        evaluate_row_model,
        is_row_model,
        load_row_model,
        rows_to_judge,
        write_row_predictions,
    )

__getattr__, __dir__, __all__ = front_door(__name__)
