"""The cache: hit, miss, damage, a full disk, never a half-written file, and several processes at once."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gence.lab.data import DataError, ImageSet, cache, load
from gence.lab.data.cache import cache_path, default_cache_dir

from .conftest import digit_files, file_size_limit, write_folder, zip_bytes


def cached_files(folder: Path) -> list[Path]:
    return sorted((folder / "images").iterdir()) if (folder / "images").is_dir() else []


def test_second_read_comes_from_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zip_bytes(digit_files(5)))
    first = load(path, cache_dir=tmp_path / "cache")
    (stored,) = cached_files(tmp_path / "cache")
    status = path.stat()
    path.write_bytes(b"x" * status.st_size)  # same size and time: only the cache can answer
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = load(path, cache_dir=tmp_path / "cache")
    torch.testing.assert_close(second.train.images, first.train.images, rtol=0, atol=0)
    assert (second.train.checksum, second.train.classes) == (first.train.checksum, first.train.classes)
    assert cached_files(tmp_path / "cache") == [stored]
    with pytest.raises(DataError):
        load(path, cache=False)


def test_changed_source_and_other_size_are_decoded_anew(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", digit_files(5))
    load(root)
    write_folder(root, digit_files(6))
    assert len(load(root).train) + len(load(root).test) == 18
    assert load(root, image_size=4).train.image_shape == (1, 4, 4)
    assert len(cached_files(default_cache_dir())) == 3
    path = tmp_path / "a.zip"
    for count in (3, 4):
        path.write_bytes(zip_bytes(digit_files(count)))
        assert len(load(path).train) + len(load(path).test) == 3 * count


def test_without_cache_nothing_is_written(tmp_path: Path) -> None:
    load(write_folder(tmp_path / "data", digit_files(3)), cache_dir=tmp_path / "cache", cache=False)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("where", ["pixels", "metadata", "cut", "empty"])
def test_damage_is_noticed_and_repaired(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write_folder(tmp_path / "data", digit_files(5))
    first = load(root, cache_dir=tmp_path / "cache")
    (stored,) = cached_files(tmp_path / "cache")
    good = stored.read_bytes()
    at = len(good) - 1 if where == "pixels" else good.index(b"digit1")
    changed = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    stored.write_bytes({"cut": good[:-100], "empty": b""}.get(where, changed))
    with caplog.at_level(logging.WARNING, "gence.lab.data"):
        again = load(root, cache_dir=tmp_path / "cache")
    assert "is damaged" in caplog.text
    assert again.train.checksum == first.train.checksum
    assert stored.read_bytes() == good


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", digit_files(30))
    with (
        file_size_limit(2048),
        pytest.raises(DataError, match=r"cannot write .* MiB of decoded images to .*GENCE_CACHE"),
    ):
        load(root, cache_dir=tmp_path / "cache")
    assert cached_files(tmp_path / "cache") == []
    assert len(load(root, cache_dir=tmp_path / "cache").train) == 72
    assert len(cached_files(tmp_path / "cache")) == 1


def test_cache_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    root = write_folder(tmp_path / "data", digit_files(3))
    with pytest.raises(DataError, match=r"cannot write .*set the environment variable GENCE_CACHE to a folder"):
        load(root, cache_dir=tmp_path / "file")


def test_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    images = ImageSet.from_arrays(torch.zeros(2, 8, 8, dtype=torch.uint8), [0, 1])
    path = cache_path(tmp_path, "x", {})
    monkeypatch.setattr(cache.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.write(path, {"train": images})
    assert cached_files(tmp_path) == []


MAKER = """
import sys, time
from pathlib import Path
import torch
from gence.lab.data import ImageSet, cache

me, folder = sys.argv[1], Path(sys.argv[2])
cache.NOTICE_AFTER_S = 0.1

def make():
    (folder / f"making-{me}").touch()
    while not (folder / "finish").exists():
        time.sleep(0.02)
    return {"all": ImageSet.from_arrays(torch.zeros(2, 8, 8, dtype=torch.uint8), [0, 1])}

(folder / f"ready-{me}").touch()
print(cache.read_or_make(folder, "photos", {}, make)["all"].checksum)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def makers(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Two processes that want the same images: the first makes them until there is a file "finish", the second came
    after it and has waited long enough to say so.
    """
    with contextlib.ExitStack() as processes:

        def start(me: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", MAKER, me, str(tmp_path)]
            started = processes.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            processes.callback(started.kill)  # called before the context waits for its end
            return started

        first = start("one")
        wait_for((tmp_path / "making-one").exists)
        second = start("two")
        wait_for((tmp_path / "ready-two").exists)
        time.sleep(0.5)
        yield first, second


def test_two_processes_do_the_work_once(makers: tuple[subprocess.Popen[str], ...], tmp_path: Path) -> None:
    first, second = makers
    (tmp_path / "finish").touch()
    (made, of_first), (read, of_second) = first.communicate(timeout=300), second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (0, 0), of_first + of_second
    assert made == read != ""
    assert not (tmp_path / "making-two").exists()
    assert of_first == ""
    assert of_second == f"another process is preparing photos in {tmp_path}; waiting for it to finish\n"


def test_a_killed_process_blocks_nobody(makers: tuple[subprocess.Popen[str], ...], tmp_path: Path) -> None:
    first, second = makers
    assert not (tmp_path / "making-two").exists()  # it waits
    first.kill()
    first.communicate()
    wait_for((tmp_path / "making-two").exists)
    (tmp_path / "finish").touch()
    made, _ = second.communicate(timeout=300)
    assert second.returncode == 0
    assert len(made.strip()) == 64
    assert len(cached_files(tmp_path)) == 1


def test_where_no_lock_can_be_had_the_work_is_done(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "locks").write_text("in the way")
    root = write_folder(tmp_path / "data", digit_files(5))
    assert len(load(root, cache_dir=tmp_path / "cache").train) == 12
    assert len(cached_files(tmp_path / "cache")) == 1


def test_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENCE_CACHE", "/somewhere")
    assert default_cache_dir() == Path("/somewhere")
    monkeypatch.delenv("GENCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/gence")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "gence"


@pytest.mark.parametrize("notes", ["{}", "[]", "null", '{"test": {}}'])
def test_notes_that_are_not_those_of_the_tensors_are_damage(notes: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "a.zip"
    path.write_bytes(zip_bytes(digit_files(5)))
    first = load(path, cache_dir=tmp_path / "cache")
    (stored,) = cached_files(tmp_path / "cache")
    save_file(load_file(stored), stored, metadata={"gence": notes})
    again = load(path, cache_dir=tmp_path / "cache")
    torch.testing.assert_close(again.train.images, first.train.images, rtol=0, atol=0)
