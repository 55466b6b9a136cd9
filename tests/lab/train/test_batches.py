from __future__ import annotations

import pytest
import torch

from gence.lab.data.augment.epoch import normalize
from gence.lab.train import batches as feed_module
from gence.lab.train.batches import EpochFeed
from gence.lab.train.task import DeviceImages, Problem
from gence.losses import TwoHot
from tests.lab.small_runs import problem_of, small_recipe, small_spec


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


def colour_problem(n: int) -> Problem:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, 3, 16, 16), dtype=torch.uint8, generator=draw)
    train = DeviceImages(images, torch.arange(n) % 5, torch.arange(n))
    prior, mean, std = torch.full((5,), 0.2), torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.25])
    return Problem(train, train, {}, tuple("abcde"), prior, mean, std)


def in_turn(feed: EpochFeed, epochs: int):
    """Batches as training takes them: the next part is made before the steps of this one are taken."""
    turns = [(epoch, part) for epoch in range(epochs) for part in range(feed.parts)]
    feed.prepare(*turns[0])
    for turn, (epoch, part) in enumerate(turns):
        if turn + 1 < len(turns):
            feed.prepare(*turns[turn + 1])
        for step in feed.part(part):
            yield feed.batch(torch.tensor([epoch * feed.steps + step]))


@pytest.mark.parametrize("steps_a_part", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("views", "changes"), [
    (1, {"randaugment_ops": 2, "mixup_alpha": 0.2, "cutmix_alpha": 1.0, "mix_probability": 0.7}),
    (1, {"flip": True, "drop_last": False}),
    (2, {"randaugment_ops": 1}),
])  # fmt: skip
def test_an_epoch_in_parts_is_the_same_to_the_last_bit(steps_a_part, views, changes, monkeypatch):
    recipe = small_recipe(**{"batch_size": 10, "crop_padding": 2, **changes})
    problem = colour_problem(75)  # 7 batches, or 8 of which the last is filled up
    whole = EpochFeed(problem, recipe, 3, torch.float32, views)
    assert whole.parts == 1
    monkeypatch.setattr(feed_module, "PART_BYTES", steps_a_part * 10 * 3 * 16 * 16 * 4 + 1)
    cut = EpochFeed(problem, recipe, 3, torch.float32, views)
    assert cut.parts == -(-cut.steps // steps_a_part)
    assert cut.inputs.nbytes <= 2 * views * feed_module.PART_BYTES
    assert sum(len(cut.part(part)) for part in range(cut.parts)) == cut.steps == whole.steps
    pairs = list(zip(in_turn(whole, 3), in_turn(cut, 3), strict=True))
    assert len(pairs) == 3 * whole.steps
    for (images, target), (same_images, same_target) in pairs:
        torch.testing.assert_close(same_images, images, rtol=0, atol=0)
        torch.testing.assert_close(same_target, target, rtol=0, atol=0)


def test_a_batch_larger_than_a_part_is_a_part(monkeypatch):
    monkeypatch.setattr(feed_module, "PART_BYTES", 1)
    feed = EpochFeed(colour_problem(75), small_recipe(batch_size=10), 0, torch.float32)
    assert (feed.parts, feed.part_steps) == (7, 1)
