"""Images in, features out: decoding and resizing in a thread beside the network, finished parts kept on disk."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor

from gence.lab.data import DataError, ImageSet, decode_image, default_cache_dir, sole_maker
from gence.lab.features.cache import FeatureFile, FeatureWriter, read_features
from gence.lab.features.encoders import Encoder
from gence.lab.features.preprocessing import PLAIN_VIEW, check_view
from gence.lab.features.texts import TextEncoder

if TYPE_CHECKING:
    from rich.console import Console

BATCH = 32  # larger ones are no faster on a CPU, and leave its caches
_AHEAD = 3  # batches that are prepared while the network works
_log = logging.getLogger("gence.lab.features")


@dataclass(frozen=True, eq=False)
class ImageSource:
    """Images, or texts, that can be read piece by piece.

    Attributes:
        name: what to call them in messages and file names.
        checksum: of their contents.
        count: n.
        read: (first, after the last) -> uint8 (rows, C, H, W), or texts; called from another thread.
        noun: what they are, for messages.
    """

    name: str
    checksum: str
    count: int
    read: Callable[[int, int], Any]
    noun: str = "images"

    @classmethod
    def of(cls, images: ImageSet) -> ImageSource:
        """Images in memory."""
        return cls(images.name, images.checksum, len(images), lambda start, stop: images.images[start:stop])

    @classmethod
    def of_files(cls, paths: Sequence[str | Path], image_size: int, name: str = "files") -> ImageSource:
        """Image files, decoded when they are needed: shorter side to `image_size`, centre cut out, colour."""
        files = [Path(path) for path in paths]
        digest = hashlib.sha256(f"{image_size}\n".encode())
        for file in files:
            try:
                digest.update(hashlib.sha256(file.read_bytes()).digest())
            except OSError as error:
                raise DataError(f"{file} cannot be read: {error.strerror or error}") from error

        def read(start: int, stop: int) -> Tensor:
            made = []
            for file in files[start:stop]:
                pixels = torch.from_numpy(decode_image(file.read_bytes(), str(file), image_size).copy())
                made.append(pixels.expand(3, -1, -1) if pixels.dim() == 2 else pixels.permute(2, 0, 1))
            return torch.stack(made)

        return cls(name, digest.hexdigest(), len(files), read)


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """The features of a set of images, one tensor per view.

    Attributes:
        views: name -> float16 (n, D), mapped from the cache or in memory. "plain" is always there.
        identity: encoder, weights, preprocessing and the images' checksum.
        seconds: what embedding took this time; 0 for what was in the cache.
        embedded: how many images were embedded this time, over all views.
    """

    views: dict[str, Tensor]
    identity: dict[str, Any]
    seconds: float = 0.0
    embedded: int = 0

    def __len__(self) -> int:
        return len(self.views[PLAIN_VIEW])

    @property
    def width(self) -> int:
        """D, the number of features."""
        return self.views[PLAIN_VIEW].shape[1]

    def rows(self, index: Tensor | None = None, views: Sequence[str] = (PLAIN_VIEW,)) -> Tensor:
        """Features (V * m, D) of the images at `index` (all by default): the first view's rows, then the next one's."""
        parts = [self.views[view] if index is None else self.views[view][index] for view in views]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def embed(
    images: ImageSet | ImageSource,
    encoder: Encoder | TextEncoder,
    *,
    views: Sequence[str] = (PLAIN_VIEW,),
    cache_dir: Path | None = None,
    cache: bool = True,
    progress: bool = False,
    console: Console | None = None,
) -> FeatureSet:
    """Features of images, from the cache or embedded now; what is embedded is never embedded again.

    Args:
        images: the images.
        encoder: what embeds them.
        views: which views of each image; see `VIEWS`. "plain" is embedded in any case.
        cache_dir: where features are kept; by default `$GENCE_CACHE`, else `gence` in the user's cache folder.
        cache: False to keep nothing on disk.
        progress: a bar on stderr (or `console`) with images per second.
        console: where the bar is shown.

    Raises:
        DataError: images that cannot be read, or that do not fit the encoder.
        StoreError: a cache that cannot be written.
        ValueError: features that are not finite; an unknown view.
    """
    source = ImageSource.of(images) if isinstance(images, ImageSet) else images
    if source.count == 0:
        raise DataError(f"{source.name}: there are no {source.noun} to embed")
    folder = default_cache_dir() if cache_dir is None else cache_dir
    wanted = [PLAIN_VIEW, *(view for view in dict.fromkeys(views) if view != PLAIN_VIEW)]
    found: dict[str, Tensor] = {}
    total, seconds = 0, 0.0
    for view in wanted:
        check_view(view)
        identity = {**encoder.identity(), "data": source.checksum, "view": view}
        if cache:
            file = FeatureFile.of(folder, f"{source.name}-{encoder.name}", source.count, encoder.width, identity)
            stored = read_features(file)
            if stored is None:
                with sole_maker(folder, file.path.name, f"the features of {source.name}"):
                    stored = read_features(file)
                    if stored is None:
                        stored, count, took = _into_file(source, encoder, view, file, progress, console)
                        total, seconds = total + count, seconds + took
        else:
            parts = list(_embedded(source, encoder, view, [(0, source.count)], progress, console))
            stored, seconds, total = parts[0][1].half(), seconds + parts[0][2], total + source.count
            if not bool(stored.isfinite().all()):
                raise ValueError(
                    f"features: {encoder.name} gives NaN, infinite or too large numbers; check its weights"
                )
        found[view] = stored
    return FeatureSet(found, {**encoder.identity(), "data": source.checksum}, seconds, total)


def _into_file(
    source: ImageSource,
    encoder: Encoder | TextEncoder,
    view: str,
    file: FeatureFile,
    progress: bool,
    console: Console | None,
) -> tuple[Tensor, int, float]:
    """Embed the missing parts of a file; return the features, how many images that were, and the seconds."""
    with FeatureWriter(file) as writer:
        missing = list(writer.missing)
        count = sum(stop - start for start, stop in missing)
        if count < source.count:
            _log.info(
                "%d of %d %s of %s are embedded already", source.count - count, source.count, source.noun, source.name
            )
        seconds = 0.0
        for start, features, took in _embedded(source, encoder, view, missing, progress, console):
            writer.write(start, features)
            seconds += took
        return writer.finish(), count, seconds


def _embedded(
    source: ImageSource,
    encoder: Encoder | TextEncoder,
    view: str,
    parts: Sequence[tuple[int, int]],
    progress: bool,
    console: Console | None,
) -> Iterator[tuple[int, Tensor, float]]:
    """First row, features and seconds of each part."""
    import time

    total = sum(stop - start for start, stop in parts)
    batches = [(part, first, min(first + BATCH, part[1])) for part in parts for first in range(part[0], part[1], BATCH)]
    prepared = _ahead(
        lambda batch: encoder.preprocessing(_read(source, batch[1], batch[2]), view), batches
    )  # fmt: skip
    with _bar(f"embedding {source.name}", total, progress, console, source.noun) as advance:
        rows: list[Tensor] = []
        began = time.perf_counter()
        for (part, first, stop), pixels in zip(batches, prepared, strict=True):
            rows.append(encoder(pixels))
            advance(stop - first)
            if stop == part[1]:
                now = time.perf_counter()
                yield part[0], torch.cat(rows), now - began
                rows, began = [], time.perf_counter()


def _read(source: ImageSource, start: int, stop: int) -> Any:
    """Images of a source; other numbers of images than asked for are an error of the source."""
    images = source.read(start, stop)
    if len(images) != stop - start:
        raise DataError(
            f"{source.name}: expected {stop - start} {source.noun} from number {start} on, got {len(images)}"
        )
    return images


def _ahead(make: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """What `make` returns for each item, in order, made in a thread a few items ahead of whoever consumes them."""
    made: queue.Queue[Any] = queue.Queue(maxsize=_AHEAD)
    stopped = threading.Event()

    def put(value: Any) -> bool:
        while not stopped.is_set():
            try:
                made.put(value, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(make(item)):
                    return
        except BaseException as error:  # raised again where the tensor is consumed
            put(error)

    thread = threading.Thread(target=work, name="gence-embed", daemon=True)
    thread.start()
    try:
        for _ in items:
            value = made.get()
            if isinstance(value, BaseException):
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()


def _bar(title: str, total: int, progress: bool, console: Console | None, noun: str) -> Any:
    """A context manager that yields what to call with the number of images just done."""
    if not progress:
        return nullcontext(lambda _: None)
    return image_bar(title, total, console, noun)


class _Rate(TextColumn):
    def __init__(self, noun: str) -> None:
        super().__init__("")
        self.noun = noun

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f} {self.noun}/s")


@contextmanager
def image_bar(title: str, total: int, console: Console | None, noun: str = "images") -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr, or on `console`; yields what to call with the number of images just done."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(noun),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)
