"""What a loss is called and which colour and mark it has, the same in every table and figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gence.experiment.loss_spec import LossSpec

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
