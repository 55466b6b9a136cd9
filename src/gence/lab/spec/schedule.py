"""What a recipe changes over a run, as tables with one value per step: learning rate, anchor, share of an average."""

from __future__ import annotations

import math

from gence.lab.spec.recipe import Recipe


def learning_rates(recipe: Recipe, steps_per_epoch: int) -> list[float]:
    """The learning rate of every step: linear warm-up, then the recipe's schedule.

    >>> rates = learning_rates(Recipe(epochs=4, lr=1.0, milestones=(0.5, 0.75)), steps_per_epoch=1)
    >>> [round(rate, 6) for rate in rates]
    [1.0, 1.0, 0.1, 0.01]
    """
    total = recipe.epochs * steps_per_epoch
    warmup = recipe.warmup_epochs * steps_per_epoch
    rises = (min(1.0, (step + 1) / warmup if warmup else 1.0) for step in range(total))
    return [recipe.lr * rise * _factor(recipe, step, total, warmup) for step, rise in enumerate(rises)]


def anchor_shares(recipe: Recipe, steps_per_epoch: int) -> list[float]:
    """The share of the anchor at every step: it rises linearly over the first ``anchor_warmup`` of the epochs."""
    rise = recipe.anchor_warmup * recipe.epochs * steps_per_epoch
    return [min(1.0, step / rise if rise else 1.0) for step in range(recipe.epochs * steps_per_epoch)]


def average_shares(recipe: Recipe, steps_per_epoch: int) -> list[float]:
    """The share that each step's weights get in their exponential average.

    The decay rises to the recipe's as (1 + t) / (10 + t): with a constant one, a short run's average would be made of
    its initial weights.

    >>> [round(share, 3) for share in average_shares(Recipe(epochs=3, ema=0.8), steps_per_epoch=1)]
    [0.9, 0.818, 0.75]
    """
    steps = range(recipe.epochs * steps_per_epoch)
    return [1.0 - min(recipe.ema, (1 + step) / (10 + step)) for step in steps]


def _factor(recipe: Recipe, step: int, total: int, warmup: float) -> float:
    if recipe.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * max(0.0, step - warmup) / max(1.0, total - warmup)))
    if recipe.schedule == "step":
        return recipe.decay ** sum(step >= milestone * total for milestone in recipe.milestones)
    return 1.0
