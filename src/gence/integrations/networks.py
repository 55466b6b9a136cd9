"""Small networks on vectors, by name, for the scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn


def mlp(n_features: int, n_classes: int, hidden_sizes: Sequence[int] = (64,)) -> nn.Sequential:
    """A multilayer perceptron with ReLU.

    >>> mlp(4, 3, hidden_sizes=(8,))
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=3, bias=True)
    )
    """
    layers: list[nn.Module] = []
    widths = (n_features, *hidden_sizes)
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], n_classes))


def create_network(
    network: str | Callable[[int, int], nn.Module],
    n_features: int,
    n_classes: int,
    *,
    hidden_sizes: Sequence[int],
) -> nn.Module:
    """A network by name ("mlp", "linear") or from the caller's own function of ``(n_features, n_classes)``."""
    if callable(network):
        module = network(n_features, n_classes)
        if not isinstance(module, nn.Module):
            raise TypeError(f"network: expected a function that returns an nn.Module, it gave {type(module).__name__}")
        return module
    if network == "mlp":
        return mlp(n_features, n_classes, hidden_sizes)
    if network == "linear":
        return nn.Linear(n_features, n_classes)
    raise ValueError(
        f'network: expected "mlp", "linear" or a function (n_features, n_classes) -> nn.Module, got {network!r}'
    )
