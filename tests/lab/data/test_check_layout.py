"""`check` names everything that lies in the wrong place, and then checks the images; loading stops at the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gence.lab.data import DataError, check, load

from .conftest import digit_files, encode, write_folder, zip_bytes

IMAGE = encode(np.zeros((8, 8), np.uint8))


def assert_problems(root: Path, expected: list[str]) -> None:
    """Each of these in one problem, in this order, and no others."""
    problems = check(root).problems
    assert len(problems) == len(expected), problems
    for part, problem in zip(expected, problems, strict=True):
        assert part in problem
    with pytest.raises(DataError) as raised:
        load(root)
    assert str(raised.value) == problems[0]


def test_classes_alone(tmp_path: Path) -> None:
    files = {
        **digit_files(3),
        "notes/clip.mp4": b"x",
        "labels.npy": b"x",
        "loose1.png": IMAGE,
        "loose2.png": IMAGE,
        "digit1/bad.jpg": b"x",
        "single/0.png": IMAGE,
    }
    root = write_folder(tmp_path / "data", files)
    (root / "vacant").mkdir()
    assert_problems(
        root,
        [
            "labels.npy is not an image",
            "notes/clip.mp4 is not an image",
            "loose1.png lies in no class folder",
            "loose2.png lies in no class folder",
            f"{root / 'notes'} is an empty class",
            f"{root / 'vacant'} is an empty class",
            "digit1/bad.jpg is not a readable image",
            "class 'single' has one image",
        ],
    )
    assert [(part.name, part.images) for part in check(root).parts] == [("data/all", 11)]


def test_classes_that_differ_in_case_or_unicode_form_are_noted(tmp_path: Path) -> None:
    names = ("Cat", "cat", "caf\u00e9", "cafe\u0301", "dog")
    files = {f"{name}/{i}.png": encode(np.full((8, 8), 40 * k + i, np.uint8)) for k, name in enumerate(names)
             for i in range(2)}  # fmt: skip
    path = tmp_path / "data.zip"
    path.write_bytes(zip_bytes(files))
    report = check(path)
    assert report.ok
    alike = [note for note in report.notes if "differ only in case or Unicode form" in note]
    assert ["'Cat', 'cat'" in alike[0] or "'Cat', 'cat'" in alike[1], len(alike)] == [True, 2]


def test_train_and_test(tmp_path: Path) -> None:
    files = {
        **digit_files(3, prefix="train/"),
        **digit_files(2, classes=2, prefix="test/"),
        "test/extra/0.png": IMAGE,
        "test/loose.png": IMAGE,
        "test/digit1/bad.png": b"x",
        "notes/clip.mp4": b"x",
    }
    root = write_folder(tmp_path / "data", files)
    (root / "train" / "vacant").mkdir()
    assert_problems(
        root,
        [
            "notes/clip.mp4 is not an image",
            "holds test, train beside notes: these look like parts",
            f"{root / 'train/vacant'} is an empty class",
            "test/loose.png lies in no class folder",
            "test/digit1/bad.png is not a readable image",
            "class 'digit2' is missing from test (2 such)",
            "class 'extra' is missing from train (1 such)",
        ],
    )
    report = check(root)
    assert [part.name for part in report.parts] == ["data/train", "data/test"]
    # Also copies are told, as far as the images can be read.
    assert [note for note in report.notes if note.startswith("4 of 6 test images are also in the training part")]


def test_a_class_that_is_empty_in_one_part_is_one_problem(tmp_path: Path) -> None:
    files = {**digit_files(3, prefix="train/"), **digit_files(2, classes=2, prefix="test/")}
    root = write_folder(tmp_path / "data", files)
    (root / "test" / "digit2").mkdir()
    assert_problems(root, [f"{root / 'test/digit2'} is an empty class"])


def test_a_part_without_images(tmp_path: Path) -> None:
    files = {**digit_files(3, prefix="train/"), **digit_files(1, prefix="val/"), "train/digit0/bad.png": b"x"}
    root = write_folder(tmp_path / "data", files)
    (root / "test" / "digit0").mkdir(parents=True)
    assert_problems(root, [f"{root / 'test'} holds no images", "bad.png is not a readable image"])
    assert check(root).notes == ()


def test_parts_in_doubt_end_the_search_but_lose_nothing(tmp_path: Path) -> None:
    files = {**digit_files(3, prefix="test/"), **digit_files(3, prefix="testing/"), "clip.mp4": b"x"}
    root = write_folder(tmp_path / "data", files)
    assert_problems(root, ["clip.mp4 is not an image", "holds test, testing: these look like parts"])


def test_no_images_at_all(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", {"a/clip.mp4": b"x", "b/clip.mp4": b"x"})
    assert_problems(root, ["a/clip.mp4 is not an image", "b/clip.mp4 is not an image", "data holds no images"])


def test_both_archives_of_a_pair_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "X-train.zip").write_bytes(b"PK")
    (tmp_path / "X-test.zip").write_bytes(zip_bytes({**digit_files(2), "digit0/bad.png": b"x", "a.npy": b"x"}))
    assert_problems(
        tmp_path / "X",
        ["X-train.zip cannot be read", "a.npy is not an image", "digit0/bad.png is not a readable image"],
    )


def test_an_archive_with_the_name_of_one_part_and_both_inside(tmp_path: Path) -> None:
    both = {**digit_files(3, prefix="train/"), **digit_files(2, prefix="test/")}
    (tmp_path / "X-train.zip").write_bytes(zip_bytes(digit_files(3)))
    (tmp_path / "X-test.zip").write_bytes(zip_bytes(both))
    assert_problems(tmp_path / "X", ["X-test.zip is named as the test part, but holds train and test folders"])


def test_many_files_of_one_kind_are_counted(tmp_path: Path) -> None:
    """A text beside each image must not bury the rest."""
    texts = {f"digit0/{i:03d}.npy": b"x" for i in range(50)}
    root = write_folder(tmp_path / "data", {**digit_files(3), **texts, "digit1/bad.png": b"x"})
    *named, rest, bad = check(root).problems
    assert len(named) == 20
    assert named[-1].startswith(f"{root / 'digit0/019.npy'} is not an image")
    assert rest == f"30 more files in {root} are not images"
    assert "bad.png" in bad


@pytest.mark.parametrize("above", ["", "photos/"])
def test_a_train_folder_beside_an_empty_test_folder_is_no_wrapper(tmp_path: Path, above: str) -> None:
    root = write_folder(tmp_path / "data", digit_files(3, prefix=f"{above}train/"))
    (root / above / "test").mkdir()
    with pytest.raises(DataError, match=r"test/? holds no images"):
        load(root)
    assert "holds no images" in check(root).problems[0]
