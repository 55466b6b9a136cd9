"""The paper's tables and figures: one file each, with its grid, its rows and the values that were printed."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.paper.exhibits.epoch_time import LOSSES, measure_epoch_time, save_epoch_time

__getattr__, __dir__, __all__ = front_door(__name__)
