"""Archives: damaged bytes, members that point elsewhere, links, bombs, lies about sizes."""

from __future__ import annotations

import functools
import hashlib
import io
import random
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gence.lab.data import check, load, load_images
from tests.adversarial.files.harm import damaged, kept_in, refused, zipped
from tests.adversarial.files.images import huge_png

CLASSES, SIDE = ("ant", "bee", "cat" * 30, "zürich"), 8


@functools.cache
def small_files() -> dict[str, bytes]:
    """Twelve images in four classes, each kind of file without loss."""
    draw = np.random.default_rng(0)
    files = {}
    for name in CLASSES:
        for i, kind in enumerate(("PNG", "BMP", "WEBP")):
            buffer = io.BytesIO()
            pixels = draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
            files[f"{name}/{i}.{kind.lower()}"] = buffer.getvalue()
    return files


def tarred(files: dict[str, bytes], mode: str = "w", *others: tarfile.TarInfo) -> bytes:
    """The files as a tar, with members of another kind behind them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for other in others:
            archive.addfile(other)
    return buffer.getvalue()


def summed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files with their SHA256SUMS, which a plain tar needs to notice a change."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()]
    return {**files, "SHA256SUMS": "".join(lines).encode()}


_SOUND: dict[str, Callable[[], bytes]] = {
    "stored.zip": lambda: zipped(small_files(), zipfile.ZIP_STORED),
    "deflated.zip": lambda: zipped(small_files()),
    "packed.tar.gz": lambda: tarred(small_files(), "w:gz"),
    "summed.tar": lambda: tarred(summed(small_files())),
}
_SOUND = {name: functools.cache(make) for name, make in _SOUND.items()}
_NAMES = (
    "../out.png",
    "ant/../../out.png",
    "/tmp/attack-was-here",
    "C:\\x.png",
    "ant\\..\\..\\x.png",
    "ant/\0.png",
    "..",
    "ant/" * 60 + "x.png",
    "ant/" + "n" * 5000 + ".png",
    "ant/\ud800.png",
    "//x/y.png",
    "ant/./../bee/x.png",
    "~/x.png",
    "ant/\n.png",
    "con/aux.png",
    "ant/..%2f..%2fx.png",
    "ant/x.png/../../y.png",
    " /x.png",
    "ant/\u202egnp.x",
)


def archive_case(rng: random.Random, place: Path) -> str:
    """An archive: damaged bytes, members that point elsewhere, links, bombs, lies."""
    kind = rng.choice(
        ("damage",) * 8 + ("zip name", "tar name", "tar link", "zip lie", "bomb", "zip link", "twice", "odd tar")
    )
    name = rng.choice(list(_SOUND))
    may_be_read = True
    picture = small_files()["ant/0.png"]
    if kind == "damage":
        how, data = damaged(rng, _SOUND[name]())
        if rng.random() < 0.2:
            data = damaged(rng, data or b"x")[1]
        kind = f"{name}: {how}"
    elif kind == "zip name":
        name, data = "a.zip", zipped({**small_files(), _writable(rng.choice(_NAMES)): picture})
    elif kind == "tar name":
        name, data = "a.tar", tarred({**small_files(), rng.choice(_NAMES).replace("\ud800", "\udc80"): picture})
    elif kind == "tar link":
        info = tarfile.TarInfo(rng.choice(("ant/link.png", "ant", "x", "../x")))
        info.type = rng.choice(
            (
                tarfile.SYMTYPE,
                tarfile.LNKTYPE,
                tarfile.CHRTYPE,
                tarfile.BLKTYPE,
                tarfile.FIFOTYPE,
                tarfile.CONTTYPE,
                tarfile.GNUTYPE_SPARSE,
                b"Z",
            )
        )
        info.linkname = rng.choice(("/etc/passwd", "../../x", "ant/0.png", "ant", ""))
        name, data, may_be_read = "a.tar", tarred(small_files(), "w", info), info.type in (tarfile.CONTTYPE, b"Z")
    elif kind == "zip link":
        info = zipfile.ZipInfo("ant/link.png")
        info.external_attr = (0o120777 << 16) | rng.choice((0, 0x10))
        buffer = io.BytesIO(_SOUND["stored.zip"]())
        with zipfile.ZipFile(buffer, "a") as archive:
            archive.writestr(info, rng.choice(("/etc/passwd", "../../x")))
        name, data, may_be_read = "a.zip", buffer.getvalue(), False
    elif kind == "twice":
        name, may_be_read = "a.zip", False
        buffer = io.BytesIO(_SOUND["stored.zip"]())
        with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
            warnings.simplefilter("ignore")
            archive.writestr(rng.choice(("ant/0.png", "./ant/0.png", "ant//0.png")), picture)
        data = buffer.getvalue()
    elif kind == "zip lie":
        name, data = "a.zip", _lying_zip(rng)
    elif kind == "odd tar":
        name, data = "a.tar", _odd_tar(rng)
    else:
        name, data, may_be_read = *_bomb(rng), False
    path = place / name
    path.write_bytes(data)
    with kept_in(place):
        found = refused(lambda: load_images(path, cache=False), name)
        if rng.random() < 0.3:
            report = refused(lambda: check(path), name)
            assert report is None or found is None or report.ok or report.problems
        if rng.random() < 0.3:
            refused(lambda: load(path, cache=False), name)
    if found is not None:
        assert may_be_read, f"{kind} was read"
        if kind.startswith(tuple(_SOUND)):
            _same_images(found, kind)
    return kind if ":" not in kind else f"{kind}, {'refused' if found is None else 'harmless'}"


def _writable(name: str) -> str:
    return name.replace("\ud800", "?")


@functools.cache
def _true_images() -> tuple[tuple[str, ...], np.ndarray, list[int]]:
    names = sorted(small_files(), key=lambda name: (name.split("/")[0], name))
    pixels = [np.asarray(Image.open(io.BytesIO(small_files()[name])).convert("RGB")) for name in names]
    classes = tuple(sorted(CLASSES))
    return classes, np.stack(pixels).transpose(0, 3, 1, 2), [classes.index(name.split("/")[0]) for name in names]


def _same_images(found: Any, kind: str) -> None:
    classes, pixels, labels = _true_images()
    assert found.classes == classes, f"{kind} changed a class unnoticed"
    assert found.labels.tolist() == labels, f"{kind} changed a label unnoticed"
    assert np.array_equal(found.images.numpy(), pixels), f"{kind} changed an image unnoticed"


def _lying_zip(rng: random.Random) -> bytes:
    """Sizes, offsets, methods and flags that are not what they say."""
    data = bytearray(_SOUND["deflated.zip"]())
    central = [i for i in range(len(data) - 4) if data[i : i + 4] == b"PK\x01\x02"]
    at = rng.choice(central)
    field, form = rng.choice(
        ((6, "H"), (8, "H"), (10, "H"), (16, "I"), (20, "I"), (24, "I"), (28, "H"), (30, "H"), (34, "H"), (42, "I"))
    )
    value = rng.choice((0, 1, 8, 12, 14, 93, 99, 2**15, 2**16 - 1, 2**31, 2**32 - 1))
    struct.pack_into(f"<{form}", data, at + field, min(value, 2 ** (16 if form == "H" else 32) - 1))
    return bytes(data)


def _odd_tar(rng: random.Random) -> bytes:
    """Extended headers that rename, resize or encode members, and numbers that no tar has."""
    info = tarfile.TarInfo("ant/x.png")
    key, value = rng.choice(
        (
            ("path", "../../out.png"),
            ("size", "-1"),
            ("size", str(2**62)),
            ("path", "a\0b"),
            ("charset", "x"),
            ("hdrcharset", "BINARY"),
            ("GNU.sparse.name", "../y"),
            ("GNU.sparse.realsize", "99999999999"),
            ("mtime", "nan"),
            ("path", "/" * 3000),
            ("size", "1e9"),
            ("linkpath", "x" * 9000),
        )
    )
    info.pax_headers = {key: value}
    data = bytearray(tarred(small_files(), "w", info))
    if rng.random() < 0.4:
        at = 512 * rng.randrange(len(data) // 512)
        data[at + 124 : at + 136] = rng.choice(
            (b"\x80" + b"\xff" * 11, b"\xff" * 12, b"77777777777\0", b"-0000000001\0")
        )
    return bytes(data)


def _bomb(rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(("large member", "many layers", "lie", "image"))
    zeros = functools.partial(_deflated_zeros, 300)
    if kind == "large member":
        return "a.zip", _raw_zip("ant/x.bmp", zeros(), 300 * 2**20)
    if kind == "lie":  # 300 MiB that say they are a kilobyte
        return "a.zip", _raw_zip("ant/x.bmp", zeros(), 1024)
    if kind == "many layers":
        inner = zipped({"ant/0.png": small_files()["ant/0.png"]})
        for _ in range(5):
            inner = zipped({"ant/x.zip": inner})
        return "a.zip", inner
    return "a.zip", zipped({**small_files(), "ant/x.png": huge_png(60_000, 60_000)})


@functools.cache
def _deflated_zeros(mebibytes: int) -> bytes:
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join(press.compress(bytes(2**20)) for _ in range(mebibytes)) + press.flush()


def _raw_zip(name: str, body: bytes, size: int) -> bytes:
    """A zip of one deflated member, with whatever size it is said to have."""
    head = struct.pack("<5H3I2H", 20, 0, 8, 0, 0, 0, len(body), size, len(name), 0)
    local = b"PK\x03\x04" + head + name.encode() + body
    entry = b"PK\x01\x02" + struct.pack("<H", 20) + head + struct.pack("<3H2I", 0, 0, 0, 0, 0) + name.encode()
    return local + entry + b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 1, 1, len(entry), len(local), 0)
