"""The paper, measured: one file an exhibit, with its grid of runs, its rows and the values that were printed."""

from __future__ import annotations

import importlib

from gence.lab.spec import Recipe, check_choice
from gence.paper.exhibit import Exhibit

EXHIBITS = ("table1", "imbalanced", "ece", "ood", "smoothing", "reliability", "batch_size")
"""The exhibits whose cells are training runs, in the paper's order. `epoch_time` is measured by a benchmark."""

STUDIES = ("remedies", "larger_batches")
"""Exhibits that the paper does not have."""


def load_exhibit(name: str, recipe: Recipe | None = None) -> Exhibit:
    """Return an exhibit by name, under the paper's recipe unless another is given.

    >>> exhibit = load_exhibit("table1")
    >>> len(exhibit.rows), len(exhibit.columns)
    (12, 8)
    """
    check_choice("exhibit", name, (*EXHIBITS, *STUDIES))
    room = "exhibits" if name in EXHIBITS else "studies"
    made: Exhibit = getattr(importlib.import_module(f"gence.paper.{room}.{name}"), name)(recipe)
    return made
