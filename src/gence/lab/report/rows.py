"""What a page says of runs on the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rows_in_words(about: Mapping[str, Any]) -> str:
    """Return what heads on rows read, in sentences.

    >>> rows_in_words({"name": "features", "features": 16, "rows": "features", "columns": "Ready features: 16 per row"})
    'Ready features: 16 per row.'
    """
    columns = f"{about['columns']}."
    if about["rows"] == "features":
        return columns
    if about["rows"] == "columns":
        return (
            f"{columns} {about['features']} features per row: missing numbers are filled with the median and all are "
            "standardised, categories are columns of 0 and 1; fitted on the training part."
        )
    cut = about["cut"]
    longer = "No text is" if not cut else "One text is" if cut == 1 else f"{cut:,} texts are"
    return (
        f"{columns} Frozen features of the pretrained text encoder {about['name']}: {about['features']} per text "
        f"(weights {about['weights']}). {longer} longer than the {about['limit']} tokens it reads"
        f"{'.' if not cut else ', and cut off there.'}"
    )
