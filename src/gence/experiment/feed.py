"""One seed's batches: a whole epoch is shuffled, augmented, normalised and mixed on the device, ahead of its steps.

All runs of a cohort that share a seed share these batches: augmentation costs once, whatever number of losses train,
and every loss sees the same images. Two epochs fit in the buffers, so that the next one is made while one trains.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gence.data.augment import EpochAugmenter, normalize
from gence.data.mixing import MixDraws, apply_mixing, draw_mixing
from gence.experiment.problem import Problem
from gence.experiment.recipe import Recipe
from gence.experiment.seeds import stream
from gence.losses import TwoHot

SLOTS = 2


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
    """

    def __init__(self, problem: Problem, recipe: Recipe, seed: int, dtype: torch.dtype, views: int = 1) -> None:
        self.problem, self.recipe, self.seed, self.dtype, self.views = problem, recipe, seed, dtype, views
        n, channels, height, width = problem.train.images.shape
        self.rows = min(recipe.batch_size, n)  # drawn images a step
        self.steps = n // self.rows if recipe.drop_last else -(-n // self.rows)
        self.augmenter = EpochAugmenter(
            crop_padding=recipe.crop_padding,
            flip=recipe.flip,
            randaugment_ops=recipe.randaugment_ops,
            randaugment_magnitude=recipe.randaugment_magnitude,
        )
        self.mixes = views == 1 and recipe.mix_probability > 0
        device = problem.train.images.device
        batch = self.rows * views
        # NHWC in memory: a batch is then a channels_last tensor without a copy.
        # Zeros, not whatever is in memory: a graph's warm-up may read a slot before an epoch is made in it.
        self.inputs = torch.zeros((SLOTS * self.steps, batch, height, width, channels), dtype=dtype, device=device)
        self.first = torch.zeros((SLOTS * self.steps, batch), dtype=torch.long, device=device)
        self.second, self.share = torch.zeros_like(self.first), torch.ones(self.first.shape, device=device)

    def batch(self, counter: Tensor) -> tuple[Tensor, Tensor | TwoHot]:
        """The batch of a step: images (B, C, H, W) channels_last, and class indices or a two-hot target.

        Args:
            counter: the step since the start of training, (1,) on the device; never read by the host.
        """
        slot = counter % (SLOTS * self.steps)
        images = self.inputs.index_select(0, slot)[0].permute(0, 3, 1, 2)
        first = self.first.index_select(0, slot)[0]
        if not self.mixes:
            return images, first
        return images, TwoHot(first, self.second.index_select(0, slot)[0], self.share.index_select(0, slot)[0])

    def prepare(self, epoch: int) -> None:
        """Make an epoch's batches in its slot; depends on the seed and the epoch alone."""
        train, count = self.problem.train, self.rows * self.steps
        order = torch.randperm(len(train.labels), generator=stream(self.seed, "order", epoch))
        order = torch.cat([order, order])[:count].to(train.labels.device, non_blocking=True)
        images, labels = train.images.index_select(0, order), train.labels.index_select(0, order)
        slot = self._slot(epoch)
        augmented = [self._augment(images, epoch, view) for view in range(self.views)]
        views = [normalize(view, self.problem.mean, self.problem.std) for view in augmented]  # (steps * rows, C, H, W)
        batches = torch.cat([view.view(self.steps, self.rows, *view.shape[1:]) for view in views], dim=1)
        first = labels.view(self.steps, self.rows).repeat(1, self.views)
        if self.mixes:
            batches, _, second, share = apply_mixing(batches, first, self._mix_draws(batches, epoch))
            self.second[slot], self.share[slot] = second, share
        self.first[slot] = first
        self.inputs[slot] = batches.permute(0, 1, 3, 4, 2).to(self.dtype)

    def epoch_batches(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Images (steps, B, C, H, W) and class indices (steps, B) of an epoch just prepared; not copied."""
        slot = self._slot(epoch)
        return self.inputs[slot].permute(0, 1, 4, 2, 3), self.first[slot]

    def _slot(self, epoch: int) -> slice:
        start = (epoch % SLOTS) * self.steps
        return slice(start, start + self.steps)

    def _augment(self, images: Tensor, epoch: int, view: int) -> Tensor:
        names = ("augment", epoch) if view == 0 else ("augment", epoch, f"view{view}")
        return self.augmenter(images, stream(self.seed, *names))

    def _mix_draws(self, batches: Tensor, epoch: int) -> MixDraws:
        recipe = self.recipe
        draws = draw_mixing(
            self.rows * self.steps,
            batches.shape[-2],
            batches.shape[-1],
            mixup_alpha=recipe.mixup_alpha,
            cutmix_alpha=recipe.cutmix_alpha,
            probability=recipe.mix_probability,
            batch_size=self.rows,
            generator=stream(self.seed, "mix", epoch),
        )
        return draws.to(batches.device).batches(self.rows)
