"""Recipes: how a network is trained, every choice a field, and the recipes that have a name.

The paper prints part of its recipe. What it leaves open (RandAugment's number and strength, MixUp's and CutMix's alpha
and how often, the stem, the initialisation) is a field here with a stated default, never a constant in the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from gence.lab.spec.fields import SpecError, as_plain, check_choice, check_keys, from_mapping, normalise_fields

_OPTIMIZERS = ("sgd", "adamw", "lbfgs")
_SCHEDULES = ("step", "cosine", "constant")
_PRECISIONS = ("auto", "bf16", "fp32")
_STEMS = ("auto", "cifar", "imagenet")
TUNED_PARTS = ("none", "last", "all")
"""What of a pretrained encoder may be trained with its head."""

PER_RUN_FIELDS = frozenset({"lr", "weight_decay", "warmup_epochs", "anchor_warmup"})
"""Scalars a trainer keeps per run: what tuning changes."""

FEED_FIELDS = ("crop_padding", "flip", "randaugment_ops", "randaugment_magnitude", "mixup_alpha", "cutmix_alpha",
               "mix_probability")  # fmt: skip
"""What a run's batches are made by, beyond data, seed and batch size."""

SIDE_BY_SIDE_FIELDS = PER_RUN_FIELDS | {*FEED_FIELDS, "init", "head_bias"}
"""Runs that differ in these alone have steps of one shape and can train side by side."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained; every choice the paper leaves open is a field.

    Attributes:
        epochs: passes over the training subset.
        batch_size: rows a step; GenCE couples them, so it is part of the loss, not only of the speed.
        optimizer: "sgd", "adamw", or, for heads on frozen features, "lbfgs": the full-data equation, minimised.
        lr: peak learning rate.
        momentum: of SGD; AdamW ignores it.
        nesterov: Nesterov's momentum for SGD.
        weight_decay: L2 for SGD, decoupled for AdamW.
        schedule: "step" (times `decay` at each milestone), "cosine" (to zero) or "constant".
        milestones: fractions of the epochs at which "step" decays; (0.5, 0.75) is 100 and 150 of 200.
        decay: the factor at each milestone.
        warmup_epochs: epochs over which the learning rate rises linearly from 0.
        crop_padding: pixels of padding before a random crop; 0 is off.
        flip: random horizontal flips.
        randaugment_ops: RandAugment operations a sample; 0 is off.
        randaugment_magnitude: their strength, of 30 (torchvision's scale).
        mixup_alpha: MixUp's Beta parameter; 0 is off.
        cutmix_alpha: CutMix's Beta parameter; 0 is off.
        mix_probability: how often a batch is mixed; MixUp or CutMix at even odds when both are on.
        init: weight initialisation, a name of `gence.lab.models`.
        stem: "cifar" (3x3, stride 1, no pool), "imagenet", or "auto" by image size.
        head_bias: whether the last layer has a bias (a drifted marginal can hide there).
        precision: "auto" (bf16 on CUDA, fp32 on a CPU), "bf16" or "fp32".
        ema: decay of an exponential average of the weights; 0 is off.
        anchor_warmup: fraction of the epochs over which an anchor rises linearly from 0.
        drop_last: skip a last, smaller batch.
        tune_encoder: what of a pretrained encoder is trained: "none" (its features are computed once), its "last"
            stage, or "all".
        encoder_lr: the encoder's learning rate as a factor of the head's.
        freeze_norms: keep the encoder's BatchNorm statistics as they were pretrained.

    >>> Recipe(lr=1).lr
    1.0
    >>> Recipe(schedule="stap")
    Traceback (most recent call last):
    gence.lab.spec.fields.SpecError: Recipe.schedule is 'stap'; did you mean 'step'?
    """

    epochs: int = 200
    batch_size: int = 100
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "step"
    milestones: tuple[float, ...] = (0.5, 0.75)
    decay: float = 0.1
    warmup_epochs: float = 0.0
    crop_padding: int = 4
    flip: bool = True
    randaugment_ops: int = 2
    randaugment_magnitude: int = 9
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    mix_probability: float = 0.0
    init: str = "kaiming_fan_out"
    stem: str = "auto"
    head_bias: bool = True
    precision: str = "auto"
    ema: float = 0.0
    anchor_warmup: float = 0.0
    drop_last: bool = True
    tune_encoder: str = field(default="none", metadata={"added_later": True})
    encoder_lr: float = field(default=0.1, metadata={"added_later": True})
    freeze_norms: bool = field(default=False, metadata={"added_later": True})

    def __post_init__(self) -> None:
        normalise_fields(self)
        check_choice("Recipe.optimizer", self.optimizer, _OPTIMIZERS)
        check_choice("Recipe.schedule", self.schedule, _SCHEDULES)
        check_choice("Recipe.precision", self.precision, _PRECISIONS)
        check_choice("Recipe.stem", self.stem, _STEMS)
        check_choice("Recipe.tune_encoder", self.tune_encoder, TUNED_PARTS)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise SpecError(f"Recipe.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr", "momentum", "weight_decay", "warmup_epochs", "crop_padding", "randaugment_ops",
                     "randaugment_magnitude", "mixup_alpha", "cutmix_alpha", "encoder_lr"):  # fmt: skip
            if getattr(self, name) < 0:
                raise SpecError(f"Recipe.{name} must not be negative, got {getattr(self, name)}")
        for name in ("mix_probability", "ema", "anchor_warmup"):
            if not 0 <= getattr(self, name) <= 1:
                raise SpecError(f"Recipe.{name} must lie in [0, 1], got {getattr(self, name)}")
        if any(not 0 < m < 1 for m in self.milestones) or list(self.milestones) != sorted(self.milestones):
            raise SpecError(
                f"Recipe.milestones must be rising fractions of the epochs between 0 and 1, got {self.milestones}"
            )
        if self.mix_probability > 0 and self.mixup_alpha == 0 and self.cutmix_alpha == 0:
            raise SpecError(
                f"Recipe.mix_probability is {self.mix_probability}, but mixup_alpha and cutmix_alpha are 0: "
                "nothing would be mixed; set one of them, or mix_probability to 0"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON-ready values."""
        return dict(self._plain)

    @cached_property
    def _plain(self) -> dict[str, Any]:
        # A grid's runs share a few recipes; turning each into a dictionary once keeps keys cheap.
        return as_plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """Build a recipe from a mapping; a key "base" names the recipe whose fields the others change.

        >>> Recipe.from_dict({"base": "paper", "lr": 0.05}).epochs
        200
        """
        if "base" not in values:
            made: Recipe = from_mapping(cls, values)
            return made
        changes = {name: value for name, value in values.items() if name != "base"}
        return named_recipe(values["base"]).replace(**changes)

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed; a misspelt field is an error that names the nearest."""
        check_keys("Recipe", changes, [one.name for one in fields(self)])
        return Recipe(**{**self._plain, **changes})


RECIPES: dict[str, Recipe] = {
    # As printed: SGD 0.9, 5e-4, 200 epochs, batch 100, 0.1 -> 0.01 -> 0.001 at 100 and 150; crop, flip, RandAugment.
    # MixUp and CutMix are listed too, without how often and how strongly: this is the candidate of
    # `gence.paper.studies.open_choices` that brings cross-entropy closest to its print; it warms up and mixes nothing.
    "paper": Recipe(warmup_epochs=1),
    # A recipe under which cross-entropy trains too: lower rate, warm-up, Nesterov.
    "modern": Recipe(
        lr=0.05, nesterov=True, warmup_epochs=5, mixup_alpha=0.2, cutmix_alpha=1.0, mix_probability=0.5
    ),
    # 8x8 digits and a small network on a CPU, in seconds. A flipped digit is another digit: no flip.
    "tiny": Recipe(
        epochs=40, batch_size=50, lr=0.05, nesterov=True, schedule="cosine", warmup_epochs=2, crop_padding=1,
        flip=False, randaugment_ops=0,
    ),
    # Photographs and a small network on a CPU, in half a minute per run: mirrored and shifted, no more. Few rows per
    # step, because few labels give few steps: on 200 labels 20 rows are ten points of accuracy ahead of 50.
    "small": Recipe(
        epochs=80, batch_size=20, lr=0.05, nesterov=True, schedule="cosine", warmup_epochs=4, randaugment_ops=0,
    ),
    # A head on frozen features: nothing is augmented, and steps are large.
    "head": Recipe(
        epochs=50, batch_size=100, lr=1.0, nesterov=True, weight_decay=1e-3, schedule="cosine", crop_padding=0,
        flip=False, randaugment_ops=0,
    ),
    # A pretrained encoder trained on with its head: AdamW, a tenth of the rate for the encoder.
    "finetune": Recipe(
        epochs=20, batch_size=50, optimizer="adamw", lr=1e-3, weight_decay=0.05, schedule="cosine", warmup_epochs=1,
        crop_padding=8, randaugment_ops=0, tune_encoder="all",
    ),
}  # fmt: skip
"""The recipes that have a name."""


def named_recipe(name: str) -> Recipe:
    """Return the recipe called `name`, or raise `SpecError` with the nearest name.

    >>> named_recipe("papper")
    Traceback (most recent call last):
    gence.lab.spec.fields.SpecError: recipe is 'papper'; did you mean 'paper'?
    """
    check_choice("recipe", name, RECIPES)
    return RECIPES[name]


_OWN_OF_A_RUN = {"epochs": 1, "batch_size": 1, "lr": 1.0, "weight_decay": 0.0, "warmup_epochs": 0.0}


def recipe_name(recipe: Recipe) -> str | None:
    """Return the name of the recipe that a recipe was made from, or None for one of the user's own.

    What a comparison or tuning changes does not count: epochs, batch size, rates and warm-up.

    >>> recipe_name(RECIPES["paper"].replace(epochs=5, lr=0.2)), recipe_name(Recipe(flip=False))
    ('paper', None)
    """
    plain = recipe.replace(**_OWN_OF_A_RUN)
    return next((name for name, one in RECIPES.items() if one.replace(**_OWN_OF_A_RUN) == plain), None)


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
