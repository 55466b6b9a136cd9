"""Studies of our own, which the paper does not have: one file each, with its grid, table and figure."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.paper.studies.drift_course import course_drawing
    from gence.paper.studies.larger_batches import batches_drawing
    from gence.paper.studies.open_choices import CANDIDATES, search_sentence
    from gence.paper.studies.remedies_figure import anchor_drawing
    from gence.paper.studies.tuned import cells_to_tune, losses_to_tune, merge_tuned, save_tuned

__getattr__, __dir__, __all__ = front_door(__name__)
