"""Embedding: once per image, resumed, verified, and clear about what does not work."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from gence.lab.data import DataError, ImageSet
from gence.lab.features import Encoder, ImageSource, Preprocessing, embed
from gence.lab.features.cache import FeatureFile, FeatureWriter, read_features
from gence.lab.store import StoreError
from tests.lab.small_disk import run_on_small_disk


class Means(nn.Module):
    """An encoder that is quick: the mean of each channel's quarters. Counts what it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.fails_after, self.gives_nan = 0, 10**9, False

    def forward(self, x: Tensor) -> Tensor:
        if self.seen >= self.fails_after:
            raise KeyboardInterrupt
        self.seen += len(x)
        found = nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        return found * torch.nan if self.gives_nan else found


@pytest.fixture
def encoder() -> Encoder:
    preprocessing = Preprocessing(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    return Encoder("means", Means(), 12, preprocessing, "0" * 64)


@pytest.fixture
def images() -> ImageSet:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (1300, 3, 10, 10), generator=draw, dtype=torch.uint8)
    return ImageSet.from_arrays(pixels, torch.arange(1300) % 3, name="noise/train")


def direct(images: ImageSet, encoder: Encoder) -> Tensor:
    return encoder(encoder.preprocessing(images.images)).half()


def the_file(images: ImageSet, encoder: Encoder, folder: Path) -> FeatureFile:
    identity = {**encoder.identity(), "data": images.checksum, "view": "plain"}
    return FeatureFile.of(folder, f"{images.name}-{encoder.name}", len(images), encoder.width, identity)


def test_embedded_once(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    expected = direct(images, encoder)
    encoder.network.seen = 0
    first = embed(images, encoder, cache_dir=tmp_path)
    second = embed(images, encoder, cache_dir=tmp_path)
    for found, count in ((first, 1300), (second, 0)):
        torch.testing.assert_close(found.rows(), expected)
        assert found.rows().dtype == torch.float16
        assert found.embedded == count
    assert encoder.network.seen == 1300
    torch.testing.assert_close(embed(images, encoder, cache=False).rows(), expected)


def test_other_images_weights_and_preprocessing_are_other_features(images, encoder, tmp_path) -> None:
    embed(images, encoder, cache_dir=tmp_path)
    other_weights = Encoder("means", encoder.network, 12, encoder.preprocessing, "1" * 64)
    other_size = Encoder("means", encoder.network, 12, Preprocessing(size=4, mean=(0.5,) * 3, std=(0.5,) * 3), "0" * 64)
    for source, network in (
        (images.subset(torch.arange(100)), encoder), (images, other_weights), (images, other_size),
    ):  # fmt: skip
        assert embed(source, network, cache_dir=tmp_path).embedded == len(source)


def test_the_file_is_safetensors(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    embed(images, encoder, cache_dir=tmp_path)
    found = load_file(the_file(images, encoder, tmp_path).path)["features"]
    torch.testing.assert_close(found, direct(images, encoder))


def test_an_interrupted_embedding_resumes(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    encoder.network.fails_after = 1100
    with pytest.raises(KeyboardInterrupt):
        embed(images, encoder, cache_dir=tmp_path)
    encoder.network.fails_after = 10**9
    found = embed(images, encoder, cache_dir=tmp_path)
    assert found.embedded == 1300 - 1024
    torch.testing.assert_close(found.rows(), direct(images, encoder))


def test_a_damaged_part_is_embedded_again(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    embed(images, encoder, cache_dir=tmp_path)
    file = the_file(images, encoder, tmp_path)
    with file.path.open("r+b") as data:
        data.seek(len(file.header()) + 2 * 12 * 600)
        data.write(b"\x01\x02\x03")
    found = embed(images, encoder, cache_dir=tmp_path)
    assert found.embedded == 512
    torch.testing.assert_close(found.rows(), direct(images, encoder))


def test_a_cache_of_other_data_is_not_used(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    embed(images, encoder, cache_dir=tmp_path)
    mine = the_file(images, encoder, tmp_path)
    other = the_file(images.subset(torch.arange(1299, -1, -1)), encoder, tmp_path)
    mine.path.rename(other.path)
    mine.journal.rename(other.journal)
    assert read_features(other) is None


def test_views_are_further_rows(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    found = embed(images, encoder, views=("flip", "top_left"), cache_dir=tmp_path)
    assert found.embedded == 3 * 1300
    index = torch.tensor([5, 2])
    rows = found.rows(index, ("plain", "flip"))
    mirrored = ImageSet.from_arrays(images.images.flip(3), images.labels)
    torch.testing.assert_close(rows, torch.cat([direct(images, encoder)[index], direct(mirrored, encoder)[index]]))
    corner = ImageSet.from_arrays(images.images[:, :, :9, :9], images.labels)
    torch.testing.assert_close(found.views["top_left"], direct(corner, encoder))
    with pytest.raises(ValueError, match="unknown view 'flop'; known: plain, flip"):
        embed(images, encoder, views=("flop",), cache_dir=tmp_path)


def test_features_that_are_nan_lose_nothing(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    pixels = images.images

    def read(start: int, stop: int) -> Tensor:
        encoder.network.gives_nan = start >= 1024 and not healed
        return pixels[start:stop]

    healed = False
    source = ImageSource("noise", "a" * 64, 1300, read)
    with pytest.raises(ValueError, match="gives NaN, infinite or too large numbers for image"):
        embed(source, encoder, cache_dir=tmp_path)
    healed, encoder.network.gives_nan = True, False
    assert embed(source, encoder, cache_dir=tmp_path).embedded <= 1300 - 512


def test_files_are_decoded_in_the_middle(encoder: Encoder, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    paths = [tmp_path / f"{i:04}.png" for i in range(600)]
    for path in paths:
        Image.fromarray(draw.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(path)
    good = paths[-1].read_bytes()
    paths[-1].write_bytes(good[:60])
    with pytest.raises(DataError, match=r"0599\.png is not a readable image"):
        embed(ImageSource.of_files(paths, 8), encoder, cache_dir=tmp_path)
    with pytest.raises(DataError, match=r"none\.png cannot be read"):
        ImageSource.of_files([tmp_path / "none.png"], 8)
    paths[-1].write_bytes(good)
    assert embed(ImageSource.of_files(paths, 8), encoder, cache_dir=tmp_path).rows().shape == (600, 12)


def test_images_that_do_not_fit(encoder: Encoder, tmp_path: Path) -> None:
    two_channels = ImageSource("odd", "b" * 64, 3, lambda start, stop: torch.zeros(3, 2, 8, 8, dtype=torch.uint8))
    with pytest.raises(DataError, match="1 or 3 channels"):
        embed(two_channels, encoder, cache_dir=tmp_path)
    with pytest.raises(DataError, match="no images to embed"):
        embed(ImageSource("empty", "c" * 64, 0, lambda start, stop: torch.zeros(0)), encoder, cache_dir=tmp_path)
    short = ImageSource("short", "d" * 64, 9, lambda start, stop: torch.zeros(3, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(DataError, match="expected 9 images from number 0 on, got 3"):
        embed(short, encoder, cache_dir=tmp_path)


def test_the_bar_counts_images_per_second(images: ImageSet, encoder: Encoder, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    embed(images, encoder, cache_dir=tmp_path, progress=True, console=console)
    shown = console.file.getvalue()
    assert "embedding noise/train" in shown
    assert "1300/1300" in shown
    assert "images/s" in shown


def test_a_writer_that_is_not_complete_cannot_finish(tmp_path: Path) -> None:
    with FeatureWriter(FeatureFile.of(tmp_path, "x", 600, 4, {})) as writer:
        writer.write(0, torch.ones(512, 4))
        with pytest.raises(StoreError, match="is not complete"):
            writer.finish()


def test_a_full_disk_is_found_before_anything_is_embedded(tmp_path: Path) -> None:
    said = run_on_small_disk(
        tmp_path,
        """
import torch
from pathlib import Path
from gence.lab.features.cache import FeatureFile, FeatureWriter
from gence.lab.store import StoreError
try:
    FeatureWriter(FeatureFile.of(Path(disk), "x", 100_000, 100, {}))
except StoreError as error:
    print(error)
""",
        "1m",
    )
    assert "cannot write 19 MiB of features" in said
    assert "No space left on device" in said
