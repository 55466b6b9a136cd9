"""When the class marginal drifts: a monitor that sees it, and an offset of the logits that repairs it."""

from gence.losses.drift.monitor import MarginalDriftWarning, MarginalMonitor, logits_of, prior_divergence
from gence.losses.drift.offset import fold_offset, marginal_offset
