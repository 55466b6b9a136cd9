"""`check` lists all that is wrong, not the first thing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gence.data import check

from .conftest import digit_files, encode, write_folder, zip_bytes


def test_good_source(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", {**digit_files(4, prefix="train/"), **digit_files(2, prefix="val/")})
    report = check(root)
    assert report.ok
    assert [(part.name, part.images, part.counts) for part in report.parts] == [
        ("data/train", 12, (4, 4, 4)),
        ("data/test", 6, (2, 2, 2)),
    ]
    # The fixture's test images are its first training images: exactly what the check is there to tell.
    assert report.notes == ("6 of 6 test images are also in the training part, pixel by pixel",)


def test_every_bad_file_is_listed(tmp_path: Path) -> None:
    bad = {"digit0/bad.png": b"x", "digit1/bad.jpg": b"y", "digit2/zz.png": encode(np.zeros((9, 9), np.uint8))}
    report = check(write_folder(tmp_path / "data", {**digit_files(3), **bad}))
    assert not report.ok
    assert len(report.problems) == 3
    for name, problem in zip(("bad.png", "bad.jpg", "zz.png"), report.problems, strict=True):
        assert name in problem


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
