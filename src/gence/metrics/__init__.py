"""Metrics on probabilities and logits: calibration, out-of-distribution, selective prediction, statistics.

Statistics over seeds take numbers: what only reads records, as ``gence show table1``, does not wait for torch.
"""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.metrics.calibration import (
        ReliabilityBins,
        adaptive_calibration_error,
        classwise_calibration_error,
        confidence_bins,
        debiased_calibration_error,
        expected_calibration_error,
        ks_calibration_error,
        maximum_calibration_error,
        reliability_bins,
    )
    from gence.metrics.classification import (
        RiskCoverage,
        area_under_risk_coverage,
        balanced_accuracy,
        brier_score,
        confusion_matrix,
        excess_area_under_risk_coverage,
        label_distribution,
        marginal_divergence,
        negative_log_likelihood,
        per_class_accuracy,
        predicted_marginal,
        risk_coverage_curve,
        top1_accuracy,
    )
    from gence.metrics.detectors import (
        KNNDetector,
        MahalanobisDetector,
        ViMDetector,
        fit_knn,
        fit_mahalanobis,
        fit_vim,
    )
    from gence.metrics.ood import (
        ScoreHistograms,
        aupr_in,
        aupr_out,
        auroc,
        fpr_at_tpr,
        max_logit,
        max_probability,
        negative_energy,
        negative_entropy,
        score_histograms,
    )
    from gence.metrics.recalibration import ScoreParts, best_temperature, score_parts
    from gence.metrics.stats import (
        PairedDifference,
        Summary,
        paired_difference,
        seeds_needed,
        student_critical,
        summarize,
    )
    from gence.metrics.summary import classification_metrics, detection_metrics, ood_metrics
    from gence.metrics.wilcoxon import holm, smallest_p, wilcoxon_signed_rank

__getattr__, __dir__, _offered = front_door(__name__)
__all__ = [name for name in _offered if name != "student_critical"]  # which is for other rooms, not for users
