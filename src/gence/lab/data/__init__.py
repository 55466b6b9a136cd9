"""A source in, labelled samples out: folders, archives, downloads and arrays, checked, decoded, divided and augmented.

`load` is the way in. What a folder contains is judged by `check`; subsets are drawn by seed.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.data.archives import Container, is_ignored, open_container
    from gence.lab.data.augment import EpochAugmenter, EpochDraws, MixDraws, apply_mixing, draw_mixing, normalize
    from gence.lab.data.cache import default_cache_dir, sole_maker
    from gence.lab.data.decode import Size, decode_all, decode_image, size_like, size_of
    from gence.lab.data.download import check_hub_is_reachable
    from gence.lab.data.errors import DataError, NotAtHandError, first_few
    from gence.lab.data.folders import IMAGE_SUFFIXES, find_splits
    from gence.lab.data.images import DataSplits, ImageSet
    from gence.lab.data.inspection import CheckReport, PartReport, check, left_out_notes
    from gence.lab.data.names import HUB_PREFIX, SourceInfo, known_sources, plain_source, same_source
    from gence.lab.data.samplers import ClassStratifiedBatchSampler
    from gence.lab.data.sources import container_paths, has_own_test_part, load, load_images, split_off_test
    from gence.lab.data.subsets import balanced_subset, holdout, long_tail_counts, long_tail_subset
    from gence.lab.data.tables import (
        Columns,
        RowSet,
        RowSplits,
        TableAddress,
        frame_source,
        is_table,
        judged_rows,
        load_ood_rows,
        load_rows,
        new_rows,
        read_new_rows,
        read_one,
        with_columns,
    )

__getattr__, __dir__, __all__ = front_door(__name__)
