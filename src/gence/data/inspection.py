"""Everything that is wrong with a source, in one go: what `gence data check` prints."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gence.data.archives import archive_stem, open_container
from gence.data.containers import is_ignored
from gence.data.decode import size_of
from gence.data.images import DataError, ImageSet
from gence.data.layout import IMAGE_SUFFIXES, WHOLE, check_same_classes, find_splits
from gence.data.left_out import left_out_notes
from gence.data.sources import ReadOptions, container_paths, decode_split, load
from gence.data.split_off import split_off_test

_CHECKED_SIDE = 64  # the largest side to which images of different sizes are brought for the check


@dataclass(frozen=True)
class PartReport:
    """What one part of a source holds."""

    name: str
    images: int
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # images per class
    checksum: str


@dataclass(frozen=True)
class CheckReport:
    """What was found: `problems` keep the source from being loaded, `notes` are worth knowing."""

    source: str
    parts: tuple[PartReport, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the source can be loaded."""
        return not self.problems


def check(
    source: str | Path,
    *,
    image_size: int | None = None,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = False,
) -> CheckReport:
    """Read every image of a source and report all that is wrong, rather than the first; nothing decoded is cached.

    Args:
        source: as for `load`. A named data set whose archives are not at hand is downloaded.
        image_size: as for `load`.
        data_dir: as for `load`.
        cache_dir: where downloads are kept; as for `load`.
        progress: True for a progress bar on stderr.

    >>> check("digits").ok
    True
    """
    options = ReadOptions(
        image_size=image_size,
        data_dir=None if data_dir is None else Path(data_dir).expanduser(),
        cache=False,
        progress=progress,
    )
    problems: list[str] = []
    notes = left_out_notes(source, data_dir)
    parts: dict[str, ImageSet] = {}
    files: dict[str, Sequence[str]] = {}
    try:
        paths = container_paths(source, options.data_dir)
        if paths:
            sizes = Counter() if image_size else _sizes(paths.values())
            if len(sizes) > 1:
                side = min(_CHECKED_SIDE, *(min(size) for size in sizes))
                options = dataclasses.replace(options, image_size=side)
                notes.append(_sizes_note(source, sizes, side))
            for split, path in paths.items():
                parts |= _read_all(path, split, options, problems, notes, files)
            _compare_parts(parts, str(source), problems, notes)
        else:
            splits = load(source, image_size=image_size, cache_dir=cache_dir, cache=False, progress=progress)
            parts = {"train": splits.train, "test": splits.test}
        if not problems and parts:
            notes.extend(_duplicates(parts, files, source))
    except DataError as error:
        problems.append(str(error))
    reports = tuple(
        PartReport(p.name, len(p), p.image_shape, p.classes, tuple(p.counts().tolist()), p.checksum)
        for p in parts.values()
    )
    return CheckReport(str(source), reports, tuple(problems), tuple(notes))


def _sizes(paths: Iterable[Path]) -> Counter[tuple[int, int]]:
    """How many images there are of each width and height; a file that is no image has none, and is reported later."""
    found: Counter[tuple[int, int]] = Counter()
    for path in paths:
        with open_container(path) as container:
            for layout in find_splits(container).values():
                for name in layout.files:
                    with contextlib.suppress(DataError):
                        found[size_of(container.read(name), container.where(name))] += 1
    return found


def _sizes_note(source: str | Path, sizes: Counter[tuple[int, int]], side: int) -> str:
    (width, height), count = sizes.most_common(1)[0]
    return (
        f"{source}: images of {len(sizes)} sizes (most often {width} x {height} pixels, {count} of {sizes.total()}); "
        "choose one for all with --image-size, or gence compare and gence train choose one; "
        f"they were checked at {side} x {side}"
    )


def _read_all(
    path: Path,
    split: str,
    options: ReadOptions,
    problems: list[str],
    notes: list[str],
    files: dict[str, Sequence[str]],
) -> dict[str, ImageSet]:
    parts = {}
    title = archive_stem(path.resolve())
    with open_container(path) as container:
        layouts = find_splits(container)
        used = sum(len(layout.files) for layout in layouts.values())
        images = sum(not is_ignored(name) and name.lower().endswith(IMAGE_SUFFIXES) for name in container.files)
        if images > used:
            notes.append(f"{path}: {images - used} images belong to a validation part and are left out")
        for inner, layout in layouts.items():
            try:
                part = decode_split(container, layout, f"{title}/{inner}", options, problems)
            except DataError as error:
                problems.append(str(error))
            else:
                part_name = split if split != WHOLE else inner
                parts[part_name] = part
                files[part_name] = [container.where(file) for file in layout.files]
    return parts


def _compare_parts(parts: dict[str, ImageSet], source: str, problems: list[str], notes: list[str]) -> None:
    if {"train", "test"} <= parts.keys():
        try:
            check_same_classes(parts["train"].classes, parts["test"].classes, source)
        except DataError as error:
            problems.append(str(error))
    elif parts.keys() & {"train", "test"}:
        notes.append(f"{source} has only a {next(iter(parts))} part: load_images can read it, load cannot")


def _duplicates(parts: Mapping[str, ImageSet], files: Mapping[str, Sequence[str]], source: str | Path) -> list[str]:
    """Images that occur twice where they should not: in training and test, or under two labels."""
    train, test, of_which = parts.get("train"), parts.get("test"), ""
    if WHOLE in parts:
        train, test = split_off_test(parts[WHOLE], source)
        of_which = " that are split off"
    notes = []
    if train is not None and test is not None:
        known = set(_digests(train))
        count = sum(digest in known for digest in _digests(test))
        if count:
            notes.append(
                f"{count} of {len(test)} test images{of_which} are also in the training part, pixel by pixel: "
                "they make every score too good"
            )
    return notes + _contradictions(parts, files)


def _contradictions(parts: Mapping[str, ImageSet], files: Mapping[str, Sequence[str]]) -> list[str]:
    """Equal pixels under different labels: at least one of the labels is wrong."""
    seen: dict[bytes, tuple[str, str]] = {}  # digest -> class and file of the first image
    count, example = 0, ""
    for name, part in parts.items():
        places = files.get(name) or [f"{part.name} image {i}" for i in range(len(part))]
        for digest, label, place in zip(_digests(part), part.labels.tolist(), places, strict=True):
            known, first = seen.setdefault(digest, (part.classes[label], place))
            if known != part.classes[label]:
                count += 1
                example = example or f"{first} ({known}) and {place} ({part.classes[label]})"
    have = "image has" if count == 1 else "images have"
    return [f"{count} {have} the pixels of an image with another label, such as {example}"] if count else []


def _digests(part: ImageSet) -> list[bytes]:
    # The shape enters: a row and a column of the same bytes are not the same image.
    shape = str(part.image_shape).encode()
    return [hashlib.sha256(shape + image.tobytes()).digest() for image in part.images.numpy()]
