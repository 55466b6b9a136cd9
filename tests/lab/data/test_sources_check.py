"""`check` lists all that is wrong, not the first thing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gence.lab.data import check, load

from .conftest import WRITERS, digit_files, encode, write_folder, zip_bytes


def test_good_source(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", {**digit_files(4, prefix="train/"), **digit_files(2, prefix="val/")})
    report = check(root)
    assert report.ok
    assert [(part.name, part.images, part.counts) for part in report.parts] == [
        ("data/train", 12, (4, 4, 4)),
        ("data/test", 6, (2, 2, 2)),
    ]
    # The fixture's test images are its first training images: exactly what the check is there to tell.
    (note,) = report.notes
    assert note.startswith("6 of 6 test images are also in the training part, pixel by pixel")


def test_every_bad_file_is_listed(tmp_path: Path) -> None:
    bad = {"digit0/bad.png": b"x", "digit1/bad.jpg": b"y", "digit2/zz.png": encode(np.zeros((9, 9), np.uint8))[:40]}
    report = check(write_folder(tmp_path / "data", {**digit_files(3), **bad}), image_size=8)
    assert not report.ok
    assert len(report.problems) == 3
    for name, problem in zip(("bad.png", "bad.jpg", "zz.png"), report.problems, strict=True):
        assert name in problem


def test_photographs_of_several_sizes_are_one_note(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sizes = [(90, 120), (120, 90), (90, 120), (100, 100), (90, 120), (100, 100)]
    photos = {
        f"{name}/{i}.png": encode(random.integers(0, 256, (*size, 3), dtype=np.uint8))
        for name in ("cat", "dog")
        for i, size in enumerate(sizes)
    }
    root = write_folder(tmp_path / "photos", photos)
    report = check(root)
    assert report.ok
    assert report.notes == (
        f"{root}: images of 3 sizes (most often 120 x 90 pixels, 6 of 12); gence compare and gence train resize "
        "them all to one size, which --image-size sets; this report shows them at 64 x 64",
    )
    assert report.parts[0].image_shape == (3, 64, 64)
    assert check(root, image_size=32).notes == ()
    (root / "cat" / "bad.png").write_bytes(b"x")
    assert len(check(root).problems) == 1


def test_a_photograph_on_its_side_has_the_size_it_is_shown_in(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (4, 10, 20, 3), dtype=np.uint8)
    files = {f"{name}/{i}.jpg": encode(pixels[i], "JPEG") for i, name in enumerate(["a", "b"] * 2)}
    files["a/2.jpg"] = encode(pixels[2], "JPEG", exif=exif)
    (note,) = check(write_folder(tmp_path / "data", files)).notes
    assert "images of 2 sizes (most often 20 x 10 pixels, 3 of 4)" in note


def test_copies_are_found_in_the_part_that_is_split_off(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", digit_files(5))
    assert check(root).notes == ()
    for image in sorted(root.rglob("*.png")):  # whichever is split off, its copy most often is not
        image.with_name(f"copy-of-{image.name}").write_bytes(image.read_bytes())
    train, test = load(root).train, load(root).test
    known = {image.tobytes() for image in train.images.numpy()}
    leaked = sum(image.tobytes() in known for image in test.images.numpy())
    assert leaked > 0
    (note,) = check(root).notes
    assert note.startswith(f"{leaked} of 6 test images that are split off are also in the training part")


def test_one_image_under_two_labels_is_named(tmp_path: Path) -> None:
    files = digit_files(5)
    files["digit2/odd.png"] = files["digit0/001.png"]
    root = write_folder(tmp_path / "data", files)
    notes = [note for note in check(root).notes if "another label" in note]
    assert notes == [
        f"1 image has the pixels of an image with another label, such as {root / 'digit0/001.png'} (digit0) and "
        f"{root / 'digit2/odd.png'} (digit2)"
    ]


def test_what_load_refuses_is_a_problem(tmp_path: Path) -> None:
    assert "has one class" in check(write_folder(tmp_path / "data", digit_files(3, classes=1))).problems[0]


def test_pairs_and_halves(tmp_path: Path) -> None:
    (tmp_path / "X-test.zip").write_bytes(zip_bytes(digit_files(2)))
    half = check(tmp_path / "X")
    assert half.ok
    assert "only a test part" in half.notes[0]
    (tmp_path / "X-train.zip").write_bytes(zip_bytes(digit_files(3, classes=2)))
    assert check(tmp_path / "X").problems == (
        f"{tmp_path / 'X'}: class 'digit2' is missing from train (1 such); add or remove it",
    )


def test_left_out_validation_part_is_noted(tmp_path: Path) -> None:
    files = {**digit_files(4, prefix="train/"), **digit_files(2, prefix="val/"), **digit_files(2, prefix="test/")}
    report = check(write_folder(tmp_path / "data", files))
    assert any("6 images belong to a validation part" in note for note in report.notes)


def test_unreadable_sources_are_reports_too(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK")
    for source in (tmp_path / "a.zip", tmp_path / "gone", "hf:"):
        assert not check(source).ok


def test_left_out_folders_are_named(tmp_path: Path) -> None:
    hidden = {
        ".hidden/a.png": b"",
        "digit0/.thumbs/small/a.jpg": b"",
        "__MACOSX/digit0/._000.png": b"",
        ".git/config": b"",  # no image: nobody's class
        "digit1/.DS_Store": b"",
    }
    files = {**digit_files(3), **hidden}
    sources = [write_folder(tmp_path / "folder", files)]
    for suffix, write in WRITERS.items():
        sources.append(tmp_path / f"archive{suffix}")
        sources[-1].write_bytes(write({f"./{name}" if "tar" in suffix else name: b for name, b in files.items()}))
    for source in sources:
        report = check(source)
        assert report.ok
        (note,) = report.notes
        assert note.startswith(f"{source}: skipped .hidden, __MACOSX, digit0/.thumbs: hidden folders"), note
        assert "\n" not in note


@pytest.mark.parametrize("suffix", [*WRITERS, ""])
def test_without_such_folders_there_is_no_note(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / f"data{suffix}"
    if suffix:
        source.write_bytes(WRITERS[suffix](digit_files(3)))
    else:
        write_folder(source, {**digit_files(3), ".git/config": b""})
    assert check(source).notes == ()


def test_many_left_out_folders_fit_in_a_line(tmp_path: Path) -> None:
    hidden = {f".class{k}/a.png": b"" for k in range(8)}
    (note,) = check(write_folder(tmp_path / "data", {**digit_files(3), **hidden})).notes
    assert ".class4 and 3 more: hidden folders" in note


def test_a_source_of_hidden_folders_alone_says_why_it_is_empty(tmp_path: Path) -> None:
    report = check(write_folder(tmp_path / "data", digit_files(3, prefix=".photos/")))
    assert report.problems == (f"{tmp_path / 'data'} holds no images",)
    assert "skipped .photos: hidden folders" in report.notes[0]


def test_a_comparison_says_what_is_left_out(tmp_path: Path) -> None:
    from tests.lab.small_runs import planned

    data = write_folder(tmp_path / "data", {**digit_files(10), ".digit9/a.png": b""})
    other = write_folder(tmp_path / "other", {**digit_files(2), "__MACOSX/digit0/a.png": b""})
    plan = planned(str(data), losses=["ce"], seeds=1, device="cpu", batch_size=10, ood=[str(other)])
    again = planned(str(data), losses=["ce"], seeds=1, device="cpu", batch_size=10, ood=[str(other)])
    assert [note.split(": hidden folders")[0] for note in plan.notes if "hidden folders" in note] == [
        f"{data}: skipped .digit9",
        f"{other}: skipped __MACOSX",
    ]
    assert again.notes == plan.notes  # also when the images come from the cache
