"""Everything that is wrong with a source, in one go: what `gence data check` prints."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gence.data.archives import archive_stem, open_container
from gence.data.containers import is_ignored
from gence.data.images import DataError, ImageSet
from gence.data.layout import IMAGE_SUFFIXES, WHOLE, check_same_classes, find_splits
from gence.data.left_out import left_out_notes
from gence.data.sources import ReadOptions, container_paths, decode_split, load


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
    try:
        paths = container_paths(source, options.data_dir)
        if paths:
            for split, path in paths.items():
                parts |= _read_all(path, split, options, problems, notes)
            _compare_parts(parts, str(source), problems, notes)
        else:
            splits = load(source, image_size=image_size, cache_dir=cache_dir, cache=False, progress=progress)
            parts = {"train": splits.train, "test": splits.test}
    except DataError as error:
        problems.append(str(error))
    if not problems and {"train", "test"} <= parts.keys():
        notes.extend(_leaks(parts["train"], parts["test"]))
    reports = tuple(
        PartReport(p.name, len(p), p.image_shape, p.classes, tuple(p.counts().tolist()), p.checksum)
        for p in parts.values()
    )
    return CheckReport(str(source), reports, tuple(problems), tuple(notes))


def _read_all(
    path: Path, split: str, options: ReadOptions, problems: list[str], notes: list[str]
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
                parts[split if split != WHOLE else inner] = part
    return parts


def _compare_parts(parts: dict[str, ImageSet], source: str, problems: list[str], notes: list[str]) -> None:
    if {"train", "test"} <= parts.keys():
        try:
            check_same_classes(parts["train"].classes, parts["test"].classes, source)
        except DataError as error:
            problems.append(str(error))
    elif parts.keys() & {"train", "test"}:
        notes.append(f"{source} has only a {next(iter(parts))} part: load_images can read it, load cannot")


def _leaks(train: ImageSet, test: ImageSet) -> list[str]:
    """Test images whose pixels also occur in training: they make every score too good."""
    if train.image_shape != test.image_shape:
        return []
    known = {hashlib.sha256(image.tobytes()).digest() for image in train.images.numpy()}
    count = sum(hashlib.sha256(image.tobytes()).digest() in known for image in test.images.numpy())
    return [f"{count} of {len(test)} test images are also in the training part, pixel by pixel"] if count else []
