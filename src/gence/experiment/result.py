"""What training one run returns: numbers, curves, small tables and, where kept, compact predictions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

STATUSES = ("done", "diverged")
"""How a finished run ended. A diverged run is a result too: it is recorded, not repeated."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What training returns for one run.

    Attributes:
        status: "done" or "diverged" (the loss became infinite or NaN; the metrics are those of that model).
        metrics: flat names to numbers: "accuracy", "nll", "ece", "ood/svhn/auroc_entropy", "offset/accuracy".
        curves: one number an epoch: "epoch", "train_loss", "train_accuracy", "lr", "marginal_kl".
        tables: JSON-ready small tables: "reliability", "marginal", "prior", "confusion", "per_class_accuracy".
        predictions: compact arrays: "label" and "predicted" uint16, "confidence" float16, "index".
        wall_s: seconds this run took (its share of the cohort's).
        data: SHA-256 of the images it was made from: "train", "test", "ood/NAME"; empty where they are not known.
    """

    status: str = "done"
    metrics: dict[str, float]
    curves: dict[str, list[float]] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    predictions: dict[str, np.ndarray] | None = None
    wall_s: float = 0.0
    data: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"RunResult.status is {self.status!r}; expected one of {', '.join(STATUSES)}")
