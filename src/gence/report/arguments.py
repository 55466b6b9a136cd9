"""The arguments of a comparison as people write them, brought to one form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from numbers import Integral

from gence.data.source_names import plain_source
from gence.experiment.fields import SpecError
from gence.experiment.loss_spec import LossSpec

Source = str | os.PathLike[str]
"""A name, a folder or an archive."""


def split_losses(text: str) -> list[str]:
    """Return the losses of a list separated by commas or semicolons; commas inside brackets belong to a loss.

    >>> split_losses("gence(anchor=0.1, prior=train), ce")
    ['gence(anchor=0.1, prior=train)', 'ce']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character in ",;" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def read_losses(losses: str | Sequence[str]) -> tuple[LossSpec, ...]:
    """Return the losses, each once; a text may name several, with commas between them.

    >>> [str(loss) for loss in read_losses("gence,ce")]
    ['gence', 'ce']
    """
    listed = split_losses(losses) if isinstance(losses, str) else losses
    found = tuple(dict.fromkeys(LossSpec.from_value(loss) for loss in listed))
    if not found:
        raise SpecError("losses is empty; expected at least one, such as gence,ce")
    return found


def read_source(name: str, source: Source) -> str:
    """Return the one spelling of a source; `name` is the argument's, for the message.

    >>> from pathlib import Path
    >>> read_source("data", Path("photos"))
    'photos'
    """
    if not isinstance(source, str | os.PathLike):
        raise SpecError(f"{name} is {source!r}; expected the name of a data set, or a folder or archive of images")
    return plain_source(source)


def read_sources(name: str, sources: Source | Iterable[Source]) -> tuple[str, ...]:
    """Return sources; one alone need not stand in a list.

    >>> read_sources("ood", "photos/"), read_sources("ood", ["svhn", "photos"])
    (('photos',), ('svhn', 'photos'))
    """
    listed = [sources] if isinstance(sources, str | os.PathLike) else sources
    return tuple(read_source(name, source) for source in listed)


def read_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds: a number says how many, from 0.

    >>> read_seeds(3), read_seeds([7, 8])
    ((0, 1, 2), (7, 8))
    """
    listed = range(int(seeds)) if isinstance(seeds, Integral) else seeds
    if not isinstance(listed, Iterable) or not all(isinstance(seed, Integral) for seed in listed):
        raise SpecError(f"seeds is {seeds!r}; expected how many, such as 5, or a list of whole numbers")
    found = tuple(int(seed) for seed in listed)
    if not found:
        raise SpecError(f"seeds is {seeds!r}; expected at least one seed")
    return found
