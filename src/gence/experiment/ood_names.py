"""The short names under which out-of-distribution sources stand in results."""

from __future__ import annotations

from collections.abc import Iterable

from gence.experiment.fields import SpecError


def ood_name(source: str) -> str:
    """A short name for an OOD source: the last part of a path without its ending.

    >>> ood_name("data/svhn-test.zip"), ood_name("cifar100")
    ('svhn-test', 'cifar100')
    """
    stem = source.rstrip("/").rsplit("/", 1)[-1]
    for ending in (".zip", ".tar.gz", ".tgz", ".tar"):
        stem = stem.removesuffix(ending)
    return stem


def check_ood_names(sources: Iterable[str]) -> None:
    """Raise `SpecError` if two different sources have one short name: one's results would replace the other's.

    >>> check_ood_names(["here/textures", "there/textures.zip"])
    Traceback (most recent call last):
    gence.experiment.fields.SpecError: ood: here/textures and there/textures.zip would share the name 'textures' in \
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
