"""The augmentation of an epoch from draws per sample, made before the step that uses them.

Crops, flips and RandAugment for all images at once; MixUp and CutMix, with two-hot targets, batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from gence.lab.data.augment.randaugment import Draws, RandAugmentDraws, draw_randaugment, randaugment


@dataclass(frozen=True)
class CropFlipDraws(Draws):
    """Where each sample is cut from its padded image, and whether it is mirrored; all fields are (n,)."""

    dy: Tensor
    dx: Tensor
    mirrored: Tensor


def draw_crop_flip(n: int, *, padding: int, flip: bool, generator: torch.Generator) -> CropFlipDraws:
    """Draw a crop offset in [0, 2 * padding] a side and, where ``flip``, a mirroring at even odds for ``n`` samples."""
    if padding < 0:
        raise ValueError(f"padding must be at least 0, got {padding}")
    device = generator.device
    dy = torch.randint(2 * padding + 1, (n,), generator=generator, device=device)
    dx = torch.randint(2 * padding + 1, (n,), generator=generator, device=device)
    mirrored = torch.rand(n, generator=generator, device=device) < (0.5 if flip else 0.0)
    return CropFlipDraws(dy, dx, mirrored)


def padded_crop(images: Tensor, dy: Tensor, dx: Tensor, padding: int) -> Tensor:
    """Pad with zeros and cut out the original size, each sample at its own offset.

    Args:
        images: (n, C, H, W), any dtype.
        dy: rows from the top of the padded image, (n,), in [0, 2 * padding]; ``padding`` leaves the image in place.
        dx: columns from its left, (n,).
        padding: pixels added at every side.
    """
    columns = torch.arange(images.shape[-1], device=images.device) + dx[:, None]  # (n, W)
    return _take_pixels(images, dy, columns, padding)


def flip(images: Tensor, mask: Tensor) -> Tensor:
    """Mirror left and right where ``mask`` (n,) is true; images (n, C, H, W)."""
    return torch.where(mask[:, None, None, None], images.flip(-1), images)


def crop_and_flip(images: Tensor, draws: CropFlipDraws, padding: int) -> Tensor:
    """Return ``flip(padded_crop(images))`` in one pass: the mirroring only reverses the columns that are read."""
    columns = torch.arange(images.shape[-1], device=images.device)
    columns = torch.where(draws.mirrored[:, None], columns.flip(0), columns) + draws.dx[:, None]  # (n, W)
    return _take_pixels(images, draws.dy, columns, padding)


def _take_pixels(images: Tensor, dy: Tensor, columns: Tensor, padding: int) -> Tensor:
    n, channels, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    rows = torch.arange(height, device=images.device) + dy[:, None]  # (n, H)
    # Two gathers with expanded indices read n * (H + W) offsets; one gather would need n * H * W of them in memory.
    rows_taken = padded.gather(2, rows[:, None, :, None].expand(n, channels, height, padded.shape[-1]))
    return rows_taken.gather(3, columns[:, None, None, :].expand(n, channels, height, width))


def normalize(
    images: Tensor,
    mean: Tensor | Sequence[float],
    std: Tensor | Sequence[float],
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.channels_last,
) -> Tensor:
    """Turn bytes into the network's input: ``(images / 255 - mean) / std``, computed in float32, returned in ``dtype``.

    Args:
        images: uint8, (..., C, H, W).
        mean: per channel on the scale of 0 to 1, (C,). Inside a captured step pass tensors on the images' device:
            copying a sequence of floats there makes the host wait.
        std: likewise.
        dtype: of the result.
        memory_format: of each batch in the result.
    """
    if images.dtype != torch.uint8:
        raise TypeError(f"images must be uint8, got {images.dtype}; normalize converts and scales by itself")
    mean = torch.as_tensor(mean, dtype=torch.float32, device=images.device)
    std = torch.as_tensor(std, dtype=torch.float32, device=images.device)
    scale = (1.0 / (255.0 * std))[:, None, None]  # (C, 1, 1)
    shift = (-mean / std)[:, None, None]  # (C, 1, 1)
    flat = images.flatten(0, -4) if images.ndim > 4 else images
    result = torch.addcmul(shift, flat, scale).to(dtype).contiguous(memory_format=memory_format)
    return result.view(images.shape)


@dataclass(frozen=True)
class EpochDraws:
    """What each image of an epoch undergoes; None for what is switched off."""

    crop_flip: CropFlipDraws | None
    randaugment: RandAugmentDraws | None

    def __getitem__(self, index: slice) -> EpochDraws:
        crop_flip = None if self.crop_flip is None else self.crop_flip[index]
        return EpochDraws(crop_flip, None if self.randaugment is None else self.randaugment[index])


@dataclass(frozen=True, kw_only=True)
class EpochAugmenter:
    """Crop, flip and RandAugment for all images of an epoch at once, in this order (that of torchvision's recipes).

    Called, it draws and applies. Where an epoch is made in parts, `draw` for all of it and `apply` each part: no image
    depends on the others, so the parts together are the epoch.

    Mixing couples the samples of a batch and comes after this: :mod:`gence.lab.data.augment.epoch`.

    Args:
        crop_padding: zeros added at every side before a random crop to the old size; 0 for no crop.
        flip: mirror at even odds.
        randaugment_ops: RandAugment operations a sample; 0 for none.
        randaugment_magnitude: their strength, 0 to 30.

    >>> augmenter = EpochAugmenter(crop_padding=4, flip=True, randaugment_ops=2)
    >>> images = torch.zeros(20, 3, 32, 32, dtype=torch.uint8)
    >>> augmented = augmenter(images, torch.Generator().manual_seed(0))
    >>> augmented.shape, augmented.dtype
    (torch.Size([20, 3, 32, 32]), torch.uint8)
    """

    crop_padding: int = 4
    flip: bool = True
    randaugment_ops: int = 0
    randaugment_magnitude: int = 9

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images, uint8 (n, C, H, W); a CPU generator gives the same on every device."""
        return self.apply(images, self.draw(len(images), generator))

    def draw(self, n: int, generator: torch.Generator) -> EpochDraws:
        """Draw for ``n`` images."""
        crop_flip = randaugment = None
        if self.crop_padding or self.flip:
            crop_flip = draw_crop_flip(n, padding=self.crop_padding, flip=self.flip, generator=generator)
        if self.randaugment_ops:
            randaugment = draw_randaugment(n, num_ops=self.randaugment_ops, generator=generator)
        return EpochDraws(crop_flip, randaugment)

    def apply(self, images: Tensor, draws: EpochDraws) -> Tensor:
        """Return images, uint8 (n, C, H, W), augmented as drawn."""
        if draws.crop_flip is not None:
            images = crop_and_flip(images, draws.crop_flip.to(images.device), self.crop_padding)
        if draws.randaugment is not None:
            images = randaugment(images, draws.randaugment, magnitude=self.randaugment_magnitude)
        return images


@dataclass(frozen=True)
class MixDraws(Draws):
    """How each sample is mixed; every field has the shape of the labels, (n,) or (..., B).

    One form covers MixUp, CutMix and no mixing, so that a captured step needs no branch: outside its box a sample keeps
    the share ``weight`` of its own pixel, inside the box it takes the partner's. MixUp has an empty box, CutMix the
    weight 1, an unmixed sample both, and itself as partner.
    """

    partner: Tensor  #: position of the partner within the batch
    lam: Tensor  #: share of the sample's own label
    weight: Tensor  #: share of the sample's own pixels outside the box
    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor

    def batches(self, batch_size: int) -> MixDraws:
        """Return the draws of one run's epoch as (steps, batch_size), without the samples of an incomplete last batch.

        Where ``n`` is not a multiple of ``batch_size``, split each run's draws first and join them with ``cat`` after.
        """
        steps = len(self.lam) // batch_size
        return self._each(lambda tensor: tensor[: steps * batch_size].view(steps, batch_size))


def draw_mixing(
    n: int,
    height: int,
    width: int,
    *,
    mixup_alpha: float,
    cutmix_alpha: float,
    probability: float,
    batch_size: int,
    generator: torch.Generator,
) -> MixDraws:
    """Draw the mixing of an epoch of ``n`` samples in order, batches of ``batch_size`` and perhaps a smaller last one.

    A batch is mixed with ``probability``; where both alphas are positive it is MixUp or CutMix at even odds. Within a
    mixed batch the partners are a random permutation, and every sample has a lambda ~ Beta(alpha, alpha) and, for
    CutMix, a box of its own (area 1 - lambda around a uniform centre, cut at the border, as torchvision draws it; the
    label's share is the area that remains in fact).

    Returns:
        Draws of shape (n,) on the generator's device.

    >>> generator = torch.Generator().manual_seed(0)
    >>> options = {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "probability": 1.0, "batch_size": 4}
    >>> draws = draw_mixing(8, 32, 32, **options, generator=generator)
    >>> images, labels = torch.rand(2, 4, 3, 32, 32), torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])
    >>> mixed, own, other, lam = apply_mixing(images, labels, draws.batches(4))
    >>> mixed.shape, other.shape, lam.shape
    (torch.Size([2, 4, 3, 32, 32]), torch.Size([2, 4]), torch.Size([2, 4]))
    """
    _check(mixup_alpha, cutmix_alpha, probability, batch_size)
    device = generator.device
    steps = -(-n // batch_size)
    shape = (steps, batch_size)

    def uniform(*size: int) -> Tensor:
        return torch.rand(size, generator=generator, device=device)

    mixed = uniform(steps, 1) < (probability if mixup_alpha or cutmix_alpha else 0.0)
    cut_odds = 0.5 if mixup_alpha and cutmix_alpha else float(cutmix_alpha > 0)
    cut = mixed & (uniform(steps, 1) < cut_odds)
    own = torch.arange(batch_size, device=device).expand(shape)
    keys = uniform(*shape)
    # Positions beyond the end of the epoch sort last, so that a smaller last batch permutes within itself.
    keys.view(-1)[n:] = 2.0
    partner = torch.where(mixed, keys.argsort(dim=1), own)
    mixup_lam = _beta(mixup_alpha, shape, generator) if mixup_alpha else torch.ones(shape, device=device)
    cutmix_lam = _beta(cutmix_alpha, shape, generator) if cutmix_alpha else torch.ones(shape, device=device)

    half = 0.5 * (1.0 - cutmix_lam).sqrt()
    top, bottom = _interval(half, height, uniform(*shape))
    left, right = _interval(half, width, uniform(*shape))
    bottom, right = torch.where(cut, bottom, top), torch.where(cut, right, left)
    weight = torch.where(mixed & ~cut, mixup_lam, 1.0)
    lam = weight * (1.0 - (bottom - top) * (right - left) / (height * width))
    fields = (partner, lam, weight, top, bottom, left, right)
    return MixDraws(*(field.reshape(-1)[:n].contiguous() for field in fields))


def apply_mixing(images: Tensor, labels: Tensor, draws: MixDraws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mix batches; a pure function of its arguments without branches on their values, so it can be captured.

    Args:
        images: (..., B, C, H, W), floating or uint8; mixing before or after ``normalize`` is the same but for the
            rounding of uint8.
        labels: class indices (..., B).
        draws: of the same leading shape, on the same device.

    Returns:
        Mixed images of the same dtype, the samples' own labels, their partners' labels, and the share of their own
        labels: the two-hot target is ``lam`` at the first and ``1 - lam`` at the second.
    """
    if images.shape[:-3] != labels.shape or draws.lam.shape != labels.shape:
        raise ValueError(
            f"images {tuple(images.shape)}, labels {tuple(labels.shape)} and draws {tuple(draws.lam.shape)} must agree "
            "in their leading dimensions (..., batch); MixDraws.batches splits the draws of an epoch"
        )
    batch = labels.shape[-1]
    first = torch.arange(0, labels.numel(), batch, device=labels.device)[:, None]  # of each batch, if all are in a row
    partner = (draws.partner.reshape(-1, batch) + first).reshape(-1)
    flat = images.flatten(0, -4) if images.ndim > 4 else images
    share = _partner_share(draws, images.shape[-2], images.shape[-1])
    share = share.to(torch.float64 if images.dtype == torch.float64 else torch.float32)
    # lerp gives exactly one of its ends at shares 0 and 1, so unmixed and cut pixels are copied bit for bit.
    # Its result and flat[partner] (but not index_select) have the memory format of the images.
    mixed = torch.lerp(flat.to(share.dtype), flat[partner].to(share.dtype), share)
    if images.dtype == torch.uint8:
        mixed = mixed.round()
    labels_b = labels.reshape(-1).index_select(0, partner).view(labels.shape)
    return mixed.to(images.dtype).view(images.shape), labels, labels_b, draws.lam


def _partner_share(draws: MixDraws, height: int, width: int) -> Tensor:
    """Return the partner's share of each pixel, (samples, 1, H, W)."""

    def column(field: Tensor) -> Tensor:
        return field.reshape(-1, 1)

    rows = torch.arange(height, device=draws.lam.device)
    columns = torch.arange(width, device=draws.lam.device)
    in_rows = (rows >= column(draws.top)) & (rows < column(draws.bottom))  # (samples, H)
    in_columns = (columns >= column(draws.left)) & (columns < column(draws.right))  # (samples, W)
    inside = in_rows[:, None, :, None] & in_columns[:, None, None, :]
    return torch.where(inside, 1.0, 1.0 - draws.weight.reshape(-1, 1, 1, 1))


def _interval(half: Tensor, length: int, position: Tensor) -> tuple[Tensor, Tensor]:
    """Return start and end of ``half`` (a fraction of ``length``) to both sides of a pixel, cut at the border."""
    reach = (half * length).long()
    centre = (position * length).long()
    return (centre - reach).clamp(min=0), (centre + reach).clamp(max=length)


def _beta(alpha: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw Beta(alpha, alpha) from a generator, which ``torch.distributions.Beta`` does not take.

    X / (X + Y) of two Gamma(alpha) variables, in logarithms: Gamma(alpha) = Gamma(alpha + 1) U^(1 / alpha), which
    underflows for small alpha (0 / 0) if it is formed.
    """
    device = generator.device
    gamma = torch._standard_gamma(
        torch.full((2, *shape), alpha + 1.0, dtype=torch.float64, device=device), generator=generator
    )
    u = torch.rand((2, *shape), generator=generator, dtype=torch.float64, device=device)
    log_gamma = gamma.log() + torch.log1p(-u) / alpha
    return torch.sigmoid(log_gamma[0] - log_gamma[1]).float()


def _check(mixup_alpha: float, cutmix_alpha: float, probability: float, batch_size: int) -> None:
    for name, alpha in (("mixup_alpha", mixup_alpha), ("cutmix_alpha", cutmix_alpha)):
        if not 0.0 <= alpha < float("inf"):
            raise ValueError(f"{name} must be 0 (off) or a positive number, got {alpha}")
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability must be from 0 to 1, got {probability}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
