"""A batch in parts: ranks, micro-batches and running marginals, each with its exact share of the loss."""

from gence.losses.parts.marginal import BatchMarginal, RunningMarginal
from gence.losses.parts.ranks import Group, resolve_group, warn_of_lone_rank, watch_accumulation
from gence.losses.parts.share import (
    Marginal,
    MarginalSource,
    share_of_batch,
)
