"""Which images are drawn: balanced subsets, long tails and hold-outs, as pure functions of labels and a seed.

The random stream. Class k's members, in the order of the labels, get the first raw 64-bit outputs of
`numpy.random.PCG64(numpy.random.SeedSequence((stream, seed, k)))` as keys; sorting by key is the class's random
order, and a draw of m images takes the first m. Raw outputs rather than `Generator.permutation`, because NumPy
guarantees the former across versions and not the latter. `stream` is 0 for subsets and 1 for hold-outs, so a
hold-out inside a subset is independent of the subset. Two consequences: with one seed a smaller subset lies inside
a larger one, and a class's draw does not depend on the other classes.

Every index that is returned is ascending: order carries no information, shuffling is the trainer's work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gence.lab.data.errors import DataError

_SUBSET_STREAM, _HOLDOUT_STREAM = 0, 1

TEST_FRACTION, SPLIT_SEED = 0.2, 0
"""How a test part is split off where a source has none."""


def balanced_subset(
    labels: Tensor, n: int, seed: int, num_classes: int | None = None, *, classes: Sequence[str] | None = None
) -> Tensor:
    """Index of `n` images, exactly n / K of each class.

    Args:
        labels: int64, (N,).
        n: size of the subset, a multiple of the number of classes.
        seed: a non-negative integer; see the module's text for the stream.
        num_classes: K; by default the largest label + 1.
        classes: the K class names in label order, for error messages; by default these have the class's number.

    Returns:
        int64, (n,), ascending.

    Raises:
        DataError: n is no positive multiple of K, or a class has fewer than n / K images.

    >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
    >>> labels[balanced_subset(labels, 4, seed=0)].tolist()
    [0, 0, 1, 1]
    """
    members = _members(labels, num_classes, classes)
    K = len(members)
    sizes = [len(rows) for rows in members]
    fewest = min(sizes)
    if n > K * fewest:
        raise DataError(
            f"{_class_has(sizes.index(fewest), fewest, classes)}, but n = {n} asks for more of each class; the most "
            f"is n = {K * fewest}"
        )
    if n < 1 or n % K:
        below, above = n - n % K, n - n % K + K
        near = " or ".join(str(size) for size in (below, above) if 0 < size <= K * fewest)
        raise DataError(f"n = {n} cannot be split evenly over {K} classes; use a multiple, such as {near}")
    return _draw(members, [n // K] * K, seed, classes)


def long_tail_counts(num_classes: int, rho: float, n_max: int) -> list[int]:
    """Images per class of a long tail: n_k = floor(n_max * rho^(-k/(K-1))), at least 1.

    The floor is that of the published long-tailed CIFAR sets; 1e-9 is added first, so that a value that is an
    integer in exact arithmetic (n_max / rho, for the last class) is not lost to rounding.

    >>> long_tail_counts(10, 100, 5000)
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    if not (math.isfinite(rho) and rho >= 1):
        raise DataError(f"rho = {rho} must be a number of at least 1: the largest class over the smallest")
    if n_max < 1:
        raise DataError(f"n_max = {n_max} must be at least 1")
    last = max(num_classes - 1, 1)
    return [max(1, math.floor(n_max * rho ** (-k / last) + 1e-9)) for k in range(num_classes)]


def long_tail_subset(
    labels: Tensor,
    rho: float,
    seed: int,
    n_max: int | None = None,
    num_classes: int | None = None,
    *,
    classes: Sequence[str] | None = None,
) -> Tensor:
    """Index of a long-tailed subset: n_k = n_max * rho^(-k/(K-1)) of class k, class order as given.

    Args:
        labels: int64, (N,).
        rho: imbalance, largest class over smallest, at least 1.
        seed: a non-negative integer.
        n_max: size of class 0; by default all its images.
        num_classes: K; by default the largest label + 1.
        classes: as for `balanced_subset`.

    Returns:
        int64, (sum of n_k,), ascending. Rounding: `long_tail_counts`.

    Raises:
        DataError: a class has fewer images than its share of the tail.

    >>> labels = torch.arange(3).repeat_interleave(100)
    >>> torch.bincount(labels[long_tail_subset(labels, rho=100, seed=0)]).tolist()
    [100, 10, 1]
    """
    members = _members(labels, num_classes, classes)
    counts = long_tail_counts(len(members), rho, len(members[0]) if n_max is None else n_max)
    return _draw(members, counts, seed, classes)


def holdout(
    labels: Tensor,
    fraction: float,
    seed: int,
    num_classes: int | None = None,
    *,
    classes: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Split into a part to train on and a part held out, class by class.

    Class k with n_k images gives floor(fraction * n_k + 1/2) of them to the held-out part, but at least one and at
    most n_k - 1, so that each class is on both sides.

    Args:
        labels: int64, (N,).
        fraction: share to hold out, between 0 and 1, both excluded.
        seed: a non-negative integer; the stream differs from that of the subsets.
        num_classes: K; by default the largest label + 1.
        classes: as for `balanced_subset`.

    Returns:
        (train_index, val_index): int64, ascending, disjoint, together all of 0..N-1.

    Raises:
        DataError: a class has fewer than two images.

    >>> train, val = holdout(torch.tensor([0] * 10 + [1] * 5), 0.2, seed=0)
    >>> len(train), len(val)
    (12, 3)
    """
    if not 0 < fraction < 1:
        raise DataError(f"fraction = {fraction} must lie between 0 and 1, both excluded")
    members = _members(labels, num_classes, classes)
    for k, rows in enumerate(members):
        if len(rows) < 2:
            raise DataError(
                f"{_class_has(k, len(rows), classes)}, but a split needs one on each side: add images or leave the "
                "class out"
            )
    counts = [min(max(1, math.floor(fraction * len(rows) + 0.5)), len(rows) - 1) for rows in members]
    val = _draw(members, counts, seed, classes, stream=_HOLDOUT_STREAM)
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[val] = False
    return kept.nonzero().squeeze(1), val


def _members(labels: Tensor, num_classes: int | None, names: Sequence[str] | None) -> list[np.ndarray]:
    if labels.ndim != 1 or labels.dtype != torch.int64 or len(labels) == 0:
        raise DataError(f"labels must be int64 (N,) with N > 0; got {labels.dtype} {tuple(labels.shape)}")
    values = labels.cpu().numpy()
    classes = int(values.max()) + 1 if num_classes is None else num_classes
    if values.min() < 0 or values.max() >= classes:
        raise DataError(f"labels run from {values.min()} to {values.max()}, expected 0 to {classes - 1}")
    if names is not None and len(names) != classes:
        raise DataError(f"classes has {len(names)} names, but there are {classes} classes; give one name for each")
    members = [np.flatnonzero(values == k) for k in range(classes)]
    for k, rows in enumerate(members):
        if len(rows) == 0:
            raise DataError(
                f"{_class_has(k, 0, names)}, but each of the {classes} classes needs some: add images or leave the "
                "class out"
            )
    return members


def _class_has(k: int, count: int, names: Sequence[str] | None) -> str:
    """The beginning of a message about a class that has too few images."""
    images = {0: "no images", 1: "1 image"}.get(count, f"{count} images")
    return f"class {k if names is None else repr(names[k])} has {images}"


def _draw(
    members: Sequence[np.ndarray],
    counts: Sequence[int],
    seed: int,
    names: Sequence[str] | None,
    stream: int = _SUBSET_STREAM,
) -> Tensor:
    if seed < 0:
        raise DataError(f"seed = {seed} must not be negative")
    chosen = []
    for k, (rows, count) in enumerate(zip(members, counts, strict=True)):
        if count > len(rows):
            raise DataError(f"{_class_has(k, len(rows), names)}, but {count} are asked for; ask for a smaller subset")
        keys = np.random.PCG64(np.random.SeedSequence((stream, seed, k))).random_raw(len(rows))
        chosen.append(rows[np.argsort(keys, kind="stable")[:count]])
    return torch.from_numpy(np.sort(np.concatenate(chosen)))
