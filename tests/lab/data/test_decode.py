"""Decoding bounds its memory by the output, whatever an image claims; irregular files are skipped with a note."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from gence.lab.data import DataError, archives, left_out_notes, load
from gence.lab.data.archives import open_container
from gence.lab.data.decode import decode_all, decode_image, fit, size_like

from .conftest import digit_files, write_folder


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (9, 90, 200)).save(buffer, "PNG")
    return buffer.getvalue()


THIN = """
import resource, sys
from pathlib import Path
from concurrent.futures import ThreadPoolExecutor
from gence.lab.data.decode import decode_image
data = Path(sys.argv[1]).read_bytes()
decode_image(data, "warm-up", 8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(8) as pool:
    shapes = {image.shape for image in pool.map(lambda _: decode_image(data, "thin", 64), range(8))}
print(shapes, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("size", [(1, 120_000), (120_000, 1)])
def test_a_thin_image_takes_no_more_memory_than_its_pixels(tmp_path, size):
    path = tmp_path / "thin.png"
    path.write_bytes(png(*size))
    done = subprocess.run([sys.executable, "-c", THIN, str(path)], capture_output=True, text=True, check=True)
    shapes, megabytes = done.stdout.rsplit(" ", 1)
    assert shapes == "{(64, 64, 3)}"
    assert int(megabytes) < 50


@pytest.mark.parametrize(("width", "height"), [(40, 700), (700, 40), (16, 250), (3, 3), (300, 200)])
def test_the_centre_alone_is_what_would_be_cut_out_of_the_whole(width, height):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image, side = Image.fromarray(pixels), 32
    wide, high = (max(side, round(s * side / min(width, height))) for s in (width, height))
    whole = image.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = (wide - side) // 2, (high - side) // 2
    expected = np.asarray(whole.crop((left, top, left + side, top + side)), dtype=int)
    assert np.abs(fit(image, side) - expected).max() <= 1
    assert fit(image, (20, 12)).shape == (20, 12, 3)


def test_the_size_of_a_shape():
    assert (size_like((3, 32, 32)), size_like((1, 20, 12))) == (32, (20, 12))
    assert decode_image(png(12, 20), "an image", (20, 12)).shape == (20, 12, 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_and_devices_are_skipped_and_said(tmp_path):
    root = write_folder(tmp_path / "data", digit_files(4))
    os.mkfifo(root / "digit0" / "pipe.png")
    (root / "digit1" / "endless.png").symlink_to("/dev/zero")
    splits = load(root)
    assert len(splits.train) + len(splits.test) == 12
    (note,) = left_out_notes(root)
    assert "skipped digit0/pipe.png, digit1/endless.png: not regular files" in note


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_that_takes_the_place_of_a_file_keeps_nobody_waiting(tmp_path):
    root = write_folder(tmp_path / "data", digit_files(4))
    with open_container(root) as container:
        name = min(container.files)
        (root / name).unlink()
        os.mkfifo(root / name)
        with pytest.raises(DataError, match="is not a regular file any more; remove it"):
            container.read(name)


def test_a_file_that_grows_is_not_read_beyond_the_limit(tmp_path, monkeypatch):
    root = write_folder(tmp_path / "data", digit_files(4))
    monkeypatch.setattr(archives, "MAX_FILE_BYTES", 2**20)
    with open_container(root) as container:
        name = min(container.files)
        os.truncate(root / name, 2**27)  # no more on the disk than before
        tracemalloc.start()
        try:
            with pytest.raises(DataError, match="has grown beyond 1048576 bytes, the limit for one file"):
                container.read(name)
            assert tracemalloc.get_traced_memory()[1] < 2**23
        finally:
            tracemalloc.stop()


def test_the_title_of_a_bar_is_no_markup(capsys):
    decode_all(["a"], lambda _: np.zeros((2, 2), np.uint8), progress="a [/b] [red]c")
    assert "a [/b] [red]c" in capsys.readouterr().err


def test_the_cache_is_readable_as_the_umask_has_it(tmp_path):
    root = write_folder(tmp_path / "data", digit_files(4))
    before = os.umask(0o022)
    try:
        load(root, cache_dir=tmp_path / "cache")
    finally:
        os.umask(before)
    (file,) = (tmp_path / "cache" / "images").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def encoded(pixels: np.ndarray, suffix: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, suffix)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("dtype", "suffix"), [(np.uint16, "PNG"), (np.uint16, "TIFF"), (np.int32, "TIFF"), (np.float32, "TIFF")]
)
def test_deep_gray_is_scaled_by_its_own_range(dtype, suffix):
    ramp = np.linspace(300, 4000, 64).reshape(8, 8).astype(dtype)
    found = decode_image(encoded(ramp, suffix), "ramp", None)
    expected = np.round(255 * (ramp.astype(float) - ramp.min()) / (float(ramp.max()) - float(ramp.min())))
    np.testing.assert_array_equal(found, expected.astype(np.uint8))


def test_gray_with_alpha_is_gray_and_what_is_no_number_is_named():
    alpha = Image.merge("LA", [Image.new("L", (8, 8), 90), Image.new("L", (8, 8), 128)])
    buffer = io.BytesIO()
    alpha.save(buffer, "PNG")
    assert decode_image(buffer.getvalue(), "alpha", None).tolist() == [[90] * 8] * 8
    with pytest.raises(DataError, match="broken has pixels that are not finite numbers"):
        decode_image(encoded(np.full((8, 8), np.nan, np.float32), "TIFF"), "broken", None)
    assert decode_image(encoded(np.full((8, 8), 7, np.uint16), "PNG"), "constant", None).max() == 0


def test_documents_are_skipped_and_deep_images_said_once(tmp_path):
    deep = encoded(np.arange(64, dtype=np.uint16).reshape(8, 8) * 900, "PNG")
    files = {**digit_files(3), "labels.csv": b"x", "digit0/README.txt": b"x", "LICENSE": b"x", "digit0/deep.png": deep}
    root = write_folder(tmp_path / "data", files)
    assert left_out_notes(root) == [
        f"{root}: skipped LICENSE, digit0/README.txt, labels.csv: not images",
        f"{root}: 16- and 32-bit images are scaled to 8 bits, each from its smallest value to its largest",
    ]
    assert len(load(root).train) > 0
