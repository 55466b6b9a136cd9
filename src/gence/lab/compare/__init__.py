"""The main command's own logic: choose what is left open, run every loss over the seeds, write the report."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.compare.comparison import CompareResult, compare
    from gence.lab.compare.options import AUTO, CompareOptions, flags
    from gence.lab.compare.plan import ComparePlan, plan_comparison

__getattr__, __dir__, __all__ = front_door(__name__)
