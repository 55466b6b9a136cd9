"""The paper, measured: its exhibits and our studies, each with its grid of runs, rows and printed values.

What has a name can be run, shown and reported; `page` and `readme` write the documents that quote the records.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.paper.exhibits import LOSSES, measure_epoch_time, save_epoch_time
    from gence.paper.figures import reliability_drawings
    from gence.paper.grids import grid_specs
    from gence.paper.page import write_page
    from gence.paper.readme import filled, renderers, write_study
    from gence.paper.registry import load_exhibit
    from gence.paper.results import default_results
    from gence.paper.show import SHOWN, shown
    from gence.paper.studies import (
        CANDIDATES,
        anchor_drawing,
        batches_drawing,
        cells_to_tune,
        course_drawing,
        losses_to_tune,
        merge_tuned,
        save_tuned,
        search_sentence,
    )
    from gence.paper.tables import cell_name, cells

__getattr__, __dir__, __all__ = front_door(__name__)
