"""`check` finds copies by the pixels of the files, and calls nothing else a copy."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gence.lab.data import check

from .conftest import digit_files, digit_pixels, encode, write_folder, zip_bytes


def noise(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def about_copies(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if "pixel by pixel" in note or "another label" in note]


def test_one_tiny_image_does_not_make_the_others_equal(tmp_path: Path) -> None:
    """A common size of 1 x 1 would leave of each image its mean, and the means are close to each other."""
    files = {f"c{i % 3}/{i:03d}.png": encode(noise(i, 32, 32)[..., 0]) for i in range(180)}
    report = check(write_folder(tmp_path / "data", {**files, "c0/tiny.png": encode(np.zeros((1, 1), np.uint8))}))
    assert report.ok
    assert "images of 2 sizes" in report.notes[0]
    assert about_copies(report.notes) == []


@pytest.mark.parametrize("image_size", [None, 1, 64])
def test_a_size_to_bring_images_to_changes_nothing(image_size: int | None, tmp_path: Path) -> None:
    parts = {"train": range(6), "test": range(5, 10)}  # noise 5, of class a, is in both
    files = {
        f"{part}/{'ab'[i >= 6 or i < 3]}/{i}.png": encode(noise(i, 20 + i, 30))
        for part, seeds in parts.items()
        for i in seeds
    }
    root = write_folder(tmp_path / "data", files)
    (note,) = about_copies(check(root, image_size=image_size).notes)
    assert note.startswith("1 of 5 test images is also in the training part, pixel by pixel")


def test_digits_have_no_copies_at_any_size() -> None:
    assert check("digits", image_size=1).notes == check("digits").notes == ()


def every_format(pixels: np.ndarray) -> dict[str, bytes]:
    """The same gray picture in files that decode to the same pixels."""
    gray = Image.fromarray(pixels)
    found = {}
    for name, image, kind in (
        ("gray.png", gray, "PNG"),
        ("colour.png", gray.convert("RGB"), "PNG"),
        ("alpha.png", gray.convert("RGBA"), "PNG"),
        ("palette.gif", gray, "GIF"),
        ("gray.bmp", gray, "BMP"),
        ("packed.tif", gray, "TIFF"),
    ):
        buffer = io.BytesIO()
        image.save(buffer, kind)
        found[name] = buffer.getvalue()
    return found


@pytest.mark.parametrize("other_size", [False, True])
def test_copies_in_another_format_are_found(other_size: bool, tmp_path: Path) -> None:
    pixels = digit_pixels(1)["digit0"][0]
    train = {f"train/{name}": data for name, data in digit_files(2, classes=2).items()}
    if other_size:
        train["train/digit1/large.png"] = encode(noise(0, 40, 50))
    copies = {f"test/digit0/{name}": data for name, data in every_format(pixels).items()}
    root = write_folder(tmp_path / "data", {**train, **copies, "test/digit1/0.png": encode(noise(1, 8, 8))})
    (note,) = about_copies(check(root).notes)
    assert note.startswith("6 of 7 test images are also in the training part")


def test_contradictions_between_images_of_several_sizes(tmp_path: Path) -> None:
    files = {f"{name}/{i}.png": encode(noise(i + 10 * k, 30 + i, 40)) for k, name in enumerate("ab") for i in range(5)}
    files["b/copy.png"] = files["a/3.png"]
    (tmp_path / "data.zip").write_bytes(zip_bytes(files))
    notes = [note for note in check(tmp_path / "data.zip").notes if "another label" in note]
    place = f"{tmp_path / 'data.zip'}: "
    assert notes == [
        f"1 image has the pixels of an image with another label, such as {place}a/3.png (a) and {place}b/copy.png (b)"
    ]


def test_a_row_is_no_column(tmp_path: Path) -> None:
    row = np.arange(12, dtype=np.uint8)[None]
    files = {f"{name}/{i}.png": encode(noise(i + 10 * k, 12, 12)) for k, name in enumerate("ab") for i in range(3)}
    files |= {"a/row.png": encode(row), "b/column.png": encode(row.T.copy())}
    assert about_copies(check(write_folder(tmp_path / "data", files)).notes) == []


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the extra hub")
def test_copies_in_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    datasets.disable_progress_bars()

    def notes(files: Mapping[str, bytes], name: str) -> list[str]:
        return about_copies(check(f"hf:{write_folder(tmp_path / name, files)}", image_size=1).notes)

    files = {f"{name}/{i}.png": encode(noise(i + 10 * k, 9 + i, 8)) for k, name in enumerate("ab") for i in range(5)}
    flat = {f"{name}/flat{i}.png": encode(np.full((8, 8 + i), 99, np.uint8)) for name in "a" for i in range(9)}
    assert notes({**files, **flat}, "different") == []
    (note,) = notes({**files, "b/copy.png": files["a/3.png"]}, "copied")
    assert note.startswith("1 image has the pixels of an image with another label, such as hf:")
