"""Image files to one uint8 array, by Pillow, in threads.

Gray images stay gray if all are; otherwise every image becomes RGB (alpha is dropped). EXIF rotation is applied.
With `image_size` an image of another size is resized so that its shorter side has that length (bilinear with
antialiasing), and its centre is cut out. Of thin images only the centre is resized, so memory is bounded by the output.
Gray images of 16 or 32 bits (microscopes, satellites, X-rays) are scaled to 8 bits from their own smallest value to
their largest.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from gence.lab.data.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

Size = int | tuple[int, int]
"""The size to resize images to: the side of a square, or (height, width)."""

MAX_PIXELS = 2**26  # of one image before it is resized; a small file can claim to be enormous
_LARGE = 2**22  # pixels above which only two images are decoded at once, however many threads there are
_MOST_RESIZED = 16  # times the pixels that are kept
_large_images = threading.BoundedSemaphore(2)
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_GRAY_MODES = ("1", "L", "LA")
_DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "F")  # gray, with more than 8 bits
_COLOUR_MODES = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # the EXIF field, and its values that swap width and height


def decode_image(
    data: bytes, where: str, image_size: Size | None, digests: MutableMapping[str, bytes] | None = None
) -> np.ndarray:
    """One image file: uint8, (H, W) if it is gray, else (H, W, 3).

    Args:
        data: the file's bytes.
        where: how messages call the file.
        image_size: the size to bring it to; None to leave it as it is.
        digests: gets, under `where`, the digest of the pixels before their size is changed.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(f"{where} has {image.width} x {image.height} pixels; the limit is {MAX_PIXELS} in all")
            if image.mode not in _GRAY_MODES + _DEEP_MODES + _COLOUR_MODES:
                raise DataError(
                    f"{where} has pixels of type {image.mode!r}; expected gray of 8, 16 or 32 bits or colour of 8; "
                    "convert it"
                )
            with _large_images if image.width * image.height > _LARGE else contextlib.nullcontext():
                image.load()
                upright = _gray_or_rgb(ImageOps.exif_transpose(image), where)
                if digests is not None:
                    digests[where] = pixels_digest(np.asarray(upright))
                return fit(upright, image_size)
    except DataError:
        raise
    except Exception as error:
        # Pillow's plugins raise nearly every built-in exception on damaged files: whatever it is, the file is bad.
        raise DataError(f"{where} is not a readable image: {_reason(error)}; replace or remove it") from error


def size_of(data: bytes, where: str) -> tuple[int, int]:
    """Width and height of an image file as `decode_image` would turn it, from its header alone."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            return (height, width) if image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE else (width, height)
    except Exception as error:  # as above
        raise DataError(f"{where} is not a readable image: {_reason(error)}; replace or remove it") from error


def is_deep(data: bytes) -> bool:
    """Whether an image file has gray values of more than 8 bits, from its header alone."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return image.mode in _DEEP_MODES
    except Exception:  # as above; whoever decodes the file says what is wrong with it
        return False


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    # Pillow names the buffer it was given, which is only an address in memory.
    return "its format is not recognised" if isinstance(error, UnidentifiedImageError) else str(error)


def fit(image: Image.Image, image_size: Size | None) -> np.ndarray:
    """Resized until it covers `image_size`, centre cut out; left alone if it has that size or none is asked for."""
    from PIL import Image

    if image_size is None:
        return np.asarray(image, dtype=np.uint8)
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if image.size == (width, height):
        return np.asarray(image, dtype=np.uint8)
    ratio = max(width / image.width, height / image.height)
    wide, high = max(width, round(image.width * ratio)), max(height, round(image.height * ratio))
    left, top = (wide - width) // 2, (high - height) // 2
    if wide * high <= _MOST_RESIZED * width * height:
        image = image.resize((wide, high), Image.Resampling.BILINEAR)
        return np.asarray(image.crop((left, top, left + width, top + height)), dtype=np.uint8)
    # A thin image would become a huge one, so only its centre is resized; values then differ by a rounding.
    across, down = image.width / wide, image.height / high
    box = (left * across, top * down, (left + width) * across, (top + height) * down)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box=box), dtype=np.uint8)


def size_like(shape: Sequence[int]) -> Size:
    """The size that brings images to a shape (C, H, W).

    >>> size_like((3, 32, 32)), size_like((1, 20, 12))
    (32, (20, 12))
    """
    _, height, width = shape
    return height if height == width else (height, width)


def fit_arrays(pixels: np.ndarray, image_size: Size | None) -> np.ndarray:
    """`fit` for images that are decoded already: uint8, (N, 1 or 3, H, W) in and out."""
    from PIL import Image

    if image_size is None or pixels.shape[2:] == ((image_size,) * 2 if isinstance(image_size, int) else image_size):
        return pixels
    images = (Image.fromarray(p[0] if len(p) == 1 else np.ascontiguousarray(p.transpose(1, 2, 0))) for p in pixels)
    fitted = np.stack([fit(image, image_size) for image in images])
    return np.ascontiguousarray(fitted[:, None] if fitted.ndim == 3 else fitted.transpose(0, 3, 1, 2))


def decode_all(
    names: Sequence[str],
    decode: Callable[[str], np.ndarray],
    *,
    source: str = "",
    progress: str | None = None,
    problems: list[str] | None = None,
) -> np.ndarray:
    """All images, in order: uint8, (N, 1 or 3, H, W).

    Args:
        names: what to decode; named in errors.
        decode: name -> (H, W) or (H, W, 3); called from several threads.
        source: the folder or archive of the names, for errors.
        progress: title of a progress bar on stderr; None for no bar.
        problems: a list that collects what is wrong, instead of stopping at the first; bad images come out black.
    """
    pixels: np.ndarray | None = None
    first = ""
    all_gray = True
    for i, image in enumerate(_watched(_in_threads(names, decode, problems), len(names), progress)):
        if image is None:
            continue
        if pixels is None:
            pixels, first = np.zeros((len(names), 3, *image.shape[:2]), dtype=np.uint8), names[i]
        if image.shape[:2] != pixels.shape[2:]:
            problem = (
                f"{source or 'the source'} has images of different sizes ({first}: {pixels.shape[3]} x "
                f"{pixels.shape[2]}, {names[i]}: {image.shape[1]} x {image.shape[0]} pixels); name one size for all, "
                "such as --image-size 64 (image_size=64 in Python)"
            )
            if problems is None:
                raise DataError(problem)
            problems.append(problem)
            continue
        all_gray &= image.ndim == 2
        pixels[i] = image if image.ndim == 2 else image.transpose(2, 0, 1)
    if pixels is None:
        raise DataError("no image could be read" if names else "there are not images to read")
    return np.ascontiguousarray(pixels[:, :1]) if all_gray else pixels


def _gray_or_rgb(image: Image.Image, where: str) -> Image.Image:
    if image.mode in _GRAY_MODES:
        return image.convert("L")
    if image.mode in _DEEP_MODES:
        return _scaled_to_bytes(image, where)
    # A palette with transparency goes through RGBA: Pillow warns about the direct way.
    return (image.convert("RGBA") if image.mode in ("P", "PA") else image).convert("RGB")


def _scaled_to_bytes(image: Image.Image, where: str) -> Image.Image:
    """Gray of 8 bits: 0 for the image's smallest value, 255 for its largest; a constant image is 0."""
    from PIL import Image

    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        raise DataError(f"{where} has pixels that are not finite numbers; replace them or remove the image")
    low, high = values.min(), values.max()
    return Image.fromarray(np.round(255 * ((values - low) / ((high - low) or 1.0))).astype(np.uint8))


def _in_threads(
    names: Sequence[str], decode: Callable[[str], np.ndarray], problems: list[str] | None
) -> Iterator[np.ndarray | None]:
    def attempt(name: str) -> np.ndarray | DataError:
        try:
            return decode(name)
        except DataError as error:
            return error

    workers = min(16, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        remaining = iter(names)
        # Batches bound how much is decoded ahead, and let an error stop the work early.
        while batch := list(islice(remaining, 64 * workers)):
            for result in pool.map(attempt, batch):
                if not isinstance(result, DataError):
                    yield result
                elif problems is None:
                    raise result
                else:
                    problems.append(str(result))
                    yield None


def _watched(images: Iterable[np.ndarray | None], total: int, title: str | None) -> Iterable[np.ndarray | None]:
    if title is None:
        return images
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import track

    return track(images, description=escape(title), total=total, console=Console(stderr=True))


def pixels_digest(pixels: np.ndarray) -> bytes:
    """SHA-256 of an image's size and colours.

    Args:
        pixels: uint8, (H, W), (H, W, 1) or (H, W, 3).

    >>> gray = np.zeros((2, 3), np.uint8)
    >>> pixels_digest(gray) == pixels_digest(np.stack([gray] * 3, axis=2)), pixels_digest(gray) == pixels_digest(gray.T)
    (True, False)
    """
    height, width = pixels.shape[:2]
    # The size enters: a row and a column of the same bytes are not the same image.
    digest = hashlib.sha256(f"{height} x {width} ".encode())
    colours = np.broadcast_to(pixels.reshape(height, width, -1), (height, width, 3))
    digest.update(np.ascontiguousarray(colours).data)
    return digest.digest()
