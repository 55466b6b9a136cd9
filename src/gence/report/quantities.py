"""What is reported: the name, unit and direction of each metric, so that no output has to guess them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """How a metric is shown.

    Attributes:
        metric: its name in the records.
        title: what a reader sees.
        percent: whether it is a share, shown in per cent.
        higher_is_better: the direction.
        digits: decimals that are shown.
    """

    metric: str
    title: str
    percent: bool = True
    higher_is_better: bool = True
    digits: int = 1

    @property
    def heading(self) -> str:
        """Title, unit and an arrow towards the better, as in a table's head."""
        unit = ", %" if self.percent else ""
        return f"{self.title}{unit} {'↑' if self.higher_is_better else '↓'}"

    @property
    def unit(self) -> str:
        """What a difference is counted in."""
        return "points" if self.percent else ""

    def scaled(self, value: float) -> float:
        """Return a value in the unit that is shown."""
        return 100 * value if self.percent else value

    def text(self, value: float, *, sign: bool = False) -> str:
        """Return a value as it is printed; "missing" for NaN.

        >>> ACCURACY.text(0.9125), NLL.text(-0.25, sign=True)
        ('91.2', '−0.250')
        """
        if not math.isfinite(value):
            return "missing" if math.isnan(value) else str(value)
        return f"{self.scaled(value):{'+' if sign else ''}.{self.digits}f}".replace("-", "−")

    def best(self, means: Mapping[str, float]) -> tuple[str, ...]:
        """Return whose mean is the best: several where what is printed is the same, none where there is no number.

        >>> ACCURACY.best({"gence": 0.6121, "ce": 0.6119, "mae": 0.5})
        ('gence', 'ce')
        """
        numbers = {name: mean for name, mean in means.items() if math.isfinite(mean)}
        if not numbers:
            return ()
        best = self.text((max if self.higher_is_better else min)(numbers.values()))
        return tuple(name for name, mean in numbers.items() if self.text(mean) == best)


ACCURACY = Quantity(metric="accuracy", title="Accuracy")
NLL = Quantity(metric="nll", title="NLL", percent=False, higher_is_better=False, digits=3)
ECE = Quantity(metric="ece", title="ECE", higher_is_better=False)
BRIER = Quantity(metric="brier", title="Brier score", percent=False, higher_is_better=False, digits=3)
OFFSET_ACCURACY = Quantity(metric="offset/accuracy", title="Accuracy after offset")
MARGINAL_KL = Quantity(metric="marginal_kl", title="Marginal KL", percent=False, higher_is_better=False, digits=3)

MAIN = (ACCURACY, NLL, ECE)
"""What the verdict is about."""

SHOWN = (ACCURACY, NLL, ECE, BRIER, OFFSET_ACCURACY, MARGINAL_KL)
"""The columns of a table of losses, before those of OOD sets."""


def auroc_of(ood: str) -> Quantity:
    """Return how the AUROC of an OOD set is shown, scored by entropy with ID as positive."""
    return Quantity(metric=f"ood/{ood}/auroc_entropy", title=f"AUROC {ood}")
