"""Losses: the paper's, its baselines, and the registry that names them. Needs torch alone.

Open `formula` first: the equation. `generative` turns arguments into rows, and rows into the loss by the formula or by
a faster implementation of it (`backends`); `parts` is for batches in parts, `drift` for a class marginal that leaves.
"""

# What other rooms of this package take from here; users have no need of it.
from gence.losses._checks import check_anchor, check_gamma, check_number, check_prior
from gence.losses.accumulate import FirstPass, two_pass_backward
from gence.losses.backends import HAS_TRITON, INTERPRETED, OLDEST_TRITON, get_backend, set_backend
from gence.losses.baselines import (
    BrierLoss,
    CosineLoss,
    CrossEntropyLoss,
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    LogitAdjustedLoss,
    MAELoss,
    SupConLoss,
    brier_loss,
    cosine_loss,
    cross_entropy,
    focal_loss,
    generalized_cross_entropy,
    logit_adjusted_loss,
    mae_loss,
)
from gence.losses.contrastive import Embeddings, supcon_loss
from gence.losses.drift import (
    MarginalDriftWarning,
    MarginalMonitor,
    fold_offset,
    logits_of,
    marginal_offset,
    prior_divergence,
)
from gence.losses.generative import GenCELoss, gen_cross_entropy, why_backend
from gence.losses.parts import BatchMarginal, Group, Marginal, RunningMarginal
from gence.losses.registry import LOSSES, LossInfo, create_loss, loss_info
from gence.losses.rivals import (
    DualFocalLoss,
    LogitNormLoss,
    MbLSLoss,
    MDCALoss,
    Poly1Loss,
    SquentropyLoss,
    dual_focal_loss,
    logit_norm_loss,
    mbls_loss,
    mdca_loss,
    poly1_loss,
    squentropy_loss,
)
from gence.losses.targets import TwoHot, column_logsumexp

__all__ = [
    "LOSSES",
    "BatchMarginal",
    "BrierLoss",
    "CosineLoss",
    "CrossEntropyLoss",
    "DualFocalLoss",
    "Embeddings",
    "FocalLoss",
    "GenCELoss",
    "GeneralizedCrossEntropyLoss",
    "LogitAdjustedLoss",
    "LogitNormLoss",
    "LossInfo",
    "MAELoss",
    "MDCALoss",
    "MarginalDriftWarning",
    "MarginalMonitor",
    "MbLSLoss",
    "Poly1Loss",
    "RunningMarginal",
    "SquentropyLoss",
    "SupConLoss",
    "TwoHot",
    "brier_loss",
    "cosine_loss",
    "create_loss",
    "cross_entropy",
    "dual_focal_loss",
    "focal_loss",
    "fold_offset",
    "gen_cross_entropy",
    "generalized_cross_entropy",
    "get_backend",
    "logit_adjusted_loss",
    "logit_norm_loss",
    "loss_info",
    "mae_loss",
    "marginal_offset",
    "mbls_loss",
    "mdca_loss",
    "poly1_loss",
    "set_backend",
    "squentropy_loss",
    "supcon_loss",
    "two_pass_backward",
]
