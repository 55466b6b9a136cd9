"""The learning rate and the anchor of every step of a recipe."""

from __future__ import annotations

import math

from gence.lab.spec import Recipe


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


def _factor(recipe: Recipe, step: int, total: int, warmup: float) -> float:
    if recipe.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * max(0.0, step - warmup) / max(1.0, total - warmup)))
    if recipe.schedule == "step":
        return recipe.decay ** sum(step >= milestone * total for milestone in recipe.milestones)
    return 1.0
