"""MixUp and CutMix against a loop over pixels, and the distribution of their draws."""

import pytest
import torch
from scipy import stats

from gence.lab.data.augment.epoch import MixDraws, apply_mixing, draw_mixing


def draw(
    n: int = 64,
    size: tuple[int, int] = (8, 8),
    mixup: float = 0.0,
    cutmix: float = 0.0,
    probability: float = 1.0,
    batch_size: int = 16,
    seed: int = 0,
) -> MixDraws:
    return draw_mixing(
        n,
        *size,
        mixup_alpha=mixup,
        cutmix_alpha=cutmix,
        probability=probability,
        batch_size=batch_size,
        generator=torch.Generator().manual_seed(seed),
    )


def images_and_labels(n: int, channels: int = 3, size: tuple[int, int] = (8, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    images = torch.rand(n, channels, *size, generator=generator)
    return images, torch.randint(10, (n,), generator=generator)


def mix_by_loop(images: torch.Tensor, draws: MixDraws) -> torch.Tensor:
    """One batch (B, C, H, W), pixel by pixel."""
    result = images.clone()
    for i in range(len(images)):
        other = images[int(draws.partner[i])]
        for y in range(images.shape[-2]):
            for x in range(images.shape[-1]):
                inside = draws.top[i] <= y < draws.bottom[i] and draws.left[i] <= x < draws.right[i]
                share = 0.0 if inside else float(draws.weight[i])
                result[i, :, y, x] = share * images[i, :, y, x] + (1 - share) * other[:, y, x]
    return result


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.2, 0.0), (0.0, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("size", [(8, 8), (6, 10)])
def test_mixing_equals_a_loop_over_pixels(mixup: float, cutmix: float, size: tuple[int, int]) -> None:
    draws = draw(64, size, mixup, cutmix, probability=0.7).batches(16)
    images, labels = images_and_labels(64, size=size)
    stack, label_stack = images.view(4, 16, 3, *size), labels.view(4, 16)
    mixed, own, other, lam = apply_mixing(stack, label_stack, draws)
    assert not torch.equal(mixed, stack)
    for step in range(4):
        torch.testing.assert_close(mixed[step], mix_by_loop(stack[step], draws[step]))
        torch.testing.assert_close(other[step], label_stack[step][draws.partner[step]])
        one = apply_mixing(stack[step], label_stack[step], draws[step])
        torch.testing.assert_close(one, (mixed[step], own[step], other[step], lam[step]), rtol=0, atol=0)
    torch.testing.assert_close(own, label_stack)


def test_lam_is_the_share_of_own_pixels() -> None:
    for mixup, cutmix in ((0.4, 0.0), (0.0, 1.0)):
        draws = draw(32, (8, 8), mixup, cutmix, batch_size=32)
        own = torch.zeros(32, 1, 8, 8)
        own[::2] = 1.0
        mixed = apply_mixing(own, torch.zeros(32, dtype=torch.long), draws)[0].mean(dim=(1, 2, 3))
        is_one = own[:, 0, 0, 0]
        torch.testing.assert_close(mixed, draws.lam * is_one + (1 - draws.lam) * is_one[draws.partner])


def test_partners_permute_within_each_batch_and_within_a_smaller_last_one() -> None:
    draws = draw(70, mixup=1.0, batch_size=16)
    assert draws.partner.shape == (70,)
    for start in range(0, 70, 16):
        partners = draws.partner[start : start + 16]
        torch.testing.assert_close(partners.sort().values, torch.arange(len(partners)))
    assert (draws.partner[:64].view(4, 16) != torch.arange(16)).float().mean() > 0.7


def test_cutmix_boxes_follow_torchvisions_rule() -> None:
    draws = draw(20_000, (32, 24), cutmix=1.0, batch_size=100)
    height, width = draws.bottom - draws.top, draws.right - draws.left
    assert draws.top.min() == 0
    assert draws.bottom.max() == 32
    assert draws.left.min() == 0
    assert draws.right.max() == 24
    assert height.min() >= 0
    torch.testing.assert_close(draws.lam, 1 - height * width / (32 * 24))
    torch.testing.assert_close(draws.weight, torch.ones_like(draws.weight))
    # The expected remaining area, from drawing lambda, centre and box as torchvision's CutMix does.
    generator = torch.Generator().manual_seed(4)
    lam = torch.rand(20_000, generator=generator)
    reach = (0.5 * (1 - lam).sqrt()[:, None] * torch.tensor([32, 24])).int()
    centre = (torch.rand(20_000, 2, generator=generator) * torch.tensor([32, 24])).int()
    sides = torch.minimum(centre + reach, torch.tensor([32, 24])) - (centre - reach).clamp(min=0)
    expected = 1 - sides.prod(dim=1) / (32 * 24)
    assert stats.ks_2samp(draws.lam.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_mixup_lambdas_are_beta_and_drawn_per_sample(alpha: float) -> None:
    lam = draw(5000, mixup=alpha, batch_size=100).lam
    assert stats.kstest(lam.double().numpy(), stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    assert lam[:100].unique().numel() > 50


def test_tiny_alphas_stay_finite() -> None:
    lam = draw(5000, mixup=1e-4, batch_size=100).lam
    assert torch.isfinite(lam).all()
    assert abs(lam.mean().item() - 0.5) < 0.05
    assert ((lam < 1e-3) | (lam > 1 - 1e-3)).float().mean() > 0.99


def test_probability_is_per_batch_and_both_methods_share_it() -> None:
    draws = draw(40_000, mixup=1.0, cutmix=1.0, probability=0.6, batch_size=20).batches(20)
    cut = (draws.bottom > draws.top).any(dim=1)
    blended = (draws.weight < 1).any(dim=1)
    assert not (cut & blended).any()
    untouched = ~(cut | blended)
    assert abs(untouched.float().mean().item() - 0.4) < 0.05
    assert abs(cut.float().mean().item() - 0.3) < 0.05
    torch.testing.assert_close(draws.partner[untouched], torch.arange(20).expand(int(untouched.sum()), 20))
    torch.testing.assert_close(draws.lam[untouched], torch.ones(int(untouched.sum()), 20))


@pytest.mark.parametrize(("mixup", "probability"), [(1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
def test_no_mixing_returns_the_images_bit_for_bit(mixup: float, probability: float, dtype: torch.dtype) -> None:
    images, labels = images_and_labels(32)
    images = (images * 255).to(dtype)
    mixed, own, other, lam = apply_mixing(images, labels, draw(32, mixup=mixup, probability=probability, batch_size=32))
    assert mixed.dtype == dtype
    torch.testing.assert_close(mixed, images, rtol=0, atol=0)
    torch.testing.assert_close(own, other)
    torch.testing.assert_close(lam, torch.ones(32))


def test_bytes_are_rounded_to_the_nearest() -> None:
    images, labels = images_and_labels(32)
    images = (images * 255).to(torch.uint8)
    draws = draw(32, mixup=1.0, batch_size=32)
    exact = apply_mixing(images.double(), labels, draws)[0]
    mixed = apply_mixing(images, labels, draws)[0]
    assert mixed.dtype == torch.uint8
    assert (mixed.double() - exact).abs().max() <= 0.5001


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_channels_last_images_stay_so(dtype: torch.dtype) -> None:
    images, labels = images_and_labels(32)
    images = images.to(dtype).contiguous(memory_format=torch.channels_last)
    mixed = apply_mixing(images, labels, draw(32, mixup=1.0, cutmix=1.0, batch_size=32))[0]
    assert mixed.is_contiguous(memory_format=torch.channels_last)


def test_draws_repeat_with_their_seed() -> None:
    torch.testing.assert_close(draw(mixup=1.0, cutmix=1.0).lam, draw(mixup=1.0, cutmix=1.0).lam)
    assert not torch.equal(draw(mixup=1.0).lam, draw(mixup=1.0, seed=1).lam)


def test_errors() -> None:
    images, labels = images_and_labels(32)
    with pytest.raises(ValueError, match=r"draws \(64,\) must agree"):
        apply_mixing(images, labels, draw(64, mixup=1.0))
    with pytest.raises(ValueError, match=r"mixup_alpha must be 0 .* got -1"):
        draw(mixup=-1.0)
    with pytest.raises(ValueError, match=r"probability must be from 0 to 1, got 1\.5"):
        draw(mixup=1.0, probability=1.5)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        draw(batch_size=0)
