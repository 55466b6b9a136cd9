"""A name or a path in, images out.

What a source may be:
- a name of `known_sources()`. If the folder `data_dir`, or else `$GENCE_DATA`, holds `NAME-train.zip` and
  `NAME-test.zip` (or .tar, .tar.gz), these are read and the network is not touched; otherwise the public files are
  downloaded and verified;
- a folder or archive with `train/CLASS/...` and `test/CLASS/...` (see `gence.lab.data.folders`);
- a folder or archive with `CLASS/...` alone: `holdout(labels, 0.2, seed=0)` over the files sorted by class and name
  keeps a fifth of each class for testing, the same fifth each time;
- `X`, `X-train.zip` or `X-test.zip`, where `X-train.zip` and `X-test.zip` lie side by side;
- `hf:owner/name`, a data set of the Hugging Face hub (needs the extra `hub`).
A name goes before a path: write `./digits` for a folder that is called digits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gence.lab.data import cache as image_cache
from gence.lab.data.archives import (
    ARCHIVE_SUFFIXES,
    Container,
    archive_stem,
    cannot_be_read,
    is_archive,
    open_container,
)
from gence.lab.data.cache import ReadOptions
from gence.lab.data.decode import Size, decode_all, decode_image, fit_arrays
from gence.lab.data.errors import DataError
from gence.lab.data.folders import WHOLE, SplitLayout, check_same_classes, find_splits, misnamed_part
from gence.lab.data.images import DataSplits, ImageSet
from gence.lab.data.names import HUB_PREFIX, KNOWN, SourceInfo
from gence.lab.data.subsets import SPLIT_SEED, TEST_FRACTION, holdout
from gence.lab.data.tables import TableAddress, is_table


def split_off_test(whole: ImageSet, source: str | Path) -> tuple[ImageSet, ImageSet]:
    """Training and test part of a source that has none of its own; the same each time."""
    problems = split_problems(whole, source)
    if problems:
        raise DataError(problems[0])
    title = whole.name.rpartition("/")[0]
    train, test = split_off_index(whole.labels, whole.classes)
    return whole.subset(train).renamed(f"{title}/train"), whole.subset(test).renamed(f"{title}/test")


def split_off_index(labels: Tensor, classes: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Which images of a source without `split_problems` are for training and which for testing."""
    return holdout(labels, TEST_FRACTION, SPLIT_SEED, len(classes), classes=classes)


def split_problems(whole: ImageSet, source: str | Path) -> list[str]:
    """All that keeps a test part from being split off."""
    if whole.num_classes < 2:
        return [f"{source} has one class, {whole.classes[0]!r}; classification needs at least two class folders"]
    return [
        f"{source}: class {whole.classes[k]!r} has {'one image' if count else 'no images'}; "
        "to split off a test part it needs two"
        for k, count in enumerate(whole.counts().tolist())
        if count < 2
    ]


def load(
    source: str | Path,
    *,
    image_size: Size | None = None,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    cache: bool = True,
    progress: bool = False,
    download: bool = True,
) -> DataSplits:
    """Training and test images of a source.

    Args:
        source: a name or a path; see the module's text.
        image_size: the size to bring every image to: the side of a square, or (height, width); None if all have one
            size already.
        data_dir: where archives of named data sets lie; by default `$GENCE_DATA`.
        cache_dir: where decoded images are kept; by default `$GENCE_CACHE`, else `gence` in the user's cache folder.
        cache: False to decode each time and to write nothing.
        progress: True for a progress bar on stderr while images are decoded or downloaded.
        download: False to read only what is on this machine already, and never touch the network.

    Raises:
        DataError: the source cannot be read, or not without doubt about what is in it.
        NotAtHandError: the images would have to be downloaded, and `download` is False.

    >>> digits = load("digits")
    >>> digits.train.image_shape, len(digits.train), len(digits.test)
    ((1, 8, 8), 896, 901)
    """
    if is_table(source):
        raise DataError(
            f"{source} is a table, which networks of images cannot read; use a head on features of its rows, such as "
            "--model linear@all_minilm_l6_v2 for texts, linear@columns for numbers and categories, or linear@features"
        )
    options = _options(image_size, data_dir, cache_dir, cache, progress, download)
    return to_splits(read_parts(source, ("train", "test"), options), source)


def load_images(
    source: str | Path,
    split: str = "test",
    *,
    image_size: Size | None = None,
    channels: int | None = None,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    cache: bool = True,
    progress: bool = False,
    download: bool = True,
) -> ImageSet:
    """One part of a source, such as an out-of-distribution set, where labels do not matter.

    Unlike `load`, this takes a source that has only the part asked for, takes a folder or archive of images
    without class folders (one class, "unlabelled"), and gives ALL images of a source without train and test parts.

    Args:
        source: as for `load`; an archive `X-test.zip` is read alone, whatever `split` says.
        split: "train" or "test".
        image_size: as for `load`.
        channels: 1 or 3 to convert gray to colour or back; None to leave the images as they are.
        data_dir: as for `load`.
        cache_dir: as for `load`.
        cache: as for `load`.
        progress: as for `load`.
        download: as for `load`.
    """
    if split not in ("train", "test"):
        raise DataError(f"split must be 'train' or 'test'; got {split!r}")
    options = _options(image_size, data_dir, cache_dir, cache, progress, download)
    splits = read_parts(source, (split,), options, allow_flat=True)
    images = splits[WHOLE] if WHOLE in splits else splits[split]
    return images if channels is None else images.with_channels(channels)


def container_paths(source: str | Path, data_dir: Path | None = None) -> dict[str, Path]:
    """The folders and archives a source consists of: {"all": path}, or {"train": path, "test": path} or one of the two.

    Empty for a named data set that has to be downloaded (or is bundled) and for one of the hub.
    """
    if str(source).startswith(HUB_PREFIX):
        return {}
    if is_table(source):
        path = Path(TableAddress.parse(source).path).expanduser()
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            raise DataError(f"there is no file {path}")
        return {WHOLE: path}
    if isinstance(source, str) and source in KNOWN:
        if data_dir is None:
            if not os.environ.get("GENCE_DATA"):
                return {}
            data_dir = Path(os.environ["GENCE_DATA"]).expanduser()
        if not data_dir.is_dir():
            raise DataError(f"the data folder {data_dir} does not exist; correct GENCE_DATA or data_dir")
        return _pair(data_dir / source)
    path = Path(source).expanduser()
    if path.is_dir():
        return {WHOLE: path}
    if path.is_file():
        if not is_archive(path):
            raise DataError(f"{path} is neither a folder nor an archive ({', '.join(ARCHIVE_SUFFIXES)})")
        stem, dash, split = archive_stem(path).rpartition("-")
        if not (dash and split in ("train", "test")):
            return {WHOLE: path}
        path = path.with_name(stem)
    found = _pair(path)
    if not found:
        names = ", ".join(KNOWN)
        raise DataError(f"unknown data set {source!s} ({names}), and no folder or archive of that name exists")
    return found


def has_own_test_part(source: str | Path) -> bool:
    """Whether the source names its test images; otherwise `load` splits them off."""
    paths = container_paths(source)
    if WHOLE not in paths:
        return True
    with open_container(paths[WHOLE]) as container:
        return WHOLE not in find_splits(container)


def read_container(path: Path, title: str, options: ReadOptions, *, allow_flat: bool = False) -> dict[str, ImageSet]:
    """All splits of one folder or archive: {"train", "test"} or {"all"}."""

    def build() -> dict[str, ImageSet]:
        with open_container(path) as container:
            layouts = find_splits(container, allow_flat=allow_flat)
            if "test" in layouts and not allow_flat:
                check_same_classes(layouts["train"].classes, layouts["test"].classes, str(path))
            return {s: decode_split(container, layout, f"{title}/{s}", options) for s, layout in layouts.items()}

    try:
        identity = {**image_cache.file_identity(path), "flat": allow_flat}
    except OSError as error:
        raise cannot_be_read(str(error.filename or path), error) from error
    return options.cached(title, identity, build)


def decode_split(
    container: Container, layout: SplitLayout, name: str, options: ReadOptions, problems: list[str] | None = None
) -> ImageSet:
    """Decode one split's files; `problems` collects what is wrong instead of stopping at the first."""

    def decode(file: str) -> np.ndarray:
        return decode_image(container.read(file), container.where(file), options.image_size, options.digests)

    pixels = decode_all(
        layout.files,
        decode,
        source=str(container.path),
        progress=name if options.progress else None,
        problems=problems,
    )
    return ImageSet.from_arrays(pixels, np.asarray(layout.labels, dtype=np.int64), layout.classes, name, layout="NCHW")


def _options(
    image_size: Size | None,
    data_dir: str | Path | None,
    cache_dir: str | Path | None,
    cache: bool,
    progress: bool,
    download: bool,
) -> ReadOptions:
    return ReadOptions(
        image_size=image_size,
        data_dir=None if data_dir is None else Path(data_dir).expanduser(),
        cache_dir=None if cache_dir is None else Path(cache_dir).expanduser(),
        cache=cache,
        progress=progress,
        download=download,
    )


def read_parts(
    source: str | Path, wanted: tuple[str, ...], options: ReadOptions, *, allow_flat: bool = False
) -> dict[str, ImageSet]:
    """The wanted parts of a source, whatever it is, or {"all"} where it has no parts of its own."""
    if isinstance(source, str):
        if source in KNOWN:
            return _read_known(KNOWN[source], wanted, options)
        if source.startswith(HUB_PREFIX):
            from gence.lab.data.download import read_hub

            return read_hub(source[len(HUB_PREFIX) :], wanted, options)
    paths = container_paths(source, options.data_dir)
    if WHOLE in paths:
        path = paths[WHOLE]
        return read_container(path, archive_stem(path.resolve()), options, allow_flat=allow_flat)
    archive = Path(source).expanduser()
    if len(wanted) == 1 and archive in paths.values():
        wanted_split = next(split for split, path in paths.items() if path == archive)
        return {wanted[0]: _read_part(archive, wanted_split, options, allow_flat)}
    for split in wanted:
        if split not in paths:
            present = next(iter(paths.values()))
            stem = archive_stem(present).rpartition("-")[0]
            raise DataError(f"{present} has no {stem}-{split}.zip (or .tar, .tar.gz) beside it")
    return {split: _read_part(paths[split], split, options, allow_flat) for split in wanted}


def to_splits(parts: Mapping[str, ImageSet], source: str | Path) -> DataSplits:
    """Training and test images that fit together, from what `read_parts` returns."""
    if WHOLE in parts:
        train, test = split_off_test(parts[WHOLE], source)
    else:
        train, test = parts["train"], parts["test"]
    check_same_classes(train.classes, test.classes, str(source))
    channels = max(train.image_shape[0], test.image_shape[0])
    return DataSplits(train.with_channels(channels), test.with_channels(channels))


def _read_part(path: Path, split: str, options: ReadOptions, allow_flat: bool) -> ImageSet:
    splits = read_container(path, archive_stem(path), options, allow_flat=allow_flat)
    if WHOLE not in splits:
        raise DataError(misnamed_part(path, split))
    return splits[WHOLE].renamed(f"{archive_stem(path).rpartition('-')[0]}/{split}")


def _read_known(info: SourceInfo, wanted: tuple[str, ...], options: ReadOptions) -> dict[str, ImageSet]:
    if info.bundled:
        if options.data_dir is not None:
            container_paths(info.name, options.data_dir)  # a folder that is not there is an error for every data set
        return _digits(options)
    archives = container_paths(info.name, options.data_dir)
    if all(split in archives for split in wanted):
        return {split: _read_part(archives[split], split, options, False) for split in wanted}
    from gence.lab.data.download import read_downloaded

    return read_downloaded(info, wanted, options)


def _digits(options: ReadOptions) -> dict[str, ImageSet]:
    """scikit-learn's 1797 digits, 0..16 as round(v * 255 / 16); the test part is `holdout(labels, 0.5, seed=0)`."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    whole = ImageSet.from_arrays(
        fit_arrays(pixels, options.image_size), labels, [str(k) for k in range(10)], layout="NCHW"
    )
    train, test = holdout(labels, 0.5, SPLIT_SEED)
    return {"train": whole.subset(train).renamed("digits/train"), "test": whole.subset(test).renamed("digits/test")}


def _pair(path: Path) -> dict[str, Path]:
    found = {}
    for split in ("train", "test"):
        candidates = [path.with_name(f"{path.name}-{split}{suffix}") for suffix in ARCHIVE_SUFFIXES]
        present = [candidate for candidate in candidates if candidate.is_file()]
        if len(present) > 1:
            raise DataError(f"{present[0]} and {present[1].name} both hold the {split} part; keep one")
        if present:
            found[split] = present[0]
    return found
