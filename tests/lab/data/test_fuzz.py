"""Damaged archives: a flipped or missing byte gives a DataError or the same images and labels, never anything else."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gence.lab.data import DataError, ImageSet, load_images

from .conftest import digit_pixels, encode, tar_bytes, zip_bytes


def small_files(kinds: tuple[str, ...]) -> dict[str, bytes]:
    """30 images of 8 x 8 pixels in 5 classes; a long, non-ASCII class name among them."""
    names = ["ab", "ac", "bb", "digit" * 22, "zürich"]
    files = {}
    for name, images in zip(names, digit_pixels(6, 5).values(), strict=True):
        for i, pixels in enumerate(images):
            kind = kinds[i % len(kinds)]
            files[f"{name}/{i}.{kind.lower()}"] = encode(pixels, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return files


def with_sums(files: Mapping[str, bytes]) -> dict[str, bytes]:
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
    return {**files, "SHA256SUMS": "".join(lines).encode()}


ARCHIVES = {
    # BMP has no checksum of its own: only the archive's protects it.
    "stored.zip": (300, lambda: zip_bytes(small_files(("WEBP", "BMP")))),
    "deflated.zip": (300, lambda: zip_bytes(small_files(("BMP", "JPEG")), zipfile.ZIP_DEFLATED)),
    "packed.tar.gz": (200, lambda: tar_bytes(small_files(("BMP", "PNG")), "w:gz")),
    "summed.tar": (200, lambda: tar_bytes(with_sums(small_files(("BMP", "JPEG"))))),
}


def damage(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """A bit flipped, a byte replaced, or the end cut off."""
    kind = ("flip", "flip", "replace", "cut")[rng.integers(4)]
    at = int(rng.integers(len(data)))
    if kind == "cut":
        return kind, data[:at]
    changed = bytearray(data)
    changed[at] ^= 1 << int(rng.integers(8)) if kind == "flip" else int(rng.integers(1, 256))
    return kind, bytes(changed)


def read(path: Path) -> ImageSet:
    return load_images(path, cache=False)


def error_of(path: Path) -> str | None:
    try:
        read(path)
    except DataError as error:
        return str(error)
    return None


def same(one: ImageSet, other: ImageSet) -> bool:
    return (
        one.classes == other.classes
        and torch.equal(one.labels, other.labels)
        and torch.equal(one.with_channels(3).images, other.with_channels(3).images)
    )


@pytest.mark.parametrize("name", ARCHIVES)
def test_damage_is_an_error_or_harmless(name: str, tmp_path: Path) -> None:
    rounds, make = ARCHIVES[name]
    data = make()
    path = tmp_path / name
    path.write_bytes(data)
    original = read(path)
    assert len(original) == 30
    assert original.num_classes == 5
    rng = np.random.default_rng(20)
    outcomes: Counter[str] = Counter()
    for _ in range(rounds):
        kind, changed = damage(data, rng)
        path.write_bytes(changed)
        try:
            result = read(path)
        except DataError:
            outcomes["error"] += 1
        else:
            assert same(result, original), f"{kind} went unnoticed"
            outcomes["harmless"] += 1
    # Most damage must be seen, and some (dates, padding) must be let through, or the test shows nothing.
    assert outcomes["error"] > rounds / 4
    assert outcomes["harmless"] > 0


@pytest.mark.parametrize("name", ["stored.zip", "summed.tar"])
def test_each_byte_of_every_name_is_protected(name: str, tmp_path: Path) -> None:
    data = ARCHIVES[name][1]()
    path = tmp_path / name
    path.write_bytes(data)
    original = read(path)
    places = [i for i in range(len(data) - 4) if data[i : i + 4] in (b"ab/0", b"ac/1", b"bb/2")]
    assert len(places) >= 6  # each of the three twice: both copies in a zip, name and sum in a tar
    for at in [place + offset for place in places for offset in range(4)]:
        changed = bytearray(data)
        changed[at] ^= 1  # "b" and "c" differ in this bit: ab/0 becomes ac/0 and the like
        path.write_bytes(bytes(changed))
        with pytest.raises(DataError):
            read(path)
    path.write_bytes(data)
    assert same(read(path), original)


def test_a_name_that_turns_hidden_or_into_a_folder_is_not_skipped(tmp_path: Path) -> None:
    """Files that are not opened get no check by zipfile: an image would be missing without a word."""
    data = ARCHIVES["stored.zip"][1]()
    path = tmp_path / "a.zip"
    directory = data.rindex(b"ab/0.webp")
    for at, byte in ((directory + 3, b"."), (directory + 8, b"/")):
        path.write_bytes(data[:at] + byte + data[at + 1 :])
        with pytest.raises(DataError, match="another name in its own header"):
            read(path)


def test_a_flipped_encoding_bit_does_not_rename_a_class(tmp_path: Path) -> None:
    data = ARCHIVES["stored.zip"][1]()
    path = tmp_path / "a.zip"
    at = data.rindex("zürich/0".encode()) - 46 + 9  # the high byte of the flags in the directory
    path.write_bytes(data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])
    with pytest.raises(DataError):
        read(path)


def test_cut_at_every_block_of_a_tar(tmp_path: Path) -> None:
    """tarfile takes a tar that ends between two files for complete: here it is not."""
    data = tar_bytes(small_files(("PNG",)))
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    original = read(path)
    refused = 0
    for size in range(0, len(data), 512):
        path.write_bytes(data[:size])
        try:
            assert same(read(path), original)
        except DataError:
            refused += 1
    assert refused > 60  # two blocks for each of 30 images at the least


def test_a_plain_tar_without_sums_is_the_documented_gap(tmp_path: Path) -> None:
    """What SHA256SUMS is for: a BMP in a plain tar can change without anybody noticing."""
    pixels = digit_pixels(1, 2)
    files = {f"{name}/0.bmp": encode(images[0], "BMP") for name, images in pixels.items()}
    data = tar_bytes(files)
    at = data.index(files["digit0/0.bmp"]) + len(files["digit0/0.bmp"]) - 1
    changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    for name, summed, contents in (("a.tar", False, changed), ("b.tar", True, None)):
        if summed:
            whole = tar_bytes(with_sums(files))
            at = whole.index(files["digit0/0.bmp"]) + len(files["digit0/0.bmp"]) - 1
            contents = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        (tmp_path / name).write_bytes(contents or b"")
    assert len(read(tmp_path / "a.tar")) == 2
    with pytest.raises(DataError, match=r"digit0/0\.bmp does not match its line in SHA256SUMS"):
        read(tmp_path / "b.tar")


def test_damaged_image_bytes_never_escape_as_another_error(tmp_path: Path) -> None:
    """Without any archive: the decoders themselves, fed with damaged files."""
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"):
        data = encode(noise, kind)
        assert Image.open(io.BytesIO(data)).size == (8, 8)
        path = tmp_path / f"a.{kind.lower()}"
        for _ in range(40):
            path.write_bytes(damage(data, rng)[1])
            message = error_of(tmp_path)
            assert message is None or path.name in message
        path.unlink()
