"""What the frozen dataclasses of an experiment share: checked, normalised fields, and errors that name the nearest.

Two specs that mean the same must have the same canonical JSON, so an int given for a float field becomes a float, a
list becomes a tuple, and a NumPy scalar becomes a Python number, before anything is hashed.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any


class SpecError(ValueError):
    """A spec, a recipe or a grid that cannot mean anything; the message says which field and what to write."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that helps with an unknown name: the nearest known one, or all of them.

    >>> nearest("momentun", ["momentum", "lr"])
    "did you mean 'momentum'?"
    >>> nearest("zzz", ["momentum", "lr"])
    'known: lr, momentum'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)


def check_keys(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `SpecError` for the first key of `given` that is not in `known`."""
    known = set(known)
    for key in given:
        if key not in known:
            raise SpecError(f"{what} has no field {key!r}; {nearest(str(key), known)}")


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise `SpecError` unless `value` is one of `choices`."""
    choices = list(choices)
    if value not in choices:
        raise SpecError(f"{what} is {value!r}; {nearest(str(value), choices)}")


def number(what: str, value: Any, kind: type) -> Any:
    """Return `value` as a plain finite Python `int` or `float`, or raise `SpecError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise SpecError(f"{what} must be {'an integer' if kind is int else 'a number'}, got {value!r}")
    if not math.isfinite(value):
        raise SpecError(f"{what} must be finite, got {value!r}")
    if kind is int:
        if isinstance(value, numbers.Integral):
            return int(value)
        if not float(value).is_integer():
            raise SpecError(f"{what} must be an integer, got {value!r}")
        return int(float(value))
    return float(value) + 0.0  # the sum turns -0.0 into 0.0: equal numbers, one spelling


def normalise_fields(instance: Any) -> None:
    """Convert every field of a frozen dataclass to its declared type in place, or raise `SpecError`.

    Understands int, float, str, bool, `X | None`, `tuple[X, ...]` and other dataclasses; meant for `__post_init__`.
    """
    cls: type = type(instance)
    for field, hint in _hints(cls).items():
        value = _converted(f"{cls.__name__}.{field}", getattr(instance, field), hint)
        object.__setattr__(instance, field, value)


def as_plain(instance: Any) -> dict[str, Any]:
    """Return a frozen dataclass as JSON-ready values: nested dictionaries, lists for tuples.

    A field whose metadata says `{"added_later": True}` is omitted while it has its default, so that adding a choice
    to a recipe does not rename the records that were made before the choice existed.
    """
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.metadata.get("added_later") and value == field.default:
            continue
        if hasattr(value, "to_dict"):
            value = value.to_dict()
        elif isinstance(value, tuple):
            value = list(value)
        plain[field.name] = value
    return plain


def from_mapping(cls: type, values: Mapping[str, Any]) -> Any:
    """Build the dataclass `cls` from a mapping; unknown and missing keys are errors that name the field."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    check_keys(cls.__name__, values, fields)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise SpecError(f"{cls.__name__} needs the field {name!r}; given: {', '.join(sorted(values)) or 'nothing'}")
    return cls(**values)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the resolved annotations of a dataclass's fields (resolving them is slow, and grids are large)."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _converted(what: str, value: Any, hint: Any) -> Any:
    """Return `value` as the annotated type `hint`."""
    if hint in (int, float):
        return number(what, value, hint)
    if hint is bool or hint is str:
        if not isinstance(value, hint):
            raise SpecError(f"{what} must be {'true or false' if hint is bool else 'a string'}, got {value!r}")
        return value
    if isinstance(hint, types.UnionType):
        (inner,) = [member for member in typing.get_args(hint) if member is not types.NoneType]
        return None if value is None else _converted(what, value, inner)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise SpecError(f"{what} must be a list, got {value!r}")
        return tuple(_converted(f"{what}[{i}]", item, inner) for i, item in enumerate(value))
    if not isinstance(value, hint):
        raise SpecError(f"{what} must be a {hint.__name__}, got {value!r}")
    return value
