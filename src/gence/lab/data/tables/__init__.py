"""Labelled tables in, rows out: texts, columns of numbers and categories, or features that are ready.

`load_rows` is the way in; `TableAddress` says how a source and its columns are written as one text.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.data.tables.address import TableAddress, frame_source, is_table, with_columns
    from gence.lab.data.tables.columns import Columns
    from gence.lab.data.tables.files import read_one
    from gence.lab.data.tables.findings import TablePart, check_rows
    from gence.lab.data.tables.load import judged_rows, load_ood_rows, load_rows, new_rows, read_new_rows
    from gence.lab.data.tables.rows import RowSet, RowSplits

__getattr__, __dir__, __all__ = front_door(__name__)
