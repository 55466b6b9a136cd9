"""Images: unusual ones that must be read as they look, hostile ones, and damaged ones."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gence.lab.data import check, load_images
from tests.adversarial.files.harm import Touch, damaged, kept_in, refused, zipped


def _png(chunks: list[tuple[bytes, bytes]]) -> bytes:
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def huge_png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """A PNG that says it has so many pixels, and has none."""
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return _png([(b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")])


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """What a viewer shows of stored pixels, by the table of the EXIF standard."""
    turned = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: pixels.swapaxes(0, 1)[:, ::-1],
        7: pixels[::-1, ::-1].swapaxes(0, 1),
        8: pixels.swapaxes(0, 1)[::-1],
    }
    return turned.get(orientation, pixels)


def sound_image(rng: random.Random) -> tuple[str, str, bytes, np.ndarray]:
    """An unusual, sound image: its kind, ending, bytes, and pixels (H, W, 3) as they should be read."""
    draw = np.random.default_rng(rng.getrandbits(32))
    height, width = rng.choice(((8, 8), (5, 9), (1, 1), (1, 40), (40, 1), (2, 700), (17, 3)))
    gray, rgb = (
        draw.integers(0, 256, (height, width), dtype=np.uint8),
        draw.integers(0, 256, (height, width, 3), dtype=np.uint8),
    )
    kind = rng.choice(
        (
            "gray",
            "16-bit",
            "32-bit",
            "float",
            "1-bit",
            "palette",
            "see-through palette",
            "RGBA",
            "LA",
            "CMYK",
            "EXIF",
            "GIF",
            "moving",
            "progressive",
            "interlaced",
            "YCbCr",
            "PPM",
            "big-endian",
        )
    )
    thrice = np.repeat(gray[:, :, None], 3, 2)
    if kind == "gray":
        return kind, "png", _saved(Image.fromarray(gray), "PNG"), thrice
    if kind in ("16-bit", "32-bit", "float", "big-endian"):
        deep = draw.integers(0, 2**16, (height, width)).astype(
            {"16-bit": "<u2", "big-endian": ">u2", "32-bit": "<i4", "float": "<f4"}[kind]
        )
        low, high = float(deep.min()), float(deep.max())
        scaled = np.round(255 * ((deep.astype(np.float64) - low) / ((high - low) or 1.0))).astype(np.uint8)
        image = Image.fromarray(deep.astype("<u2") if kind == "big-endian" else deep)
        ending = "png" if kind == "16-bit" and rng.random() < 0.5 else "tif"
        return kind, ending, _saved(image, {"png": "PNG", "tif": "TIFF"}[ending]), np.repeat(scaled[:, :, None], 3, 2)
    if kind == "1-bit":
        bits = gray > 127
        return (
            kind,
            "png",
            _saved(Image.fromarray(bits), "PNG"),
            np.repeat((255 * bits).astype(np.uint8)[:, :, None], 3, 2),
        )
    if "palette" in kind:
        image = Image.fromarray(rgb).quantize(8)
        options = {"transparency": 0} if kind != "palette" else {}
        return kind, "png", _saved(image, "PNG", **options), np.asarray(image.convert("RGB"))
    if kind == "RGBA":
        alpha = draw.integers(0, 256, (height, width, 1), dtype=np.uint8)
        return kind, "png", _saved(Image.fromarray(np.concatenate([rgb, alpha], 2)), "PNG"), rgb
    if kind == "LA":
        pair = np.stack([gray, draw.integers(0, 256, (height, width), dtype=np.uint8)], 2)
        return kind, "png", _saved(Image.fromarray(pair, "LA"), "PNG"), thrice
    if kind in ("CMYK", "YCbCr"):
        image = Image.fromarray(rgb).convert(kind)
        return kind, "tif", _saved(image, "TIFF"), np.asarray(image.convert("RGB"))
    if kind == "EXIF":
        orientation = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65535))
        exif = Image.Exif()
        exif[0x0112] = orientation
        return f"EXIF {orientation}", "png", _saved(Image.fromarray(rgb), "PNG", exif=exif), _upright(rgb, orientation)
    if kind == "GIF":
        image = Image.fromarray(rgb).quantize(16)
        return kind, "gif", _saved(image, "GIF"), np.asarray(image.convert("RGB"))
    if kind == "moving":
        more = [Image.fromarray(255 - rgb)]
        return kind, "webp", _saved(Image.fromarray(rgb), "WEBP", save_all=True, append_images=more, lossless=True), rgb
    if kind == "progressive":
        data = _saved(Image.fromarray(rgb), "JPEG", progressive=True, quality=90)
        return kind, "jpg", data, np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    if kind == "PPM":
        return kind, "ppm", _saved(Image.fromarray(rgb), "PPM"), rgb
    return kind, "png", _saved(Image.fromarray(rgb), "PNG", optimize=True), rgb


def hostile_image(rng: random.Random) -> tuple[str, str, bytes]:
    """What calls itself an image: other formats, programs, claims of enormous sizes, bombs in side chunks."""
    bomb = zlib.compress(bytes(64 * 2**20), 9)
    header = struct.pack(">2I5B", 8, 8, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(24)) * 8)
    kinds: dict[str, tuple[str, Callable[[], bytes]]] = {
        "huge": (
            "png",
            lambda: huge_png(*rng.choice(((2**31 - 1, 2**31 - 1), (65_535, 65_535), (0, 8), (2**26, 2), (1, 2**30)))),
        ),
        "huge BMP": (
            "bmp",
            lambda: (
                b"BM"
                + struct.pack("<IHHI", 100, 0, 0, 54)
                + struct.pack("<IiiHHIIiiII", 40, 2**20, 2**20, 1, 24, 0, 0, 1, 1, 0, 0)
            ),
        ),
        "huge PPM": ("ppm", lambda: b"P6 99999 99999 255\n"),
        "huge GIF": (
            "gif",
            lambda: b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x08\x00;",
        ),
        "text bomb": (
            "png",
            lambda: _png([(b"IHDR", header), (b"zTXt", b"a\0\0" + bomb), (b"IDAT", rows), (b"IEND", b"")]),
        ),
        "profile bomb": (
            "png",
            lambda: _png([(b"IHDR", header), (b"iCCP", b"a\0\0" + bomb), (b"IDAT", rows), (b"IEND", b"")]),
        ),
        "pixel bomb": ("png", lambda: _png([(b"IHDR", header), (b"IDAT", bomb), (b"IEND", b"")])),
        "PostScript": (
            "png",
            lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(/tmp/attack-was-here) (w) file closefile\n",
        ),
        "SVG": ("png", lambda: b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'),
        "program": ("png", lambda: b"#!/bin/sh\ntouch /tmp/attack-was-here\n"),
        "pickle": ("png", lambda: pickle.dumps(Touch())),
        "empty": ("jpg", lambda: b""),
        "zip": ("png", lambda: zipped({"a.png": b"x"})),
        "NaN": ("tif", lambda: _saved(Image.fromarray(np.full((8, 8), np.nan, np.float32)), "TIFF")),
    }
    kind = rng.choice(list(kinds))
    ending, make = kinds[kind]
    return kind, ending, make()


def image_case(rng: random.Random, place: Path) -> str:
    """A folder with one image that is unusual, hostile or damaged."""
    mode = rng.choice(("sound", "sound", "damaged", "damaged", "damaged", "hostile"))
    truth: np.ndarray | None = None
    if mode == "hostile":
        kind, ending, data = hostile_image(rng)
    else:
        kind, ending, data, truth = sound_image(rng)
        if mode == "damaged":
            data, truth = damaged(rng, data)[1], None
    folder = place / "photos" / "one"
    folder.mkdir(parents=True)
    name = rng.choice(("odd", "od d%", "ödd\n", "'odd'", "-odd", "=odd", "[b]odd")) + f".{ending}"
    (folder / name).write_bytes(data)
    size = rng.choice((None, None, 8, (4, 9), 1))
    with kept_in(place):
        found = refused(lambda: load_images(place / "photos", image_size=size, cache=False), name)
        if rng.random() < 0.3:
            report = check(place / "photos", image_size=size if isinstance(size, int) else None)
            assert report.problems or found is not None or size is None
    if found is not None and truth is not None and size is None:
        pixels = found.with_channels(3).images[0].numpy().transpose(1, 2, 0)
        assert np.array_equal(pixels, truth), f"{kind} {truth.shape} is read as {pixels.shape}, not as it looks"
    elif found is not None and size is not None:
        wanted = (size, size) if isinstance(size, int) else size
        assert found.images.shape[2:] == wanted
    assert not (mode == "sound" and found is None), f"a sound image is refused: {kind}"
    return f"{mode} {kind.split()[0]}" if mode != "damaged" else f"damaged, {'refused' if found is None else 'read'}"
