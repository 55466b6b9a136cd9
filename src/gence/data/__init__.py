"""Data: sources, subsets, augmentation."""

from gence.data.images import DataError, DataSplits, ImageSet
from gence.data.inspection import CheckReport, PartReport, check
from gence.data.known import SourceInfo, known_sources
from gence.data.left_out import left_out_notes
from gence.data.sources import load, load_images
from gence.data.subsets import balanced_subset, holdout, long_tail_counts, long_tail_subset

__all__ = [
    "CheckReport",
    "DataError",
    "DataSplits",
    "ImageSet",
    "PartReport",
    "SourceInfo",
    "balanced_subset",
    "check",
    "holdout",
    "known_sources",
    "left_out_notes",
    "load",
    "load_images",
    "long_tail_counts",
    "long_tail_subset",
]
