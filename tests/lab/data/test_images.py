from __future__ import annotations

import numpy as np
import pytest
import torch

from gence.lab.data import DataError, DataSplits, ImageSet
from gence.lab.data.images import contents_checksum


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_layouts_agree() -> None:
    nhwc = noise(5, 6, 7, 3)
    labels = [0, 1, 2, 1, 0]
    from_nhwc = ImageSet.from_arrays(nhwc, labels)
    from_nchw = ImageSet.from_arrays(
        torch.from_numpy(nhwc).permute(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int32)
    )
    torch.testing.assert_close(from_nhwc.images, from_nchw.images, rtol=0, atol=0)
    assert from_nhwc.images.shape == (5, 3, 6, 7)
    assert from_nhwc.images.is_contiguous()
    assert from_nhwc.checksum == from_nchw.checksum
    assert from_nhwc.classes == ("0", "1", "2")
    assert ImageSet.from_arrays(noise(2, 8, 8), [0, 1]).image_shape == (1, 8, 8)


def test_arrays_are_copied() -> None:
    pixels, labels = noise(2, 8, 8), np.array([0, 1])
    made = ImageSet.from_arrays(pixels, labels)
    before = made.images.clone()
    pixels[:] = 0
    labels[:] = 0
    torch.testing.assert_close(made.images, before, rtol=0, atol=0)
    assert made.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("images", "labels", "options", "message"),
    [
        (noise(2, 8, 8).astype(np.float32), [0, 1], {}, "must be uint8"),
        (noise(2, 3, 8, 3), [0, 1], {}, "layout='NCHW'"),
        (noise(2, 8, 8, 4), [0, 1], {}, "1 or 3 channels"),
        (noise(2, 8), [0, 1], {}, "must be .N, H, W."),
        (noise(2, 8, 8), [0, 1, 1], {}, "labels must be int64 .2,."),
        (noise(2, 8, 8), [0.0, 1.0], {}, "labels must be integers"),
        (noise(2, 8, 8), [0, -1], {}, "labels run from -1"),
        (noise(2, 8, 8), [0, 2], {"classes": ["a", "b"]}, "labels run from 0 to 2"),
        (noise(2, 8, 8), [0, 1], {"classes": ["a", "a"]}, "differ from each other"),
        (noise(0, 8, 8), [], {}, "labels must be integers|is empty"),
        (noise(2, 8, 8, 3), [0, 1], {"layout": "HWC"}, "layout must be"),
        (noise(2, 8, 8, 3), [0, 1], {"layout": "NCHW"}, "1 or 3 channels"),
    ],
)
def test_bad_arrays(images: np.ndarray, labels: list, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageSet.from_arrays(images, labels, **options)


def test_mean_std_against_float64() -> None:
    pixels = noise(50, 5, 4, 3)
    mean, std = ImageSet.from_arrays(pixels, [0] * 50).mean_std()
    scaled = torch.from_numpy(pixels).double() / 255
    torch.testing.assert_close(mean, scaled.mean((0, 1, 2)).float())
    torch.testing.assert_close(std, scaled.std((0, 1, 2), correction=0).float())
    assert mean.dtype == torch.float32


def test_subset_keeps_classes_and_follows_contents() -> None:
    whole = ImageSet.from_arrays(noise(6, 8, 8), [0, 1, 2, 0, 1, 2], classes=["a", "b", "c"])
    part = whole.subset(torch.tensor([4, 0]))
    torch.testing.assert_close(part.images, whole.images[[4, 0]], rtol=0, atol=0)
    assert part.labels.tolist() == [1, 0]
    assert part.classes == whole.classes
    assert part.counts().tolist() == [1, 1, 0]
    assert part.checksum == contents_checksum(part.images, part.labels, part.classes) != whole.checksum
    assert whole.subset(torch.arange(6)).checksum == whole.checksum


def test_checksum_sees_pixels_labels_classes_and_shape() -> None:
    pixels = noise(4, 4, 4)
    other = pixels.copy()
    other[3, 3, 3] ^= 1
    sums = {
        ImageSet.from_arrays(pixels, [0, 1, 0, 1]).checksum,
        ImageSet.from_arrays(other, [0, 1, 0, 1]).checksum,
        ImageSet.from_arrays(pixels, [0, 1, 1, 1]).checksum,
        ImageSet.from_arrays(pixels, [0, 1, 0, 1], classes=["a", "b"]).checksum,
        ImageSet.from_arrays(pixels.reshape(4, 2, 8), [0, 1, 0, 1]).checksum,
    }
    assert len(sums) == 5
    assert ImageSet.from_arrays(pixels, [0, 1, 0, 1], name="x").checksum in sums


def test_channels() -> None:
    gray = ImageSet.from_arrays(noise(3, 8, 8), [0, 1, 0])
    colour = gray.with_channels(3)
    assert colour.image_shape == (3, 8, 8)
    torch.testing.assert_close(colour.with_channels(1).images, gray.images, rtol=0, atol=0)
    red = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    red[:, 0] = 255
    assert ImageSet.from_arrays(red, [0]).with_channels(1).images.unique().tolist() == [76]
    with pytest.raises(DataError, match="1 or 3"):
        gray.with_channels(2)


def test_splits_must_match() -> None:
    train = ImageSet.from_arrays(noise(4, 8, 8), [0, 1, 0, 1], classes=["a", "b"], name="x/train")
    with pytest.raises(DataError, match=r"different classes.*'c'"):
        DataSplits(train, ImageSet.from_arrays(noise(2, 8, 8), [0, 1], classes=["a", "c"]))
    with pytest.raises(DataError, match="name one size for both, such as --image-size 64"):
        DataSplits(train, ImageSet.from_arrays(noise(2, 9, 9), [0, 1], classes=["a", "b"]))
