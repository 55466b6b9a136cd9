"""A whole epoch: the parts in order, runs side by side, and independence of the device of the draws."""

import doctest

import pytest
import torch

import gence.data.augment
from gence.data.augment import EpochAugmenter, EpochDraws, crop_and_flip
from gence.data.mixing import apply_mixing
from gence.data.randaugment import randaugment

EVERYTHING = EpochAugmenter(
    crop_padding=4,
    flip=True,
    randaugment_ops=2,
    randaugment_magnitude=9,
    mixup_alpha=0.2,
    cutmix_alpha=1.0,
    mix_probability=0.5,
    batch_size=10,
)


def random_images(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_docstring_examples_run() -> None:
    results = doctest.testmod(gence.data.augment)
    assert results.attempted >= 4
    assert results.failed == 0


def test_an_epoch_is_crop_and_flip_then_randaugment() -> None:
    images = random_images(60)
    draws = EVERYTHING.draw(60, 32, 32, torch.Generator().manual_seed(1))
    assert draws.crop_flip is not None
    assert draws.randaugment is not None
    assert draws.mixing is not None
    expected = randaugment(crop_and_flip(images, draws.crop_flip, 4), draws.randaugment, magnitude=9)
    result, mixing = EVERYTHING(images, torch.Generator().manual_seed(1))
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert mixing is not None
    torch.testing.assert_close(mixing.lam, draws.mixing.lam)
    assert not torch.equal(result, EVERYTHING(images, torch.Generator().manual_seed(2))[0])


def test_runs_side_by_side_equal_runs_one_by_one() -> None:
    images = [random_images(30, seed) for seed in range(3)]
    draws = [EVERYTHING.draw(30, 32, 32, torch.Generator().manual_seed(seed)) for seed in range(3)]
    joined = EpochDraws.cat(draws)
    together = EVERYTHING.apply(torch.cat(images), joined)
    alone = torch.cat([EVERYTHING.apply(i, d) for i, d in zip(images, draws, strict=True)])
    torch.testing.assert_close(together, alone, rtol=0, atol=0)
    assert joined.mixing is not None
    labels = torch.arange(90)
    mixed = apply_mixing(together.view(9, 10, 3, 32, 32), labels.view(9, 10), joined.mixing.batches(10))
    for run, run_draws in enumerate(draws):
        assert run_draws.mixing is not None
        rows = slice(30 * run, 30 * (run + 1))
        single = apply_mixing(
            alone[rows].view(3, 10, 3, 32, 32), labels[rows].view(3, 10), run_draws.mixing.batches(10)
        )
        for joint_part, single_part in zip(mixed, single, strict=True):
            torch.testing.assert_close(joint_part[3 * run : 3 * run + 3], single_part, rtol=0, atol=0)


def test_what_is_switched_off_is_not_drawn() -> None:
    nothing = EpochAugmenter(crop_padding=0, flip=False, batch_size=10)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    images = random_images(20)
    result, mixing = nothing(images, generator)
    torch.testing.assert_close(generator.get_state(), before)
    torch.testing.assert_close(result, images, rtol=0, atol=0)
    assert mixing is None
    with pytest.raises(ValueError, match="1 of 2 runs have CropFlipDraws"):
        EpochDraws.cat([nothing.draw(5, 32, 32, generator), EVERYTHING.draw(5, 32, 32, generator)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same_epoch_without_waiting() -> None:
    images = random_images(3000)
    draws = EVERYTHING.draw(3000, 32, 32, torch.Generator().manual_seed(0))
    on_gpu = images.cuda()
    EVERYTHING.apply(on_gpu, draws)  # the tables are copied once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = EVERYTHING.apply(on_gpu, draws)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    difference = (result.cpu().int() - EVERYTHING.apply(images, draws).int()).abs()
    # Blends may round differently by one level, where a product and a sum are fused; nothing else may differ.
    assert (difference > 0).float().mean() < 1e-2
    assert (difference > 2).float().mean() < 1e-3
