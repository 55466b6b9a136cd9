"""Which cells come first when time is short: those that say most about the paper's claims for their cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gence.experiment.recipe import PER_RUN_FIELDS
from gence.experiment.spec import RunSpec, canonical_json

# (data, balanced size, network), most informative first; what is not listed comes after, in its own order.
_FIRST = (
    ("cifar100", 2000, "vgg19"),  # the paper's largest gap
    ("cifar10", 2000, "vgg19"),
    ("cifar10", 2000, "resnet50"),
    ("cifar100", 2000, "resnet50"),
    ("cifar100", 5000, "vgg19"),
    ("cifar10", 5000, "vgg19"),
)
_LAST = (
    ("cifar10", 5000, "resnet50"),
    ("cifar100", 5000, "resnet50"),
    ("mini-imagenet", 2000, "vgg19"),
    ("mini-imagenet", 2000, "resnet50"),
    ("mini-imagenet", 5000, "vgg19"),
    ("mini-imagenet", 5000, "resnet50"),
)
_PAPER_BATCH = 100
# A study of the last layer's bias compares it within a cell.
_WITHIN_A_CELL = PER_RUN_FIELDS | {"head_bias"}


def by_priority(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return the runs, each once, in the order in which to do them.

    Table 1 at N = 2000 and VGG-19 at N = 5000 come first, then other batch sizes, ResNet-50 at N = 5000,
    Mini-ImageNet, and the long tails. Within a cell the given order stays.
    """
    runs = list({spec.key: spec for spec in specs}.values())
    return sorted(runs, key=_rank)


def cells(specs: Sequence[RunSpec]) -> dict[str, list[RunSpec]]:
    """Return the runs by the cell they belong to, in order: they differ in loss, seed and what tuning changes."""
    found: dict[str, list[RunSpec]] = {}
    for spec in specs:
        recipe = {name: value for name, value in spec.recipe.to_dict().items() if name not in _WITHIN_A_CELL}
        found.setdefault(spec.cohort_key + canonical_json(recipe), []).append(spec)
    return found


def cell_name(spec: RunSpec) -> str:
    """Return a short name for a run's cell.

    >>> from gence.paper.exhibit import cell
    >>> cell_name(cell("cifar10", "vgg19", n=2000))
    'cifar10-2000-vgg19'
    """
    size = f"rho{spec.subset.rho:g}" if spec.subset.rho is not None else str(spec.subset.n or "all")
    batch = "" if spec.recipe.batch_size == _PAPER_BATCH else f"-b{spec.recipe.batch_size}"
    return f"{spec.data}-{size}-{spec.model}{batch}"


def _rank(spec: RunSpec) -> int:
    place = (spec.data, spec.subset.n, spec.model)
    if spec.subset.rho is not None:
        return len(_FIRST) + len(_LAST) + 2
    if spec.recipe.batch_size != _PAPER_BATCH:
        return len(_FIRST) + (spec.model != "vgg19")
    if place in _FIRST:
        return _FIRST.index(place)
    return len(_FIRST) + 2 + (_LAST.index(place) if place in _LAST else len(_LAST) + 1)
