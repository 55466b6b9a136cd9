"""One seed's batches: shuffled, augmented, normalised and mixed on the device, ahead of the steps that use them.

All runs of a cohort that share a seed share these batches: augmentation costs once, whatever number of losses train,
and every loss sees the same images. An epoch is made whole, or, where it is large, in parts of whole batches. Two parts
fit in the buffers, so that the next one is made while one trains. What is random is drawn for the whole epoch, so that
the number of parts changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gence.lab.data import EpochAugmenter, EpochDraws, MixDraws, apply_mixing, draw_mixing, normalize
from gence.lab.spec import Recipe, stream
from gence.lab.train.task import Problem
from gence.losses import TwoHot

SLOTS = 2
PART_BYTES = 256 * 2**20
"""The most that the images of one part may take, one view of them, as the network gets them."""


@dataclass(frozen=True)
class _EpochPlan:
    """All that is random about an epoch."""

    order: Tensor  # (steps * rows,) positions in the training set, on the device
    views: list[EpochDraws]
    mixing: MixDraws | None  # (steps, rows), on the device


class EpochFeed:
    """Batches of one seed.

    Args:
        problem: the seed's data.
        recipe: batch size and augmentation.
        seed: names the random streams "order", "augment" and "mix".
        dtype: of the images handed to the network.
        views: 1, or 2 for contrastive training: two augmentations of each image, not mixed, one after the other.

    A recipe whose last batch would be smaller drops it, or, with ``drop_last=False``, fills it from the start of the
    epoch's order: a captured step needs one shape. A subset smaller than a batch is one batch.

    Attributes:
        steps: batches an epoch.
        parts: parts an epoch is made in; feeds of equally many images of one shape have equally many, whatever the
            number of views.
    """

    def __init__(self, problem: Problem, recipe: Recipe, seed: int, dtype: torch.dtype, views: int = 1) -> None:
        self.problem, self.recipe, self.seed, self.dtype, self.views = problem, recipe, seed, dtype, views
        n, channels, height, width = problem.train.images.shape
        self.rows = min(recipe.batch_size, n)  # drawn images a step
        self.steps = n // self.rows if recipe.drop_last else -(-n // self.rows)
        step_bytes = self.rows * channels * height * width * dtype.itemsize
        self.parts = -(-self.steps // max(1, PART_BYTES // step_bytes))
        self.part_steps = -(-self.steps // self.parts)  # the last part may have fewer
        self.augmenter = EpochAugmenter(
            crop_padding=recipe.crop_padding,
            flip=recipe.flip,
            randaugment_ops=recipe.randaugment_ops,
            randaugment_magnitude=recipe.randaugment_magnitude,
        )
        self.mixes = views == 1 and recipe.mix_probability > 0
        device = problem.train.images.device
        batch, kept = self.rows * views, SLOTS * self.part_steps
        # NHWC in memory: a batch is then a channels_last tensor without a copy.
        # Zeros, not whatever is in memory: a graph's warm-up may read a slot before a part is made in it.
        self.inputs = torch.zeros((kept, batch, height, width, channels), dtype=dtype, device=device)
        self.first = torch.zeros((kept, batch), dtype=torch.long, device=device)
        self.second, self.share = torch.zeros_like(self.first), torch.ones(self.first.shape, device=device)
        # Where the batch of each step of two epochs lies: with an odd number of parts, slots change places each epoch.
        places = [torch.arange(kept)[self._slot(epoch, part)] for epoch in range(SLOTS) for part in range(self.parts)]
        self.places = torch.cat(places).to(device)
        self._planned: tuple[int, _EpochPlan] | None = None

    def batch(self, counter: Tensor) -> tuple[Tensor, Tensor | TwoHot]:
        """The batch of a step: images (B, C, H, W) channels_last, and class indices or a two-hot target.

        Args:
            counter: the step since the start of training, (1,) on the device; never read by the host.
        """
        slot = self.places.index_select(0, counter % (SLOTS * self.steps))
        images = self.inputs.index_select(0, slot)[0].permute(0, 3, 1, 2)
        first = self.first.index_select(0, slot)[0]
        if not self.mixes:
            return images, first
        return images, TwoHot(first, self.second.index_select(0, slot)[0], self.share.index_select(0, slot)[0])

    def part(self, number: int) -> range:
        """The steps of a part of an epoch."""
        start = number * self.part_steps
        return range(start, min(start + self.part_steps, self.steps))

    def prepare(self, epoch: int, part: int = 0) -> None:
        """Make a part of an epoch's batches in its slot; depends on the seed, the epoch and the part alone."""
        plan, slot, steps = self._plan(epoch), self._slot(epoch, part), self.part(part)
        samples = slice(steps.start * self.rows, steps.stop * self.rows)
        train, order = self.problem.train, plan.order[samples]
        images, labels = train.images.index_select(0, order), train.labels.index_select(0, order)
        augmented = [self.augmenter.apply(images, draws[samples]) for draws in plan.views]
        views = [normalize(view, self.problem.mean, self.problem.std) for view in augmented]  # (samples, C, H, W)
        batches = torch.cat([view.view(len(steps), self.rows, *view.shape[1:]) for view in views], dim=1)
        first = labels.view(len(steps), self.rows).repeat(1, self.views)
        if plan.mixing is not None:
            mixing = plan.mixing[steps.start : steps.stop]
            batches, _, self.second[slot], self.share[slot] = apply_mixing(batches, first, mixing)
        self.first[slot] = first
        self.inputs[slot] = batches.permute(0, 1, 3, 4, 2).to(self.dtype)

    def part_batches(self, epoch: int, part: int) -> tuple[Tensor, Tensor]:
        """Images (steps, B, C, H, W) and class indices (steps, B) of a part just prepared; not copied."""
        slot = self._slot(epoch, part)
        return self.inputs[slot].permute(0, 1, 4, 2, 3), self.first[slot]

    def _slot(self, epoch: int, part: int) -> slice:
        start = ((epoch * self.parts + part) % SLOTS) * self.part_steps
        return slice(start, start + len(self.part(part)))

    def _plan(self, epoch: int) -> _EpochPlan:
        """The epoch's draws, kept until another epoch's are asked for: its parts follow each other."""
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._draw(epoch)
        return self._planned[1]

    def _draw(self, epoch: int) -> _EpochPlan:
        labels, count = self.problem.train.labels, self.rows * self.steps
        order = torch.randperm(len(labels), generator=stream(self.seed, "order", epoch))
        order = torch.cat([order, order])[:count].to(labels.device, non_blocking=True)
        names = [("augment", epoch), *(("augment", epoch, f"view{view}") for view in range(1, self.views))]
        views = [self.augmenter.draw(count, stream(self.seed, *name)) for name in names]
        return _EpochPlan(order, views, self._draw_mixing(epoch) if self.mixes else None)

    def _draw_mixing(self, epoch: int) -> MixDraws:
        recipe, images = self.recipe, self.problem.train.images
        draws = draw_mixing(
            self.rows * self.steps,
            images.shape[-2],
            images.shape[-1],
            mixup_alpha=recipe.mixup_alpha,
            cutmix_alpha=recipe.cutmix_alpha,
            probability=recipe.mix_probability,
            batch_size=self.rows,
            generator=stream(self.seed, "mix", epoch),
        )
        return draws.to(images.device).batches(self.rows)
