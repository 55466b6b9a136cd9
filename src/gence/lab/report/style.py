"""What a loss is called and which colour and mark it has, the same in every table and figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gence.lab.spec import LossSpec

_ORDER = ("gence", "ce", "generalized_ce", "focal", "mae", "brier")


@dataclass(frozen=True)
class Mark:
    """How a loss is drawn: two colours (on white, on dark), a marker and a line style, so that colour is not alone."""

    light: str
    dark: str
    marker: str
    line: str


# Okabe and Ito's palette, darkened until each colour has a contrast of 3 to 1 against white, and lightened for dark.
_MARKS = (
    Mark("#0064a8", "#5cb3f0", "o", "-"),
    Mark("#c44601", "#ff9a5c", "s", "-"),
    Mark("#007a5a", "#3fcf9f", "D", "-"),
    Mark("#a03d86", "#e796cf", "^", "--"),
    Mark("#7d6500", "#e0c33c", "v", "--"),
    Mark("#5f6670", "#b4bcc8", "P", "--"),
    Mark("#8c1c3a", "#ff8fa6", "X", ":"),
    Mark("#2f7fa0", "#8fd8f0", "<", ":"),
    Mark("#4b3fa0", "#b0a6ff", ">", ":"),
    Mark("#3f6b1f", "#a6d77c", "h", "-."),
)
_RESERVED = {"gence": 0, "ce": 1, "generalized_ce": 3, "focal": 4, "mae": 5, "brier": 6}
_ANCHORED = 2


def loss_title(loss: str) -> str:
    """Return how a loss is printed.

    >>> loss_title("gence(anchor=0.1,prior=uniform)")
    'GenCE (anchor 0.1, prior uniform)'
    """
    from gence.losses import LOSSES

    spec = LossSpec.parse(loss)
    title = LOSSES[spec.name].title if spec.name in LOSSES else spec.name
    inner = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in spec.pairs)
    return f"{title} ({inner})" if inner else title


_REFERENCES = {
    "majority": ("Majority class", ""),
    "logistic": ("Logistic regression", "L2 by cross-validation"),
    "svm": ("RBF support vector machine", "C and width by cross-validation"),
    "centroid": ("Nearest class mean", ""),
    "knn": ("k nearest neighbours", "k by cross-validation"),
    "boosting": ("Gradient-boosted trees", "nothing tuned"),
}


def reference_title(name: str, *, chosen: bool = False) -> str:
    """Return how a reference is printed, with what is chosen for it where that is asked for.

    >>> reference_title("knn"), reference_title("knn", chosen=True)
    ('k nearest neighbours', 'k nearest neighbours, k by cross-validation')
    """
    title, how = _REFERENCES.get(name, (name, ""))
    return f"{title}, {how}" if chosen and how else title


def loss_order(loss: str) -> tuple[int, str]:
    """Return the key that sorts losses: the paper's first, each before its variants."""
    from gence.losses import LOSSES

    name = LossSpec.parse(loss).name
    known = [*_ORDER, *(entry for entry in LOSSES if entry not in _ORDER)]
    return (known.index(name) if name in known else len(known)), loss


def marks_for(losses: Sequence[str]) -> dict[str, Mark]:
    """Return a mark for each loss: the paper's losses always have theirs, others take what is left.

    >>> marks_for(["ce", "cosine"])["ce"] == marks_for(["ce"])["ce"]
    True
    """
    chosen: dict[str, int] = {}
    for loss in losses:
        spec = LossSpec.parse(loss)
        wanted = _ANCHORED if spec.name == "gence" and spec.params.get("anchor") else _RESERVED.get(spec.name)
        if wanted is not None and wanted not in chosen.values():
            chosen[loss] = wanted
    kept = {*_RESERVED.values(), _ANCHORED}
    free = [i for i in range(len(_MARKS)) if i not in kept] + [i for i in sorted(kept) if i not in chosen.values()]
    waiting = [loss for loss in losses if loss not in chosen]
    for position, loss in enumerate(waiting):
        chosen[loss] = free[position] if position < len(free) else position % len(_MARKS)
    return {loss: _MARKS[chosen[loss]] for loss in losses}


def colour_variables(marks: Iterable[Mark]) -> str:
    """Return the CSS variables of the losses' colours, on light and on dark."""
    each = list(dict.fromkeys(marks))
    light = ";".join(f"--c{mark.light[1:]}:{mark.light}" for mark in each)
    dark = ";".join(f"--c{mark.light[1:]}:{mark.dark}" for mark in each)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


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
        return f"{self.scaled(value):{'+' if sign else 'z'}.{self.digits}f}".replace("-", "−")  # no −0.000

    def best(self, means: Mapping[str, float]) -> tuple[str, ...]:
        """Return whose mean is the best: several where what is printed is the same, none without numbers.

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
