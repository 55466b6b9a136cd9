"""A run as data: frozen specs with canonical JSON and a key that names the run's record.

Beside it stands what follows from its fields alone: the random streams of its seed, and whether its images can be
divided for tuning.

>>> from gence.lab.spec.recipe import RECIPES
>>> spec = RunSpec(data="digits", model="small_cnn", loss=LossSpec.parse("gence(anchor=0.1)"),
...                recipe=RECIPES["tiny"], subset=Subset(n=200), seed=0)
>>> spec.replace(seed=1).key != spec.key
True
>>> RunSpec.from_json(spec.to_json()) == spec
True
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from gence.lab.spec.fields import SpecError, as_plain, check_choice, check_keys, from_mapping, nearest, normalise_fields
from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import SIDE_BY_SIDE_FIELDS, Recipe, named_recipe

if TYPE_CHECKING:
    import torch


def ood_name(source: str) -> str:
    """A short name for an OOD source: the last part of a path without its ending, or the label of its rows.

    >>> ood_name("data/svhn-test.zip"), ood_name("cifar100"), ood_name("tickets.csv#only=not%20ours")
    ('svhn-test', 'cifar100', 'not ours')
    """
    path, _, columns = source.partition("#")
    label = dict(parse_qsl(columns)).get("only")
    if label:
        return re.sub(r"[^\w .-]", "_", label)
    stem = path.rstrip("/").rsplit("/", 1)[-1]
    for ending in (".zip", ".tar.gz", ".tgz", ".tar", ".csv", ".tsv", ".parquet", ".arrow", ".feather", ".npz"):
        stem = stem.removesuffix(ending)
    return stem


def check_ood_names(sources: Iterable[str]) -> None:
    """Raise `SpecError` if two different sources have one short name: one's results would replace the other's.

    >>> check_ood_names(["here/textures", "there/textures.zip"])
    Traceback (most recent call last):
    gence.lab.spec.fields.SpecError: ood: here/textures and there/textures.zip would share the name 'textures' in \
the results; rename one of them
    """
    named: dict[str, str] = {}
    for source in sources:
        other = named.setdefault(ood_name(source), source)
        if other != source:
            raise SpecError(
                f"ood: {other} and {source} would share the name {ood_name(source)!r} in the results; "
                "rename one of them"
            )


SCHEMA_VERSION = 1
"""Rises when an old spec would mean something else; fields that are merely added are marked "added_later" instead."""

_SPLITS = ("test", "val")


@dataclass(frozen=True, kw_only=True)
class Subset:
    """Which part of the training set is used.

    Attributes:
        n: size of a class-balanced subset; None is all of it.
        rho: long-tail imbalance n_max / n_min; None is balanced.
        val_fraction: stratified share of this SMALL training set held out for tuning; 0 trains on all of it.
    """

    n: int | None = None
    rho: float | None = None
    val_fraction: float = 0.0

    def __post_init__(self) -> None:
        normalise_fields(self)
        if self.n is not None and self.n < 1:
            raise SpecError(f"Subset.n must be at least 1 (or absent for all of it), got {self.n}")
        if self.rho is not None and self.rho < 1:
            raise SpecError(f"Subset.rho must be at least 1 (n_max over n_min), got {self.rho}")
        if not 0 <= self.val_fraction < 1:
            raise SpecError(f"Subset.val_fraction must lie in [0, 1), got {self.val_fraction}")

    def to_dict(self) -> dict[str, Any]:
        """Return the subset as JSON-ready values."""
        return as_plain(self)

    @classmethod
    def from_value(cls, value: Any) -> Subset:
        """Build a subset from itself, a size, "all" or a mapping.

        >>> Subset.from_value(2000).n
        2000
        """
        if isinstance(value, Subset):
            return value
        if isinstance(value, Mapping):
            made: Subset = from_mapping(cls, value)
            return made
        return cls() if value in ("all", None) else cls(n=value)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One training run, completely: strings and numbers. Its key names its record.

    Attributes:
        data: name of the data set.
        subset: which part of its training set.
        model: name of the network.
        loss: name and parameters of the loss.
        recipe: how it is trained.
        seed: the one seed from which every named stream of random numbers is made.
        ood: names of data sets used as out-of-distribution inputs.
        evaluate_on: "test", or "val" (the held-out part of the subset) while tuning.
        image_size: pixels, where images are resized; None leaves them as they are.
    """

    data: str
    subset: Subset = field(default_factory=Subset)
    model: str
    loss: LossSpec
    recipe: Recipe
    seed: int
    ood: tuple[str, ...] = ()
    evaluate_on: str = "test"
    image_size: int | None = None

    def __post_init__(self) -> None:
        normalise_fields(self)
        check_choice("RunSpec.evaluate_on", self.evaluate_on, _SPLITS)
        if self.seed < 0:
            raise SpecError(f"RunSpec.seed must not be negative, got {self.seed}")
        check_ood_names(self.ood)
        if self.evaluate_on == "val" and self.subset.val_fraction == 0:
            raise SpecError('RunSpec.evaluate_on is "val", but subset.val_fraction is 0: there is nothing held out')

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values, with the schema version."""
        return {"schema": SCHEMA_VERSION, **as_plain(self)}

    def to_json(self) -> str:
        """Return the canonical JSON: sorted keys, no spaces, every field, floats in their shortest exact form."""
        return self._canonical

    @cached_property
    def _canonical(self) -> str:
        return canonical_json(self.to_dict())

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical JSON: the name of the run's record."""
        return hashlib.sha256(self._canonical.encode()).hexdigest()[:16]

    @cached_property
    def cohort_key(self) -> str:
        """A key shared by runs that can train side by side: their steps have one shape."""
        shared = self.to_dict()
        del shared["seed"], shared["loss"]
        for name in SIDE_BY_SIDE_FIELDS:
            shared["recipe"].pop(name, None)
        return hashlib.sha256(canonical_json(shared).encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSpec:
        """Build a spec from a mapping; losses, recipes and subsets may be given by name.

        >>> RunSpec.from_dict({"data": "digits", "modle": "small_cnn"})
        Traceback (most recent call last):
        gence.lab.spec.fields.SpecError: RunSpec has no field 'modle'; did you mean 'model'?
        """
        given = dict(values)
        schema = given.pop("schema", SCHEMA_VERSION)
        if not isinstance(schema, int) or schema < 1:
            raise SpecError(f"schema is {schema!r}; expected a whole number from 1 to {SCHEMA_VERSION}")
        if schema > SCHEMA_VERSION:
            raise SpecError(
                f"this spec was written by a newer version (schema {schema}); this one reads up to schema "
                f"{SCHEMA_VERSION}: update gence to read it"
            )
        made: RunSpec = from_mapping(cls, {name: _coerced(name, value) for name, value in given.items()})
        return made

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise SpecError(f"a spec is a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    def replace(self, **changes: Any) -> RunSpec:
        """Return a copy with some fields changed; a dotted name reaches inside (`**{"recipe.lr": 0.05}`).

        "loss.anchor" sets a parameter of the loss, "subset.n" a field of the subset.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        # Whole fields first: {"recipe": "modern", "recipe.lr": 0.1} means modern with another rate, in either order.
        for path in sorted(changes, key=lambda name: name.count(".")):
            head, dot, rest = path.partition(".")
            if head not in values:
                inside = [f"{part}.{head}" for part in ("recipe", "subset") if head in values[part].to_dict()]
                hint = f"did you mean {inside[0]!r}?" if inside else nearest(head, values)
                raise SpecError(f"RunSpec has no field {head!r}; {hint}")
            if not dot:
                values[head] = _coerced(head, changes[path])
            elif head == "subset":
                check_keys("Subset", [rest], values[head].to_dict())
                values[head] = Subset(**{**values[head].to_dict(), rest: changes[path]})
            elif head in ("recipe", "loss"):
                values[head] = values[head].replace(**{rest: changes[path]})
            else:
                raise SpecError(f"RunSpec.{head} has no fields inside it, got {path!r}")
        return RunSpec(**values)


def canonical_json(values: Any) -> str:
    """Return the one spelling of JSON-ready values: sorted keys, no spaces, ASCII, floats by `repr`.

    >>> canonical_json({"b": 0.1, "a": [1, 2.0]})
    '{"a":[1,2.0],"b":0.1}'
    """
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _coerced(name: str, value: Any) -> Any:
    """Return a field of a run given by name or as a table as the dataclass it stands for."""
    if name == "loss":
        return LossSpec.from_value(value)
    if name == "subset":
        return Subset.from_value(value)
    if name == "recipe" and isinstance(value, str):
        return named_recipe(value)
    if name == "recipe" and isinstance(value, Mapping):
        return Recipe.from_dict(value)
    return value


def stream_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream with these names, e.g. ``stream_seed(0, "augment", epoch)``.

    >>> stream_seed(0, "init") == stream_seed(0, "init"), stream_seed(0, "init") == stream_seed(0, "order")
    (True, False)
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: str | int) -> torch.Generator:
    """A CPU generator for that stream. A stream per epoch needs no saved state: a resumed run draws the same."""
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, *names))


_LEAST_TO_DIVIDE = 2  # images of a class: one to train on, one to hold out


def small_classes(counts: Sequence[int], classes: Sequence[str], least: int) -> list[str]:
    """Return the classes that have fewer images than `least`, each with how many.

    >>> small_classes([1, 5], ["cat", "dog"], least=2)
    ['cat (1)']
    """
    return [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < least]


def check_held_out(
    counts: Sequence[int],
    classes: Sequence[str],
    subset: Subset,
    *,
    most: int,
    tuning: str,
    larger: str,
    otherwise: str = "",
) -> None:
    """Raise `DataError` if a class is too small to be divided for tuning.

    Args:
        counts: training images that are drawn of each class.
        classes: their names.
        subset: how they are drawn.
        most: the largest n that can be.
        tuning: who holds images out, for the message: "--tune".
        larger: how a larger n is asked for: "--n".
        otherwise: what else can be done, after all remedies.
    """
    from gence.lab.data import DataError, first_few

    small = small_classes(counts, classes, _LEAST_TO_DIVIDE)
    if not small:
        return
    least = _LEAST_TO_DIVIDE * len(classes)
    drawn = "all labels" if subset.n is None else f"n = {subset.n}"
    remedy = "label more of them or remove them"
    if subset.rho is not None:
        drawn, remedy = f"rho = {subset.rho:g}", "use a smaller rho"
    elif subset.n is not None and least <= most:
        remedy = f"use {larger} {least} or more"
    raise DataError(
        f"{tuning} holds out a part of each class's training images, so each class needs at least {_LEAST_TO_DIVIDE} "
        f"of them; with {drawn}, {len(small)} of {len(classes)} classes have fewer: {first_few(small)}; "
        f"{remedy}{otherwise}"
    )
