"""Exact theory on finite input spaces: risks, properness, completeness; and why the class marginal drifts."""

from gence.theory.drift import bias_curvature, bias_profile, toy_curvature, toy_logits, toy_plateau, toy_profile
from gence.theory.figures import write_figures
from gence.theory.finite_batch import BatchSizeRow, batch_risk, batch_size_table, minimise_batch_risk
from gence.theory.minimise import Minimisers, equivalence_family, minimise
from gence.theory.populations import (
    Completeness,
    Population,
    anchor_point_population,
    completeness,
    distinct_gaussians,
    gaussian_population,
    has_anchor_points,
    proportional_population,
    random_population,
)
from gence.theory.risk import anchor_term, excess_risk, log_sum_terms, risk
from gence.theory.scores import (
    GenCE,
    Pointwise,
    Score,
    brier,
    cross_entropy,
    focal,
    generalised_cross_entropy,
    generalised_cross_entropy_minimiser,
    mean_absolute_error,
    mean_absolute_error_minimiser,
)
from gence.theory.verify import Check, verify

__all__ = [
    "BatchSizeRow",
    "Check",
    "Completeness",
    "GenCE",
    "Minimisers",
    "Pointwise",
    "Population",
    "Score",
    "anchor_point_population",
    "anchor_term",
    "batch_risk",
    "batch_size_table",
    "bias_curvature",
    "bias_profile",
    "brier",
    "completeness",
    "cross_entropy",
    "distinct_gaussians",
    "equivalence_family",
    "excess_risk",
    "focal",
    "gaussian_population",
    "generalised_cross_entropy",
    "generalised_cross_entropy_minimiser",
    "has_anchor_points",
    "log_sum_terms",
    "mean_absolute_error",
    "mean_absolute_error_minimiser",
    "minimise",
    "minimise_batch_risk",
    "proportional_population",
    "random_population",
    "risk",
    "toy_curvature",
    "toy_logits",
    "toy_plateau",
    "toy_profile",
    "verify",
    "write_figures",
]
