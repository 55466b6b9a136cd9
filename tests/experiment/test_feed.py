from __future__ import annotations

import pytest
import torch

from gence.data.augment import normalize
from gence.experiment.feed import EpochFeed
from gence.losses import TwoHot
from tests.experiment.small_runs import problem_of, small_recipe, small_spec


def feed_of(n: int = 40, views: int = 1, seed: int = 0, **recipe):
    spec = small_spec(n=n, seed=seed)
    return EpochFeed(problem_of(spec), small_recipe(**recipe), seed, torch.float32, views)


def epoch_of(feed: EpochFeed, epoch: int):
    feed.prepare(epoch)
    first = (epoch % 2) * feed.steps
    return [feed.batch(torch.tensor([first + step])) for step in range(feed.steps)]


def test_an_epoch_shows_every_image_once():
    feed = feed_of(crop_padding=0)
    images, labels = zip(*epoch_of(feed, 0), strict=True)
    shown = torch.cat(images).flatten(1)
    train = feed.problem.train
    expected = normalize(train.images, feed.problem.mean, feed.problem.std).flatten(1)
    nearest = torch.cdist(shown, expected).argmin(1)
    assert nearest.sort().values.tolist() == list(range(40))
    torch.testing.assert_close(torch.cat(labels), train.labels[nearest])
    torch.testing.assert_close(shown, expected[nearest], atol=0, rtol=0)


def test_batches_depend_on_seed_and_epoch_alone():
    one, two = feed_of(), feed_of()
    for epoch in (0, 1, 2, 5):  # out of step with each other's slots on purpose
        two.prepare(epoch + 1)
        for (x, y), (u, v) in zip(epoch_of(one, epoch), epoch_of(two, epoch), strict=True):
            torch.testing.assert_close(x, u, atol=0, rtol=0)
            torch.testing.assert_close(y, v)
    assert not torch.equal(epoch_of(one, 0)[0][1], epoch_of(one, 1)[0][1])
    assert not torch.equal(epoch_of(one, 0)[0][0], epoch_of(feed_of(seed=1), 0)[0][0])


def test_the_next_epoch_does_not_touch_the_one_in_training():
    feed = feed_of()
    before = [(x.clone(), y.clone()) for x, y in epoch_of(feed, 4)]
    feed.prepare(5)
    for step, (x, y) in enumerate(before):
        images, labels = feed.batch(torch.tensor([4 * feed.steps + step]))
        torch.testing.assert_close(images, x)
        torch.testing.assert_close(labels, y)


@pytest.mark.parametrize(("n", "batch", "drop_last", "steps", "rows"), [
    (50, 20, True, 2, 20), (50, 20, False, 3, 20), (40, 20, False, 2, 20),
    (30, 50, True, 1, 30), (30, 50, False, 1, 30),
])  # fmt: skip
def test_the_last_batch(n, batch, drop_last, steps, rows):
    feed = feed_of(n, batch_size=batch, drop_last=drop_last, crop_padding=0)
    batches = epoch_of(feed, 0)
    assert [len(y) for _, y in batches] == [rows] * steps
    shown = torch.cat([x for x, _ in batches]).flatten(1)
    different = shown.unique(dim=0).shape[0]
    assert different == (n if not drop_last or n <= batch else steps * rows)
    for images, _ in batches:  # a batch never holds an image twice, even one that was filled up
        assert images.flatten(1).unique(dim=0).shape[0] == rows


def test_mixed_batches_carry_two_labels_and_their_share():
    feed = feed_of(mixup_alpha=1.0, mix_probability=1.0, crop_padding=0)
    plain = feed_of(crop_padding=0)
    for (mixed, target), (images, labels) in zip(epoch_of(feed, 0), epoch_of(plain, 0), strict=True):
        assert isinstance(target, TwoHot)
        torch.testing.assert_close(target.first, labels)
        share = target.share[:, None, None, None]
        partner = (mixed - share * images) / (1 - share)
        # Each partner is an image of the batch, of the second label.
        found = torch.cdist(partner.flatten(1), images.flatten(1)).min(1)
        clear = target.share < 0.9
        assert float(found.values[clear].max()) < 1e-3
        torch.testing.assert_close(labels[found.indices[clear]], target.second[clear])


def test_two_views_are_two_augmentations_of_the_same_images():
    feed = feed_of(views=2, mixup_alpha=1.0, mix_probability=1.0)
    (images, labels), _ = epoch_of(feed, 0)
    assert images.shape[0] == 40
    torch.testing.assert_close(labels[:20], labels[20:])
    assert not torch.equal(images[:20], images[20:])
    one_view = epoch_of(feed_of(), 0)[0]
    torch.testing.assert_close(images[:20], one_view[0])  # the first view is what the other losses see


def test_images_are_channels_last_without_a_copy():
    (images, _), _ = epoch_of(feed_of(), 0)
    assert images.is_contiguous(memory_format=torch.channels_last)
