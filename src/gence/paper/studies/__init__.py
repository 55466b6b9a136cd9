"""Studies of our own, which the paper does not have: one file each, with its grid, table, figure and findings.

The registry finds what the files declare as their `ENTRIES`; `evidence` has the statistics that several of them share.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.paper.studies.transfer import help_rows
    from gence.paper.studies.tuned import TUNED_LOSSES, measured_tuned

__getattr__, __dir__, __all__ = front_door(__name__)
