"""The paper, measured: its exhibits and our studies, each one file with its grid of runs, rows and printed values.

What a file declares is found by the registry, and can be run, shown and reported by its name (`entries`, `shown`,
`grid_specs`); `write_page` and `filled` write the documents that quote the records.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.paper.blocks import filled, renderers, write_study
    from gence.paper.does_it_help import differences_figure
    from gence.paper.exhibit_registry import Asked, Entry, entries, grid_specs, shown
    from gence.paper.exhibits_page import write_page
    from gence.paper.records import default_results
    from gence.paper.studies import TUNED_LOSSES

__getattr__, __dir__, __all__ = front_door(__name__)
