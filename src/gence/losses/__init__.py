"""Losses: the paper's, its baselines, and the registry that names them. Needs torch alone."""

from gence.losses.backend import get_backend, set_backend
from gence.losses.baselines import (
    brier_loss,
    cosine_loss,
    cross_entropy,
    focal_loss,
    generalized_cross_entropy,
    logit_adjusted_loss,
    mae_loss,
)
from gence.losses.contrastive import Embeddings, supcon_loss
from gence.losses.generative import GenCELoss, gen_cross_entropy
from gence.losses.marginal import BatchMarginal, RunningMarginal
from gence.losses.modules import (
    BrierLoss,
    CosineLoss,
    CrossEntropyLoss,
    FocalLoss,
    GeneralizedCrossEntropyLoss,
    LogitAdjustedLoss,
    MAELoss,
    SupConLoss,
)
from gence.losses.monitor import MarginalDriftWarning, MarginalMonitor
from gence.losses.offset import fold_offset, marginal_offset
from gence.losses.registry import LOSSES, LossInfo, create_loss, loss_info
from gence.losses.targets import TwoHot
from gence.losses.two_pass import two_pass_backward

__all__ = [
    "LOSSES",
    "BatchMarginal",
    "BrierLoss",
    "CosineLoss",
    "CrossEntropyLoss",
    "Embeddings",
    "FocalLoss",
    "GenCELoss",
    "GeneralizedCrossEntropyLoss",
    "LogitAdjustedLoss",
    "LossInfo",
    "MAELoss",
    "MarginalDriftWarning",
    "MarginalMonitor",
    "RunningMarginal",
    "SupConLoss",
    "TwoHot",
    "brier_loss",
    "cosine_loss",
    "create_loss",
    "cross_entropy",
    "focal_loss",
    "fold_offset",
    "gen_cross_entropy",
    "generalized_cross_entropy",
    "get_backend",
    "logit_adjusted_loss",
    "loss_info",
    "mae_loss",
    "marginal_offset",
    "set_backend",
    "supcon_loss",
    "two_pass_backward",
]
