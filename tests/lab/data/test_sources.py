"""Names and paths to splits: layouts, sizes, colours, and the errors of data that does not fit."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from gence.lab.data import DataError, holdout, known_sources, load, load_images

from .conftest import digit_files, digit_pixels, encode, tar_bytes, write_folder, zip_bytes

REAL_DATA = os.environ.get("GENCE_DATA")  # read here: the tests themselves run without it


def test_digits_are_scikit_learns() -> None:
    splits = load("digits")
    info = next(info for info in known_sources() if info.name == "digits")
    assert (len(splits.train), len(splits.test)) == (info.train_images, info.test_images)
    assert splits.train.image_shape == info.image_shape
    bunch = load_digits()
    train, test = holdout(torch.from_numpy(bunch.target.astype(np.int64)), 0.5, 0)
    for part, index in ((splits.train, train), (splits.test, test)):
        torch.testing.assert_close(
            part.images[:, 0].double() * 16 / 255, torch.from_numpy(bunch.images)[index], atol=0.04, rtol=0
        )
        assert part.labels.tolist() == bunch.target[index].tolist()
    rows = {image.numpy().tobytes() for image in splits.train.images}
    assert len(rows) == len(splits.train)
    assert not any(image.numpy().tobytes() in rows for image in splits.test.images)
    assert load("digits", image_size=12).test.image_shape == (1, 12, 12)


def test_one_folder_is_split_the_same_way_each_time(tmp_path: Path) -> None:
    first = load(write_folder(tmp_path / "a", digit_files(10)))
    again = load(write_folder(tmp_path / "b", dict(reversed(digit_files(10).items()))))
    assert (len(first.train), len(first.test)) == (24, 6)
    assert first.test.counts().tolist() == [2, 2, 2]
    assert first.train.checksum == again.train.checksum
    whole = load_images(tmp_path / "a")
    rebuilt = sorted(image.numpy().tobytes() for part in (first.train, first.test) for image in part.images)
    assert rebuilt == sorted(image.numpy().tobytes() for image in whole.images)
    assert (first.train.name, whole.name) == ("a/train", "a/all")


@pytest.mark.parametrize("given", ["X", "X-train.zip", "X-test.tar.gz"])
def test_pairs(given: str, tmp_path: Path) -> None:
    (tmp_path / "X-train.zip").write_bytes(zip_bytes(digit_files(5)))
    (tmp_path / "X-test.tar.gz").write_bytes(tar_bytes(digit_files(2), "w:gz"))
    splits = load(tmp_path / given)
    assert (len(splits.train), len(splits.test)) == (15, 6)
    assert (splits.train.name, splits.test.name) == ("X/train", "X/test")
    assert len(load_images(tmp_path / "X", "train")) == 15
    assert load_images(tmp_path / "X-train.zip", "test").name == "X/train"


def test_half_a_pair(tmp_path: Path) -> None:
    (tmp_path / "X-train.zip").write_bytes(zip_bytes(digit_files(5)))
    with pytest.raises(DataError, match=r"X-train\.zip has no X-test\.zip"):
        load(tmp_path / "X")
    assert len(load_images(tmp_path / "X-train.zip")) == 15
    (tmp_path / "X-train.tar").write_bytes(tar_bytes(digit_files(5)))
    with pytest.raises(DataError, match=r"X-train\.zip and X-train\.tar both"):
        load(tmp_path / "X")
    (tmp_path / "Y-test.zip").write_bytes(
        zip_bytes({**digit_files(5, prefix="train/"), **digit_files(2, prefix="test/")})
    )
    with pytest.raises(DataError, match="holds train and test folders"):
        load_images(tmp_path / "Y-test.zip")


def test_named_data_from_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar10-train.zip").write_bytes(zip_bytes(digit_files(5)))
    (tmp_path / "cifar10-test.zip").write_bytes(zip_bytes(digit_files(2)))
    (tmp_path / "svhn-test.zip").write_bytes(zip_bytes(digit_files(3)))
    assert load("cifar10", data_dir=tmp_path).train.name == "cifar10/train"
    monkeypatch.setenv("GENCE_DATA", str(tmp_path))
    assert len(load("cifar10").test) == 6
    assert load_images("svhn").name == "svhn/test"
    monkeypatch.setenv("GENCE_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match="GENCE_DATA"):
        load("cifar10")
    with pytest.raises(DataError, match=r"mini-imagenet-train\.zip"):
        load("mini-imagenet", data_dir=tmp_path)


def test_validation_folder_stands_in_for_test_only_where_there_is_none(tmp_path: Path) -> None:
    files = {**digit_files(5, prefix="train/"), **digit_files(2, prefix="val/")}
    assert len(load(write_folder(tmp_path / "two", files)).test) == 6
    files |= digit_files(3, prefix="test/")
    splits = load(write_folder(tmp_path / "three", files))
    assert (len(splits.train), len(splits.test)) == (15, 9)


@pytest.mark.parametrize(
    ("train", "test"),
    [("Train", "Test"), ("TRAIN", "TEST"), ("training", "testing"), ("Training", "Validation"), ("train", "Valid")],
)
def test_parts_are_known_however_they_are_written(tmp_path: Path, train: str, test: str) -> None:
    files = {**digit_files(5, prefix=f"{train}/"), **digit_files(2, prefix=f"{test}/")}
    for source in (write_folder(tmp_path / "data", files), tmp_path / "data.zip"):
        if source.suffix:
            source.write_bytes(zip_bytes(files))
        splits = load(source)
        assert splits.classes == ("digit0", "digit1", "digit2")
        assert (len(splits.train), len(splits.test)) == (15, 6)


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (("Train", "Test", "digit9"), "holds Test, Train beside digit9"),
        (("train", "digit9"), "holds train beside digit9"),
        (("train", "Training", "test"), "holds Training, train, test: these"),
        (("test", "val"), "holds test, val: these"),
    ],
)
def test_parts_among_other_folders_are_refused(tmp_path: Path, folders: tuple[str, ...], said: str) -> None:
    files = {name: data for folder in folders for name, data in digit_files(3, prefix=f"{folder}/").items()}
    root = write_folder(tmp_path / "data", files)
    with pytest.raises(DataError, match=said):
        load(root)
    assert len(load_images(root)) == 9 * len(folders)  # labels do not matter there


def test_a_train_may_be_a_vehicle(tmp_path: Path) -> None:
    files = {name.replace("digit1", "train"): data for name, data in digit_files(3).items()}
    assert load(write_folder(tmp_path / "data", files)).classes == ("digit0", "digit2", "train")


def test_class_problems(tmp_path: Path) -> None:
    files = {**digit_files(3, prefix="train/"), **digit_files(2, classes=2, prefix="test/")}
    root = write_folder(tmp_path / "a", files)
    with pytest.raises(DataError, match="class 'digit2' is missing from test"):
        load(root)
    (root / "test" / "digit2").mkdir()
    with pytest.raises(DataError, match=r"digit2 is an empty class"):
        load(root)
    root = write_folder(
        tmp_path / "b", {**digit_files(3, classes=2, prefix="train/"), **digit_files(2, prefix="test/")}
    )
    with pytest.raises(DataError, match="class 'digit2' is missing from train"):
        load(root)
    for split, classes in (("train", 3), ("test", 2)):
        (tmp_path / f"c-{split}.zip").write_bytes(zip_bytes(digit_files(2, classes)))
    with pytest.raises(DataError, match="class 'digit2' is missing from test"):
        load(tmp_path / "c")
    with pytest.raises(DataError, match="has one class"):
        load(write_folder(tmp_path / "d", digit_files(3, classes=1)))
    with pytest.raises(DataError, match="class 'digit1' has one image"):
        load(
            write_folder(
                tmp_path / "e", {**digit_files(3, classes=1), "digit1/0.png": encode(np.zeros((8, 8), np.uint8))}
            )
        )
    with pytest.raises(DataError, match=r"loose\.png lies in no class folder"):
        load(write_folder(tmp_path / "f", {**digit_files(3), "loose.png": encode(np.zeros((8, 8), np.uint8))}))
    zipped = zip_bytes({**digit_files(3), "empty/": b""})
    (tmp_path / "g.zip").write_bytes(zipped)
    with pytest.raises(DataError, match=r"g\.zip: empty is an empty class"):
        load(tmp_path / "g.zip")


def test_flat_folder_is_for_load_images_alone(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "flat", {f"{i}.png": encode(p) for i, p in enumerate(digit_pixels(4)["digit1"])})
    flat = load_images(root, channels=3)
    assert flat.image_shape == (3, 8, 8)
    assert flat.classes == ("unlabelled",)
    with pytest.raises(DataError, match="lies in no class folder"):
        load(root)
    with pytest.raises(DataError, match="split must be"):
        load_images(root, "val")


def test_different_sizes_need_image_size(tmp_path: Path) -> None:
    files = {**digit_files(2), "digit0/zz.png": encode(np.zeros((10, 12), np.uint8))}
    root = write_folder(tmp_path / "data", files)
    with pytest.raises(DataError, match=r"sizes \(.*000\.png: 8 x 8, .*zz\.png: 12 x 10 pixels\).* --image-size 64"):
        load(root)
    assert load(root, image_size=8).train.image_shape == (1, 8, 8)
    with pytest.raises(DataError, match="image_size = 0"):
        load(root, image_size=0)
    for split, size in (("train", 8), ("test", 9)):
        pixels = np.zeros((size, size), np.uint8)
        write_folder(tmp_path / "uneven" / split, {"a/0.png": encode(pixels), "b/0.png": encode(pixels)})
    with pytest.raises(DataError, match=r"uneven/train has images of shape .*--image-size 64"):
        load(tmp_path / "uneven")


def test_resize_keeps_the_centre(tmp_path: Path) -> None:
    """A 40 x 20 image with a bright centre square: the sides are cut, the middle is scaled."""
    pixels = np.zeros((20, 40), np.uint8)
    pixels[5:15, 15:25] = 200
    root = write_folder(tmp_path / "flat", {"a.png": encode(pixels)})
    result = load_images(root, image_size=10).images[0, 0]
    expected = Image.fromarray(pixels).resize((20, 10), Image.Resampling.BILINEAR).crop((5, 0, 15, 10))
    torch.testing.assert_close(result, torch.from_numpy(np.array(expected)), rtol=0, atol=0)
    assert result[5, 5] == 200
    assert result[0, 0] == 0


def test_gray_and_colour(tmp_path: Path) -> None:
    gray = digit_pixels(2, 2)
    colour = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    files = {f"{name}/{i}.png": encode(p) for name, images in gray.items() for i, p in enumerate(images)}
    assert load_images(write_folder(tmp_path / "a", files)).image_shape == (1, 8, 8)
    mixed = load_images(write_folder(tmp_path / "b", {**files, "digit1/9.png": encode(colour)}))
    assert mixed.image_shape == (3, 8, 8)
    torch.testing.assert_close(mixed.images[-1], torch.from_numpy(colour).permute(2, 0, 1), rtol=0, atol=0)
    for channel in range(3):
        torch.testing.assert_close(mixed.images[0, channel], torch.from_numpy(gray["digit0"][0]), rtol=0, atol=0)
    write_folder(tmp_path / "c" / "train", files)
    write_folder(tmp_path / "c" / "test", {f"digit{k}/0.png": encode(colour) for k in range(2)})
    assert load(tmp_path / "c").train.image_shape == (3, 8, 8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_modes(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "TIFF" if mode == "CMYK" else "PNG", **({"transparency": b"\x00\x80"} if mode == "P" else {}))
    root = write_folder(tmp_path / "a", {"x.tif" if mode == "CMYK" else "x.png": buffer.getvalue()})
    result = load_images(root).images[0]
    if mode in ("1", "L", "LA"):
        expected = torch.from_numpy(np.array(image.convert("L")))[None]
    else:
        expected = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_sixteen_bit_images_are_scaled_by_their_range(tmp_path: Path) -> None:
    pixels = np.full((8, 8), 40_000, np.uint16)
    pixels[0, 0], pixels[0, 1] = 30_000, 35_000
    found = load_images(write_folder(tmp_path / "a", {"x.png": encode(pixels)})).images[0, 0]
    assert found[0, :3].tolist() == [0, 128, 255]


def test_photographs_stand_upright(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8), np.uint8)
    pixels[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees: the top row belongs on the right
    root = write_folder(tmp_path / "a", {"x.png": encode(pixels, exif=exif)})
    assert load_images(root).images[0, 0, 3].tolist() == [0] * 7 + [255]


def test_progress_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(write_folder(tmp_path / "shown", digit_files(3)), progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "shown/all" in captured.err


@pytest.mark.skipif(not REAL_DATA, reason="GENCE_DATA names no folder with cifar10 archives")
def test_real_archives() -> None:
    splits = load("cifar10", data_dir=REAL_DATA)
    assert splits.classes[:3] == ("airplane", "automobile", "bird")
    assert splits.test.counts().tolist() == [1000] * 10
    assert splits.train.image_shape == (3, 32, 32)


def test_a_folder_that_is_not_there_is_an_error_for_bundled_data_too(tmp_path) -> None:
    with pytest.raises(DataError, match=r"the data folder .*nowhere does not exist"):
        load("digits", data_dir=tmp_path / "nowhere")
