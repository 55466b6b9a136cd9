"""A loss by name with its parameters, as data and as a string."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gence.lab.spec.fields import SpecError, number

if TYPE_CHECKING:
    from torch import Tensor

_LOSS_FORM = re.compile(r"\s*(?P<name>[A-Za-z_][\w.+-]*)\s*(?:\((?P<params>.*)\))?\s*", re.DOTALL)

ParamValue = float | int | str | bool
"""What a parameter of a loss may be."""

TUNE = "tune"
"""The value of a loss's parameter that asks for it to be tuned."""

_GIVEN_IN_WORDS = ("prior", "weight")

LOSS_GROUPS: Mapping[str, tuple[str, ...]] = {
    "paper": ("gence", "ce", "generalized_ce", "focal", "mae", "brier"),
    "calibration": (
        "gence",
        "gence(anchor=0.1)",
        "ce",
        "ce(label_smoothing=0.1)",
        "brier",
        "focal",
        "dual_focal",
        "mbls",
        "mdca",
        "poly1",
        "squentropy",
        "logit_norm",
    ),
    "imbalance": (
        "gence",
        "gence(anchor=0.1,prior=train)",
        "gence(anchor=0.1,prior=uniform)",
        "ce",
        "focal",
        "logit_adjusted(prior=train)",
    ),
}
"""Lists of losses by name; "all" stands for every loss of logits and the anchored one."""

GROUPS_HELP = f"{', '.join(LOSS_GROUPS)} and all name groups of losses."


@dataclass(frozen=True, init=False)
class LossSpec:
    """A loss by name, with its parameters.

    "prior" may be "train" (the training subset's class distribution), "uniform", or absent (the batch's own); "weight"
    may be "balanced" (each class weighs as much as any other) or absent.
    A whole number is kept as an int, so that `anchor=1` and `anchor=1.0` are one loss.

    >>> str(LossSpec(name="gence", params={"prior": "train", "anchor": 0.1}))
    'gence(anchor=0.1,prior=train)'
    """

    name: str
    pairs: tuple[tuple[str, ParamValue], ...]

    def __init__(self, *, name: str, params: Mapping[str, ParamValue] | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise SpecError(f"LossSpec.name must be the name of a loss, got {name!r}")
        checked = {param: _param(name, param, value) for param, value in (params or {}).items()}
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "pairs", tuple(sorted(checked.items())))

    @property
    def params(self) -> dict[str, ParamValue]:
        """The parameters, in a dictionary of its own: changing it does not change the spec."""
        return dict(self.pairs)

    def __str__(self) -> str:
        inner = ",".join(f"{name}={_param_text(value)}" for name, value in self.pairs)
        return f"{self.name}({inner})" if inner else self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the loss as JSON-ready values."""
        return {"name": self.name, "params": self.params}

    def replace(self, **changes: ParamValue) -> LossSpec:
        """Return a copy with some parameters set."""
        return LossSpec(name=self.name, params={**self.params, **changes})

    @classmethod
    def parse(cls, text: str) -> LossSpec:
        """Read the string form, `name` or `name(param=value, ...)`; words need no quotes.

        >>> LossSpec.parse("gence(anchor=0.1, prior=uniform)").to_dict()
        {'name': 'gence', 'params': {'anchor': 0.1, 'prior': 'uniform'}}
        """
        match = _LOSS_FORM.fullmatch(text)
        if match is None:
            raise SpecError(f"loss is {text!r}; expected name or name(param=value, ...), such as gence(anchor=0.1)")
        params: dict[str, ParamValue] = {}
        for part in filter(str.strip, (match["params"] or "").split(",")):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not name.isidentifier() or not value:
                raise SpecError(f"loss {text!r} has {part.strip()!r}; expected param=value")
            if name in params:
                raise SpecError(f"loss {text!r} gives {name!r} twice")
            params[name] = _read_param(value)
        return cls(name=match["name"], params=params)

    @classmethod
    def from_value(cls, value: Any) -> LossSpec:
        """Build a loss from itself, its string form, or a mapping of name and parameters.

        The mapping may be flat (`{"name": "gence", "anchor": 0.1}`, as a TOML table reads best) or have "params".
        """
        if isinstance(value, LossSpec):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        if not isinstance(value, Mapping) or "name" not in value:
            raise SpecError(f"loss is {value!r}; expected a name, name(param=value), or a table with a name")
        params = value.get("params", {})
        if not isinstance(params, Mapping):
            raise SpecError(f"the params of loss {value['name']!r} are {params!r}; expected a table")
        flat = {name: item for name, item in value.items() if name not in ("name", "params")}
        return cls(name=value["name"], params={**params, **flat})


def split_losses(text: str) -> list[str]:
    """Return the losses of a list separated by commas or semicolons; commas inside brackets belong to a loss.

    >>> split_losses("gence(anchor=0.1, prior=train), ce")
    ['gence(anchor=0.1, prior=train)', 'ce']
    >>> split_losses("paper,mdca")
    ['gence', 'ce', 'generalized_ce', 'focal', 'mae', 'brier', 'mdca']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character in ",;" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return expand_groups(part.strip() for part in parts if part.strip())


def expand_groups(losses: Iterable[Any]) -> list[Any]:
    """Return the losses with each name of a group replaced by its members; each loss stays where it is named first."""
    found: list[Any] = []
    for loss in losses:
        if loss == "all":
            from gence.losses import LOSSES  # here, because a spec needs no torch

            fitted = {"logit_adjusted": "logit_adjusted(prior=train)"}  # without a prior it is cross-entropy
            found += [fitted.get(name, name) for name, info in LOSSES.items() if info.takes == "logits"]
            found.append("gence(anchor=0.1)")
        else:
            found += LOSS_GROUPS.get(loss, (loss,)) if isinstance(loss, str) else (loss,)
    return [loss for i, loss in enumerate(found) if loss not in found[:i]]


def check_numbers(loss: LossSpec, *, may_tune: bool = False) -> None:
    """Raise `SpecError` for a parameter that is a word where losses take a number.

    Args:
        loss: the loss.
        may_tune: whether a parameter may be left to tuning, as in `gence(anchor=tune)`.

    >>> check_numbers(LossSpec.parse("focal(gamma=a)"))
    Traceback (most recent call last):
    gence.lab.spec.fields.SpecError: loss focal(gamma=a): gamma is 'a'; expected a number, such as gamma=0.5
    """
    for name, value in loss.params.items():
        if name in _GIVEN_IN_WORDS or not isinstance(value, bool | str) or (may_tune and value == TUNE):
            continue
        tuning = "; only gence tune and gence compare --tune N try several" if value == TUNE else ""
        raise SpecError(f"loss {loss}: {name} is {value!r}; expected a number, such as {name}=0.5{tuning}")


def looked_up(loss: LossSpec, prior: Tensor) -> dict[str, Any]:
    """Return a loss's parameters with tensors in the place of words.

    Args:
        loss: the loss.
        prior: class distribution (K,) of the training labels.

    Raises:
        ValueError: a word that means nothing, or a word where losses take a number.

    >>> import torch
    >>> looked_up(LossSpec.parse("ce(weight=balanced)"), torch.tensor([0.75, 0.25]))["weight"]
    tensor([0.6667, 2.0000])
    """
    check_numbers(loss)
    params: dict[str, Any] = loss.params
    classes = len(prior)
    named = {
        "prior": {"train": prior, "uniform": prior.new_full(prior.shape, 1 / classes)},
        # As scikit-learn's class_weight="balanced"; a class without rows weighs nothing.
        "weight": {"balanced": (prior > 0) / (classes * prior).clamp_min(1e-12)},
    }
    for name in _GIVEN_IN_WORDS:
        if name in params and params[name] not in named[name]:
            words = ", ".join(map(repr, named[name]))
            raise ValueError(f"loss {loss}: {name} is {params[name]!r}; expected {words}, or none at all")
        if name in params:
            params[name] = named[name][params[name]]
    return params


def _param(loss: str, name: str, value: Any) -> ParamValue:
    """Return one checked parameter of a loss; whole floats become ints, so that each number has one spelling."""
    if not isinstance(name, str) or not name.isidentifier():
        raise SpecError(f"a parameter of loss {loss!r} is called {name!r}; expected a Python name")
    if isinstance(value, bool | str):
        return value
    real: float = number(f"parameter {name!r} of loss {loss!r}", value, float)
    return int(real) if real.is_integer() else real


def _param_text(value: ParamValue) -> str:
    """Return a parameter as the string form writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_param(text: str) -> ParamValue:
    """Read a parameter of the string form: true, false, a number, or a word (with or without quotes)."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    try:
        return float(text)
    except ValueError:
        return text
