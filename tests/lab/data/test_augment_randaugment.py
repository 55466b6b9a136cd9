"""RandAugment on whole epochs against torchvision's own RandAugment, image by image."""

import pytest
import torch
from torchvision.transforms import v2

from gence.lab.data.augment.randaugment import OPERATIONS, RandAugmentDraws, draw_randaugment, randaugment, strength

SIGNED = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness")


def varied_images(n: int, channels: int, size: int, seed: int = 0) -> torch.Tensor:
    """Noise, ramps, low contrast, few levels, gray and constant images: what the operations treat differently."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (n, channels, size, size), dtype=torch.uint8, generator=generator)
    ramp = torch.linspace(0, 255, size).to(torch.uint8)
    images[1::6] = ramp
    images[1::6] += torch.randint(20, images[1::6].shape, dtype=torch.uint8, generator=generator)
    images[2::6] = images[2::6] // 4 + 90
    images[3::6] = images[3::6] // 128 * 200
    images[4::6] = images[4::6, :1]
    images[5::6] = images[5::6, :, :1, :1]
    return images


def torchvision_one_by_one(images: torch.Tensor, draws: RandAugmentDraws, magnitude: int) -> torch.Tensor:
    """torchvision's transform with its two random choices replaced by the given draws."""
    transform = v2.RandAugment(magnitude=magnitude)
    height, width = images.shape[-2:]
    results = []
    for image, operations, signs in zip(images, draws.operation.tolist(), draws.negative.tolist(), strict=True):
        for operation, negative in zip(operations, signs, strict=True):
            name = list(transform._AUGMENTATION_SPACE)[operation]
            magnitudes_of, signed = transform._AUGMENTATION_SPACE[name]
            magnitudes = magnitudes_of(transform.num_magnitude_bins, height, width)
            value = 0.0 if magnitudes is None else float(magnitudes[magnitude])
            image = transform._apply_image_or_video_transform(
                image, name, -value if signed and negative else value, interpolation="nearest", fill=transform._fill
            )
        results.append(image)
    return torch.stack(results)


def same_draws(n: int, name: str, negative: bool) -> RandAugmentDraws:
    return RandAugmentDraws(torch.full((n, 1), OPERATIONS.index(name)), torch.full((n, 1), negative))


def test_operations_are_torchvisions_in_its_order() -> None:
    assert tuple(v2.RandAugment._AUGMENTATION_SPACE) == OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize(("size", "channels"), [(32, 3), (84, 3), (8, 1), (2, 3)])
def test_every_operation_equals_torchvision_image_by_image(name: str, negative: bool, size: int, channels: int) -> None:
    images = varied_images(24, channels, size)
    before = images.clone()
    draws = same_draws(24, name, negative)
    for magnitude in (0, 9, 10, 30):
        expected = torchvision_one_by_one(images, draws, magnitude)
        result = randaugment(images, draws, magnitude=magnitude)
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        torch.testing.assert_close(images, before, rtol=0, atol=0)
        if magnitude == 30 and size >= 8 and name != "Identity" and (channels, name) != (1, "Color"):
            # At 8 px there are too few pixels for 255 steps, where Equalize leaves images as they are.
            assert torch.equal(result, images) is (name == "Equalize" and size == 8)


@pytest.mark.parametrize("name", SIGNED)
def test_the_sign_matters_where_there_is_one(name: str) -> None:
    images = varied_images(12, 3, 32)
    plus = randaugment(images, same_draws(12, name, False), magnitude=9)
    minus = randaugment(images, same_draws(12, name, True), magnitude=9)
    assert not torch.equal(plus, minus)


@pytest.mark.parametrize("num_ops", [0, 1, 2, 3])
@pytest.mark.parametrize(("size", "channels"), [(32, 3), (8, 1)])
def test_each_sample_gets_its_own_sequence(num_ops: int, size: int, channels: int) -> None:
    images = varied_images(150, channels, size)
    draws = draw_randaugment(150, num_ops=num_ops, generator=torch.Generator().manual_seed(num_ops))
    expected = torchvision_one_by_one(images, draws, 9)
    torch.testing.assert_close(randaugment(images, draws, magnitude=9), expected, rtol=0, atol=0)


@pytest.mark.parametrize("magnitude", range(31))
def test_strengths_are_torchvisions(magnitude: int) -> None:
    for name, (magnitudes_of, _) in v2.RandAugment._AUGMENTATION_SPACE.items():
        magnitudes = magnitudes_of(31, 20, 30)
        expected = 0.0 if magnitudes is None else float(magnitudes[magnitude])
        expected *= 255 if name == "Solarize" else 1
        assert strength(name, magnitude, 20, 30) == expected


def test_not_square_images() -> None:
    images = varied_images(60, 3, 32)[..., :20]
    draws = draw_randaugment(60, num_ops=2, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(
        randaugment(images, draws, magnitude=12), torchvision_one_by_one(images, draws, 12), rtol=0, atol=0
    )


def test_draws_are_uniform_and_repeatable() -> None:
    draws = draw_randaugment(7000, num_ops=2, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(draws.operation.flatten(), minlength=14)
    assert counts.shape == (14,)
    assert (counts - 1000).abs().max() < 160  # five standard deviations
    assert abs(draws.negative.float().mean().item() - 0.5) < 0.025
    again = draw_randaugment(7000, num_ops=2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.operation, again.operation)


def test_errors() -> None:
    draws = draw_randaugment(2, num_ops=1, generator=torch.Generator())
    with pytest.raises(ValueError, match=r"uint8 of shape \(n, 1 or 3, H, W\), got torch.float32"):
        randaugment(torch.zeros(2, 3, 8, 8), draws, magnitude=9)
    with pytest.raises(ValueError, match="draws are for 2 samples, images has 3"):
        randaugment(torch.zeros(3, 3, 8, 8, dtype=torch.uint8), draws, magnitude=9)
    with pytest.raises(ValueError, match="magnitude must be from 0 to 30, got 31"):
        randaugment(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), draws, magnitude=31)
    with pytest.raises(ValueError, match="num_ops must be at least 0, got -1"):
        draw_randaugment(2, num_ops=-1, generator=torch.Generator())
