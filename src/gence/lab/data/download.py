"""Public data sets from their own sites or a mirror, where every byte is verified before it is used, and from the hub.

`$GENCE_MIRROR`, if set, is the address of a folder that is tried first (`$GENCE_MIRROR/cifar-10-binary.tar.gz`): as
the SHA-256 is fixed, a mirror cannot change the data. CIFAR comes as its authors' binary files, which need no
unpickling.

Data sets of the Hugging Face hub come by the `datasets` library (extra `hub`). The image column is the first of type
Image, the label column the first of type ClassLabel; another name can be given after "#": `hf:owner/name#fine_label`.
The test part is the split "test", else "validation"; without either, a fifth of each class is split off as for folders.
A folder that `datasets.load_dataset` can read may stand in for owner/name, for work without a network.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gence.lab.data import cache as image_cache
from gence.lab.data.archives import open_container
from gence.lab.data.cache import ReadOptions
from gence.lab.data.decode import decode_all, decode_image, fit_arrays
from gence.lab.data.errors import DataError, NotAtHandError
from gence.lab.data.folders import WHOLE
from gence.lab.data.images import ImageSet
from gence.lab.data.names import RemoteFile, SourceInfo

_TIMEOUT_S = 60
# ValueError: a malformed address. It also covers DataError, a wrong checksum: the next address may be sound.
_UNREACHABLE = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError, ValueError)


def read_downloaded(info: SourceInfo, wanted: tuple[str, ...], options: ReadOptions) -> dict[str, ImageSet]:
    """The wanted splits of a named data set, downloaded if they are not in the cache."""
    if not info.files:
        raise DataError(
            f"{info.name} ({info.terms}) has no public download that can be verified. Provide it as "
            f"{info.name}-train.zip and {info.name}-test.zip with one folder per class, in the folder that GENCE_DATA "
            "names; or pass the path of your own folder or archive; or use a data set of the Hugging Face hub "
            "(hf:owner/name)"
        )
    splits: dict[str, ImageSet] = {}
    for remote in info.files:
        if remote.split in (*wanted, "all"):
            identity = {"known": info.name, "sha256": remote.sha256}
            build = partial(_build, info, remote, options)
            splits |= options.cached(f"{info.name}-{remote.split}", identity, build)
    return {split: splits[split] for split in wanted}


def fetch(remote: RemoteFile, folder: Path, *, progress: bool = False, download: bool = True) -> Path:
    """The verified file in `folder`; downloaded if it is not there yet, whole or not at all.

    Raises:
        NotAtHandError: it is not there, and `download` is False.
    """
    path = folder / remote.name
    if path.is_file() and _sha256(path) == remote.sha256:
        return path
    if not download:
        raise NotAtHandError(f"{remote.name} is not in {folder}, and downloads are off")
    mirror = os.environ.get("GENCE_MIRROR")
    urls = [f"{mirror.rstrip('/')}/{remote.name}", remote.url] if mirror else [remote.url]
    problems = []
    for url in urls:
        try:
            return _download(url, remote, path, progress)
        except _UNREACHABLE as error:
            problems.append(f"{url}: {error}")
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {error.strerror or error}; free some space or set GENCE_CACHE"
            ) from error
    raise DataError(
        f"{remote.name} could not be downloaded ({'; '.join(problems)}). Without a network, put the file into "
        f"{folder}, or archives of the images into the folder that GENCE_DATA names"
    )


def parse_cifar(path: Path, title: str) -> dict[str, tuple[np.ndarray, np.ndarray, list[str]]]:
    """CIFAR's binary archive: split -> (pixels (N, 3, 32, 32), labels (N,), class names).

    A record is one label byte (CIFAR-100: coarse, then fine) and 3 * 32 * 32 pixels.
    """
    with open_container(path) as archive:
        by_name = {name.rpartition("/")[2]: name for name in archive.files}
        fine = "train.bin" in by_name
        train = ["train.bin"] if fine else sorted(name for name in by_name if name.startswith("data_batch_"))
        test, meta = ("test.bin", "fine_label_names.txt") if fine else ("test_batch.bin", "batches.meta.txt")
        for name in (test, meta):
            if name not in by_name or not train:
                raise DataError(
                    f"{path} is not a binary archive of {title}: {name} or the training batches are missing"
                )
        classes = archive.read(by_name[meta]).decode().split()
        result = {}
        for split, names in (("train", train), ("test", [test])):
            raw = np.frombuffer(b"".join(archive.read(by_name[name]) for name in names), dtype=np.uint8)
            head = 2 if fine else 1
            if raw.size == 0 or raw.size % (head + 3072):
                raise DataError(
                    f"{path}: the {split} part has {raw.size} bytes, which is not a multiple of {head + 3072}"
                )
            records = raw.reshape(-1, head + 3072)
            pixels = np.ascontiguousarray(records[:, head:]).reshape(-1, 3, 32, 32)
            result[split] = (pixels, records[:, head - 1].astype(np.int64), classes)
        return result


def parse_svhn(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """SVHN's MATLAB file: pixels (N, 3, 32, 32), labels (N,) with the file's 10 turned into 0, class names."""
    from scipy.io import loadmat

    try:
        contents = loadmat(path, variable_names=["X", "y"])
        pixels, labels = contents["X"], contents["y"].reshape(-1)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise DataError(f"{path} is not an SVHN file with X and y: {error}") from error
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10, [str(k) for k in range(10)]


def _build(info: SourceInfo, remote: RemoteFile, options: ReadOptions) -> dict[str, ImageSet]:
    # Beside the lock on the images: they may be wanted in two sizes at once, and the file is one.
    with image_cache.sole_maker(options.folder, remote.name, remote.name):
        path = fetch(remote, options.folder / "downloads", progress=options.progress, download=options.download)
    parts = parse_cifar(path, info.name) if remote.split == "all" else {remote.split: parse_svhn(path)}
    return {
        split: ImageSet.from_arrays(
            fit_arrays(pixels, options.image_size), labels, classes, f"{info.name}/{split}", layout="NCHW"
        )
        for split, (pixels, labels, classes) in parts.items()
    }


def _download(url: str, remote: RemoteFile, path: Path, progress: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    # As the umask has it, which temporary files of the library do not: others may read a shared cache.
    temporary = path.parent / f".{uuid.uuid4().hex}.part"
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response,
            temporary.open("xb") as file,
            _Bar(remote.name, response.headers.get("Content-Length"), progress) as bar,
        ):
            while piece := response.read(2**20):
                file.write(piece)
                digest.update(piece)
                bar.advance(len(piece))
        if digest.hexdigest() != remote.sha256:
            raise DataError(
                f"{url} has the wrong checksum: SHA-256 {digest.hexdigest()}, expected {remote.sha256}; "
                "the download broke or the file was changed; try again"
            )
        temporary.replace(path)
        return path
    finally:
        temporary.unlink(missing_ok=True)


class _Bar:
    """A progress bar on stderr, or nothing."""

    def __init__(self, title: str, total: str | None, show: bool) -> None:
        self._title, self._total, self._show = title, int(total) if total else None, show

    def __enter__(self) -> _Bar:
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True))
            self._task = self._progress.add_task(self._title, total=self._total)
            self._progress.start()
        return self

    def advance(self, count: int) -> None:
        if self._show:
            self._progress.advance(self._task, count)

    def __exit__(self, *_: object) -> None:
        if self._show:
            self._progress.stop()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_TEST_SPLITS = ("test", "validation", "valid", "val")


def read_hub(identifier: str, wanted: tuple[str, ...], options: ReadOptions) -> dict[str, ImageSet]:
    """The wanted splits, or {"all"} where the data set has no test part."""
    repository, _, label = identifier.partition("#")
    if not options.download:
        return _read_cached(repository, label, wanted, options)
    found = load_hub(repository)
    chosen = {split: part for split, part in found.items() if split in (*wanted, WHOLE)}
    splits: dict[str, ImageSet] = {}
    for split, part in chosen.items():
        build = partial(_decode, part, repository, split, label, options)
        splits |= options.cached(f"{repository}-{split}", _identity(repository, label, part._fingerprint), build)
        if options.cache:
            note = _note_path(options, repository, label, split)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(part._fingerprint, encoding="utf-8")
    return splits


def load_hub(repository: str) -> dict[str, Any]:
    """A data set of the hub by its parts, {"train", "test"} or {"all"}, as the library `datasets` has them.

    Where the hub cannot be reached, what the library has kept is read; without that the error comes at once.
    """
    try:
        import datasets
        from huggingface_hub import constants
    except ImportError as error:
        raise DataError(
            "data sets of the Hugging Face hub need the library `datasets`: pip install 'gence[hub]'"
        ) from error
    switches: list[tuple[Any, str]] = [(datasets.config, "HF_DATASETS_OFFLINE"), (constants, "HF_HUB_OFFLINE")]
    before = [getattr(*switch) for switch in switches]
    hint = ""
    try:
        if not Path(repository).exists():
            check_hub_is_reachable()
    except OSError:
        hint = "; the hub cannot be reached from here: name a file or folder, or run this where there is a network"
        for switch in switches:
            setattr(*switch, True)
    try:
        parts = datasets.load_dataset(repository)
    except Exception as error:
        # The library passes on errors of a dozen others (network, parquet, fsspec ...): the cause is in the text.
        raise DataError(f"hf:{repository} cannot be loaded: {error}{hint}") from error
    finally:
        for switch, value in zip(switches, before, strict=True):
            setattr(*switch, value)
    test = next((split for split in _TEST_SPLITS if split in parts), None)
    if "train" in parts and test is not None:
        return {"train": parts["train"], "test": parts[test]}
    if len(parts) == 1:
        return {WHOLE: next(iter(parts.values()))}
    raise DataError(f"hf:{repository} has the splits {list(parts)}; expected train and test, or only one")


def check_hub_is_reachable() -> None:
    """Raise `OSError` at once where the hub's name is unknown: its own client tries for a minute."""
    from huggingface_hub import constants

    if not urllib.request.getproxies():  # a proxy knows names that this machine need not know
        socket.getaddrinfo(urllib.parse.urlsplit(constants.ENDPOINT).hostname, 443)


def hub_tables(repository: str, *, download: bool = True) -> dict[str, Path]:
    """The parts of a data set of the hub as Parquet files in the cache, labels by their names; made once.

    Raises:
        NotAtHandError: it is not there, and `download` is False.
    """
    cache = image_cache.default_cache_dir()
    folder = cache / "hub" / f"tables-{hashlib.sha256(repository.encode()).hexdigest()[:20]}"
    if not folder.is_dir():
        if not download:
            raise NotAtHandError(f"hf:{repository} is not in {cache}, and downloads are off")
        with image_cache.sole_maker(cache, folder.name, f"the table hf:{repository}"):
            if not folder.is_dir():
                _keep_tables(repository, folder)
    return {path.stem: path for path in sorted(folder.glob("*.parquet"))}


def _keep_tables(repository: str, folder: Path) -> None:
    import datasets

    made = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.part")
    made.mkdir(parents=True)
    for split, part in load_hub(repository).items():
        kinds = part.features.items()
        plain = [name for name, kind in kinds if isinstance(kind, datasets.Value | datasets.ClassLabel)]
        frame = part.select_columns(plain).to_pandas()
        for name, kind in kinds:
            if isinstance(kind, datasets.ClassLabel):
                frame[name] = [kind.names[k] if k is not None and k >= 0 else None for k in frame[name].tolist()]
        frame.to_parquet(made / f"{split}.parquet", index=False)
    made.rename(folder)


def _read_cached(repository: str, label: str, wanted: tuple[str, ...], options: ReadOptions) -> dict[str, ImageSet]:
    """What was decoded before, as the notes of fingerprints have it: the library would ask the hub for them."""

    def refuse() -> dict[str, ImageSet]:
        raise NotAtHandError(f"hf:{repository} is not in {options.folder}, and downloads are off")

    parts = (WHOLE,) if _note_path(options, repository, label, WHOLE).is_file() else wanted
    splits: dict[str, ImageSet] = {}
    for split in parts:
        note = _note_path(options, repository, label, split)
        if not note.is_file():
            refuse()
        identity = _identity(repository, label, note.read_text(encoding="utf-8"))
        splits |= options.cached(f"{repository}-{split}", identity, refuse)
    return splits


def _identity(repository: str, label: str, fingerprint: str) -> dict[str, str]:
    return {"hub": repository, "label": label, "fingerprint": fingerprint}


def _note_path(options: ReadOptions, repository: str, label: str, split: str) -> Path:
    """Where the fingerprint is kept that a part of a data set had when it was decoded last."""
    name = hashlib.sha256(json.dumps([repository, label, split]).encode()).hexdigest()[:20]
    return options.folder / "hub" / f"{name}.txt"


def row_names(part_name: str, count: int) -> list[str]:
    """How messages call the images of a part."""
    return [f"hf:{part_name} row {i}" for i in range(count)]


def _decode(part: Any, repository: str, split: str, label: str, options: ReadOptions) -> dict[str, ImageSet]:
    import datasets

    name = f"{repository}/{split}"
    image_column = _column(part, name, datasets.Image, "")
    label_column = _column(part, name, datasets.ClassLabel, label)
    raw = part.cast_column(image_column, datasets.Image(decode=False))
    positions = {row: i for i, row in enumerate(row_names(name, len(raw)))}

    def decode(row: str) -> np.ndarray:
        stored = raw[positions[row]][image_column]
        if stored is None or (stored["bytes"] is None and not stored["path"]):
            raise DataError(f"{row} has no image")
        data = stored["bytes"]
        if data is None:
            data = Path(stored["path"]).read_bytes()
        return decode_image(data, row, options.image_size, options.digests)

    pixels = decode_all(list(positions), decode, source=name, progress=name if options.progress else None)
    labels = np.asarray(part.with_format("numpy")[label_column][:], dtype=np.int64)
    return {split: ImageSet.from_arrays(pixels, labels, part.features[label_column].names, name, layout="NCHW")}


def _column(part: Any, name: str, kind: type, asked: str) -> str:
    fitting = [column for column, feature in part.features.items() if isinstance(feature, kind)]
    if asked and asked not in fitting:
        raise DataError(f"hf:{name} has no {kind.__name__} column {asked!r}; there are {fitting or 'none'}")
    if not fitting:
        raise DataError(
            f"hf:{name} has no {kind.__name__} column, only {list(part.features)}; to read it as a table, name a "
            "column: --text COLUMN or --label COLUMN"
        )
    return asked or fitting[0]
