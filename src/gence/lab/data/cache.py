"""Decoded images on disk: one safetensors file for each source, written whole or not at all, verified when read.

The file's name is a hash of what the images were made from: for files path, size and modification time, for known
data sets their checksums, and the image size. So a changed source is decoded again, and nothing has to be
invalidated. Of several processes that want the same file one makes it, and the others wait for it (`sole_maker`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gence.lab.data.archives import walk_folder
from gence.lab.data.decode import Size
from gence.lab.data.errors import DataError
from gence.lab.data.images import ImageSet, contents_checksum

FORMAT = 2  # raise it when what is stored, or how images are decoded, changes
NOTICE_AFTER_S = 3.0  # of waiting for another process
_log = logging.getLogger("gence.lab.data")


def default_cache_dir() -> Path:
    """`$GENCE_CACHE`, else `$XDG_CACHE_HOME/gence`, else `~/.cache/gence`."""
    if os.environ.get("GENCE_CACHE"):
        return Path(os.environ["GENCE_CACHE"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gence"


def cache_path(cache_dir: Path, title: str, identity: Mapping[str, Any]) -> Path:
    """Where the images with this identity belong; `title` makes the name readable."""
    text = json.dumps({"format": FORMAT, **identity}, sort_keys=True)
    readable = "".join(c if c.isalnum() or c in "-_" else "_" for c in title)[:40]
    return cache_dir / "images" / f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:20]}.safetensors"


def file_identity(path: Path) -> dict[str, Any]:
    """What tells one state of a file or folder from another, without reading the images."""
    if path.is_dir():
        digest = hashlib.sha256()
        for root, folders, names in walk_folder(path):
            digest.update(json.dumps([str(root), folders]).encode())
            for name in names:
                status = (root / name).stat()
                digest.update(json.dumps([name, status.st_size, status.st_mtime_ns]).encode())
        return {"folder": str(path.resolve()), "tree": digest.hexdigest()}
    status = path.stat()
    return {"file": str(path.resolve()), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def read_or_make(
    cache_dir: Path, title: str, identity: Mapping[str, Any], make: Callable[[], dict[str, ImageSet]]
) -> dict[str, ImageSet]:
    """What `make` returns, from the cache if it was made before; made by one process, however many ask at once."""
    path = cache_path(cache_dir, title, identity)
    seen = _state(path)
    stored = read(path)
    if stored is not None:
        return stored
    with sole_maker(cache_dir, path.name, title):
        # What was missing or damaged may be there by now; a file that was read in vain is not read again.
        stored = read(path) if _state(path) != seen else None
        if stored is None:
            stored = make()
            write(path, stored)
    return stored


@contextmanager
def sole_maker(cache_dir: Path, name: str, title: str) -> Iterator[None]:
    """Let one process at a time make the file `name`; the others wait, and after a few seconds say what for.

    The operating system holds the lock and frees it when its holder ends, however it ends. It prevents waste, not
    damage, so on a file system without locks everybody works without them.

    Args:
        cache_dir: the cache; locks are in its folder "locks".
        name: of the file that is made.
        title: what to call it while waiting.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(cache_dir / "locks" / f"{name}.lock")
    try:
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=NOTICE_AFTER_S)
        except Timeout:
            _log.warning("another process is preparing %s in %s; waiting for it to finish", title, cache_dir)
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        _log.debug("no lock in %s: %s", cache_dir, error)
    try:
        yield
    finally:
        lock.release()


def write(path: Path, splits: Mapping[str, ImageSet]) -> None:
    """Store the splits under `path`; on any failure nothing is left behind."""
    from safetensors.torch import save

    tensors, about = {}, {}
    for split, images in splits.items():
        tensors[f"{split}/images"], tensors[f"{split}/labels"] = images.images, images.labels
        about[split] = {"classes": images.classes, "name": images.name, "checksum": images.checksum}
    data = save(tensors, metadata={"gence": json.dumps(about)})
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f".{uuid.uuid4().hex}.part"
        with temporary.open("xb") as file:  # as the umask has it: others may read a shared cache
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DataError(
                f"cannot write {len(data) / 2**20:.0f} MiB of decoded images to {path.parent}: "
                f"{error.strerror or error}; free some space, or set the environment variable GENCE_CACHE to a "
                "folder that can be written (in Python also cache_dir=, or cache=False to keep none)"
            ) from error
        raise


def read(path: Path) -> dict[str, ImageSet] | None:
    """The splits stored under `path`; None if there are none or they fail verification (then they are made again)."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            splits, notes = {}, json.loads(file.metadata()["gence"])
            if {f"{split}/{what}" for split in notes for what in ("images", "labels")} != set(file.keys()) or not notes:
                raise DataError("its notes are not those of its tensors")
            for split, about in notes.items():
                # Copies: the tensors safetensors returns live in the mapped file, which may be replaced.
                images, labels = file.get_tensor(f"{split}/images").clone(), file.get_tensor(f"{split}/labels").clone()
                classes = tuple(about["classes"])
                if contents_checksum(images, labels, classes) != about["checksum"]:
                    raise DataError(f"checksum of {split} differs")
                splits[split] = ImageSet(images, labels, classes, about["name"], about["checksum"])
            return splits
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("the cache file %s is damaged (%s); the images are decoded again", path, error)
        return None


def _state(path: Path) -> tuple[int, int, int] | None:
    """What changes when another process puts a file in this place; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class ReadOptions:
    """How to read, whatever is read; the arguments of `load` under their own names.

    Besides, `digests` gets a digest of the pixels of every image file that is decoded, as `decode_image` has it; what
    comes from the cache is not decoded.
    """

    image_size: Size | None = None
    data_dir: Path | None = None
    cache_dir: Path | None = None
    cache: bool = True
    progress: bool = False
    download: bool = True
    digests: MutableMapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        sides = (self.image_size,) if isinstance(self.image_size, int) else self.image_size or (1,)
        if min(sides) < 1:
            raise DataError(
                f"image_size = {self.image_size} must be at least 1 pixel, or None to keep the images' size"
            )

    @property
    def folder(self) -> Path:
        """Where decoded images and downloads are kept."""
        return default_cache_dir() if self.cache_dir is None else self.cache_dir

    def cached(
        self, title: str, identity: Mapping[str, Any], build: Callable[[], dict[str, ImageSet]]
    ) -> dict[str, ImageSet]:
        """What `build` returns, from the cache if it was built before."""
        if not self.cache:
            return build()
        return read_or_make(self.folder, title, {**identity, "image_size": self.image_size}, build)
