"""Small real images (scikit-learn's digits) as files, folders and archives."""

from __future__ import annotations

import io
import resource
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits


def encode(pixels: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """(H, W) or (H, W, 3) uint8 as the bytes of an image file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def digit_pixels(per_class: int, classes: int = 3) -> dict[str, list[np.ndarray]]:
    """Class name -> gray 8 x 8 images."""
    bunch = load_digits()
    scaled = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return {f"digit{k}": list(scaled[bunch.target == k][:per_class]) for k in range(classes)}


def digit_files(per_class: int, classes: int = 3, prefix: str = "") -> dict[str, bytes]:
    """File name -> PNG bytes: `PREFIXdigitK/00i.png`."""
    pixels = digit_pixels(per_class, classes)
    return {f"{prefix}{name}/{i:03d}.png": encode(p) for name, images in pixels.items() for i, p in enumerate(images)}


def zip_bytes(files: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tar_bytes(files: Mapping[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def write_folder(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return root


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """The kernel refuses writes beyond `limit`, as a full disk does beyond its last block."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache, or depends on the user's data."""
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("GENCE_DATA", raising=False)
    monkeypatch.delenv("GENCE_MIRROR", raising=False)


WRITERS: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    ".zip": zip_bytes,
    ".tar": tar_bytes,
    ".tar.gz": lambda files: tar_bytes(files, "w:gz"),
}
