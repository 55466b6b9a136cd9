"""What a run is, as data: its images, network, loss, recipe and seed, and grids of runs.

A `RunSpec` is frozen; the hash of its canonical JSON names its record. Nothing here loads torch.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.spec.fields import SpecError, check_choice, nearest
    from gence.lab.spec.grid import Grid, check_losses, read_grid
    from gence.lab.spec.loss import (
        GROUPS_HELP,
        LOSS_GROUPS,
        TUNE,
        LossSpec,
        check_numbers,
        expand_groups,
        looked_up,
        split_losses,
    )
    from gence.lab.spec.recipe import (
        FEED_FIELDS,
        PER_RUN_FIELDS,
        RECIPES,
        TUNED_PARTS,
        Recipe,
        anchor_shares,
        average_shares,
        learning_rates,
        named_recipe,
        recipe_name,
    )
    from gence.lab.spec.run import (
        SCHEMA_VERSION,
        RunSpec,
        Subset,
        canonical_json,
        check_held_out,
        check_ood_names,
        ood_name,
        small_classes,
        stream,
        stream_seed,
    )

__getattr__, __dir__, __all__ = front_door(__name__)
