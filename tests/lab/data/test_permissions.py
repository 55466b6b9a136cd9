"""What may not be read is named, never skipped silently: as root, where permissions do not bind, by a stand-in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gence.lab.data import DataError, check, load, load_images
from gence.lab.data.archives import open_container

from .conftest import digit_files, write_folder, zip_bytes

Lock = Callable[[Path], None]


def lock_by_stand_in(monkeypatch: pytest.MonkeyPatch) -> Lock:
    """The calls that list a folder or read a file fail for one path, as the kernel lets them fail."""
    scandir, low_open, open_file = os.scandir, os.open, Path.open

    def lock(locked: Path) -> None:
        def refuse(path: object) -> None:
            if path is not None and Path(str(path)) == locked:
                raise PermissionError(13, "Permission denied", str(path))

        def guarded_scandir(path: str = ".") -> object:
            refuse(path)
            return scandir(path)

        def guarded_low_open(path: str, *args: object, **options: object) -> int:
            refuse(path)
            return low_open(path, *args, **options)

        def guarded_open(self: Path, *args: object, **options: object) -> object:
            refuse(self)
            return open_file(self, *args, **options)

        monkeypatch.setattr(os, "scandir", guarded_scandir)
        monkeypatch.setattr(os, "open", guarded_low_open)
        monkeypatch.setattr(Path, "open", guarded_open)

    return lock


@pytest.fixture(
    params=["stand-in", pytest.param("chmod", marks=pytest.mark.skipif(os.geteuid() == 0, reason="root reads all"))]
)
def lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lock:
    if request.param == "stand-in":
        return lock_by_stand_in(monkeypatch)

    def lock_and_free(path: Path) -> None:
        mode = path.stat().st_mode
        path.chmod(0)
        request.addfinalizer(lambda: path.chmod(mode))

    return lock_and_free


@pytest.mark.parametrize("folder", ["train/digit0/more", "train/digit0", "train", "."])
def test_a_folder_that_cannot_be_listed_is_an_error(folder: str, tmp_path: Path, lock: Lock) -> None:
    """Its images would be missing without a word, or a class would be called empty."""
    files = {**digit_files(3, prefix="train/"), **digit_files(3, prefix="test/")}
    files["train/digit0/more/a.png"] = files["train/digit0/000.png"]
    root = write_folder(tmp_path / "data", files)
    assert check(root).ok
    lock(root / folder)
    expected = f"the folder {root / folder} cannot be read: Permission denied; give yourself permission to read it"
    for read in (load, load_images):
        with pytest.raises(DataError) as raised:
            read(root)
        assert str(raised.value).startswith(expected)
    with pytest.raises(DataError, match="Permission denied"), open_container(root):
        pass
    (problem,) = check(root).problems
    assert problem.startswith(expected)


def test_folders_that_are_passed_over_may_be_locked(tmp_path: Path, lock: Lock) -> None:
    root = write_folder(tmp_path / "data", {**digit_files(3), "digit0/.trash/a.png": b""})
    lock(root / "digit0" / ".trash")
    assert len(load_images(root)) == 9


def test_a_file_without_permission_is_not_called_damaged(tmp_path: Path, lock: Lock) -> None:
    root = write_folder(tmp_path / "data", digit_files(3))
    lock(root / "digit0" / "000.png")
    expected = f"{root / 'digit0/000.png'} cannot be read: Permission denied; give yourself permission to read it"
    with pytest.raises(DataError) as raised:
        load(root)
    assert str(raised.value).startswith(expected)
    (problem,) = check(root).problems
    assert problem.startswith(expected)
    assert "damaged" not in problem


def test_an_archive_without_permission_is_not_called_damaged(tmp_path: Path, lock: Lock) -> None:
    path = tmp_path / "data.zip"
    path.write_bytes(zip_bytes(digit_files(3)))
    lock(path)
    with pytest.raises(DataError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path} cannot be read: Permission denied; give yourself permission")


def test_a_file_that_vanishes_is_not_called_damaged(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", digit_files(3))
    with open_container(root) as container:
        (root / "digit0" / "000.png").unlink()
        with pytest.raises(DataError, match=r"000\.png cannot be read: No such file or directory; if it is a link"):
            container.read("digit0/000.png")
