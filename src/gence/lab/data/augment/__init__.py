"""Augmentation of a whole epoch at once, drawn per sample: crops and flips, RandAugment, MixUp and CutMix."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.data.augment.epoch import EpochAugmenter, EpochDraws, MixDraws, apply_mixing, draw_mixing, normalize

__getattr__, __dir__, __all__ = front_door(__name__)
