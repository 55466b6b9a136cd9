"""Crop, flip and normalisation against torchvision image by image."""

import pytest
import torch
from torchvision.transforms.v2 import functional as tv

from gence.lab.data.augment.epoch import crop_and_flip, draw_crop_flip, flip, normalize, padded_crop


def random_images(n: int, channels: int, size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(
        256, (n, channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize(("size", "channels", "padding"), [(32, 3, 4), (84, 3, 4), (8, 1, 1), (8, 1, 0)])
def test_crop_and_flip_equal_torchvision_image_by_image(size: int, channels: int, padding: int) -> None:
    images = random_images(40, channels, size)
    draws = draw_crop_flip(40, padding=padding, flip=True, generator=torch.Generator().manual_seed(1))
    cropped = torch.stack(
        [
            tv.crop(tv.pad(image, [padding] * 4), int(dy), int(dx), size, size)
            for image, dy, dx in zip(images, draws.dy, draws.dx, strict=True)
        ]
    )
    flipped = torch.stack(
        [tv.horizontal_flip(image) if on else image for image, on in zip(cropped, draws.mirrored, strict=True)]
    )
    torch.testing.assert_close(padded_crop(images, draws.dy, draws.dx, padding), cropped, rtol=0, atol=0)
    torch.testing.assert_close(flip(cropped, draws.mirrored), flipped, rtol=0, atol=0)
    torch.testing.assert_close(crop_and_flip(images, draws, padding), flipped, rtol=0, atol=0)
    assert padding == 0 or not torch.equal(cropped, images)


def test_crop_keeps_floats_and_the_middle_offset_changes_nothing() -> None:
    images = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    middle = torch.full((5,), 4)
    torch.testing.assert_close(padded_crop(images, middle, middle, 4), images, rtol=0, atol=0)


def test_draws_are_uniform_and_reach_both_ends() -> None:
    draws = draw_crop_flip(9000, padding=4, flip=True, generator=torch.Generator().manual_seed(3))
    for offsets in (draws.dy, draws.dx):
        counts = torch.bincount(offsets, minlength=9)
        assert counts.shape == (9,)
        assert (counts - 1000).abs().max() < 150  # five standard deviations
    assert abs(draws.mirrored.float().mean().item() - 0.5) < 0.03
    still = draw_crop_flip(100, padding=4, flip=False, generator=torch.Generator().manual_seed(3))
    assert not still.mirrored.any()
    with pytest.raises(ValueError, match="padding must be at least 0, got -1"):
        draw_crop_flip(3, padding=-1, flip=False, generator=torch.Generator())


def test_draws_are_cut_by_row() -> None:
    draws = draw_crop_flip(8, padding=2, flip=True, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(draws[3:].dx, draws.dx[3:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_normalize_equals_torchvision_and_is_channels_last(dtype: torch.dtype, as_tensor: bool) -> None:
    mean, std = [0.49, 0.48, 0.44], [0.2, 0.21, 0.26]
    images = random_images(6, 3, 8)
    expected = tv.normalize(images.float() / 255, mean, std).to(dtype)
    given = (torch.tensor(mean), torch.tensor(std)) if as_tensor else (mean, std)
    result = normalize(images, *given, dtype)
    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=torch.channels_last)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(result, expected, **tolerance)


def test_normalize_takes_a_stack_of_batches() -> None:
    images = random_images(12, 1, 8)
    stacked = normalize(images.view(2, 3, 2, 1, 8, 8), [0.3], [0.5])
    assert stacked.shape == (2, 3, 2, 1, 8, 8)
    torch.testing.assert_close(stacked.flatten(0, 2), normalize(images, [0.3], [0.5]))
    assert normalize(random_images(12, 3, 8).view(2, 6, 3, 8, 8), [0.3] * 3, [0.5] * 3)[1].is_contiguous(
        memory_format=torch.channels_last
    )


def test_normalize_refuses_floats() -> None:
    with pytest.raises(TypeError, match=r"must be uint8, got torch\.float32"):
        normalize(torch.zeros(1, 3, 4, 4), [0.0] * 3, [1.0] * 3)
