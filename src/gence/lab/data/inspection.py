"""Everything that is wrong with a source, in one go: what `gence data check` prints.

Images that occur twice where they should not (in training and test, or under two labels) are found by digests of the
pixels that a file decodes to, at its own size: resized to a common size, images that differ can become equal. File
formats do not matter, and gray equals colour with three equal channels. Folders that no reader looks into, because
their names say that they hold no class, are noted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from gence.lab.data.archives import Container, archive_stem, is_ignored, open_container, walk_folder
from gence.lab.data.decode import is_deep, pixels_digest, size_of
from gence.lab.data.download import row_names
from gence.lab.data.errors import DataError, first_few
from gence.lab.data.folders import (
    IMAGE_SUFFIXES,
    WHOLE,
    SplitLayout,
    find_splits,
    is_document,
    misnamed_part,
    missing_classes,
)
from gence.lab.data.images import ImageSet
from gence.lab.data.names import HUB_PREFIX
from gence.lab.data.sources import (
    ReadOptions,
    container_paths,
    decode_split,
    read_parts,
    split_off_index,
    split_problems,
    to_splits,
)
from gence.lab.data.tables import TablePart, check_rows, is_table


@dataclass(frozen=True)
class Fingerprints:
    """What is compared of one part, image by image."""

    digests: Sequence[bytes | None]  # None for an image that could not be read
    labels: Tensor  # int64, (N,)
    classes: Sequence[str]  # the K names, in label order
    places: Sequence[str]  # how messages call the image

    @classmethod
    def of_files(cls, part: ImageSet, places: Sequence[str], digests: Mapping[str, bytes]) -> Fingerprints:
        """Of image files whose digests were taken when they were decoded, under the names in `places`."""
        return cls([digests.get(place) for place in places], part.labels, part.classes, places)

    @classmethod
    def of_pixels(cls, part: ImageSet) -> Fingerprints:
        """Of images that were never files, or whose size was not changed."""
        digests = [pixels_digest(image.transpose(1, 2, 0)) for image in part.images.numpy()]
        return cls(digests, part.labels, part.classes, [f"{part.name} image {i}" for i in range(len(part))])

    def digests_at(self, index: Tensor) -> list[bytes | None]:
        """The digests of some of the images."""
        return [self.digests[i] for i in index.tolist()]


def leak_notes(train: Iterable[bytes | None], test: Sequence[bytes | None], of_which: str = "") -> list[str]:
    """A sentence if test images are among the training images, by their digests.

    Args:
        train: digests of the training images.
        test: digests of the test images.
        of_which: what kind of test images these are, to be put behind "test images".
    """
    known = set(train) - {None}
    count = sum(digest in known for digest in test)
    if not count:
        return []
    are = "is" if count == 1 else "are"
    return [
        f"{count} of {len(test)} test images{of_which} {are} also in the training part, pixel by pixel: "
        "this makes every score too good"
    ]


def contradiction_notes(parts: Iterable[Fingerprints]) -> list[str]:
    """A sentence if there are equal pixels under different labels: at least one of the labels is wrong."""
    seen: dict[bytes, tuple[str, str]] = {}  # digest -> class and place of the first image
    count, example = 0, ""
    for part in parts:
        for digest, label, place in zip(part.digests, part.labels.tolist(), part.places, strict=True):
            if digest is None:
                continue
            name = part.classes[label]
            known, first = seen.setdefault(digest, (name, place))
            if known != name:
                count += 1
                example = example or f"{first} ({known}) and {place} ({name})"
    have = "image has" if count == 1 else "images have"
    return [f"{count} {have} the pixels of an image with another label, such as {example}"] if count else []


_CHECKED_SIDE = 64  # the largest side to which images of different sizes are resized for the report


@dataclass(frozen=True)
class PartReport:
    """What one part of a source holds."""

    name: str
    images: int
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    counts: tuple[int, ...]  # images per class
    checksum: str

    def in_words(self) -> str:
        """Return a line about it."""
        channels, height, width = self.image_shape
        least, most = min(self.counts), max(self.counts)
        each = str(least) if least == most else f"{least} to {most}"
        kind = "gray" if channels == 1 else "colour"
        return (
            f"{self.name}: {self.images} images of {width} x {height} pixels, {kind}, {len(self.classes)} classes with "
            f"{each} each, SHA-256 {self.checksum[:16]}"
        )

    @classmethod
    def of(cls, part: ImageSet) -> PartReport:
        """The findings about images."""
        return cls(part.name, len(part), part.image_shape, part.classes, tuple(part.counts().tolist()), part.checksum)


@dataclass(frozen=True)
class CheckReport:
    """What was found: `problems` keep the source from being loaded, `notes` are worth knowing."""

    source: str
    parts: tuple[PartReport | TablePart, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the source can be loaded."""
        return not self.problems


@dataclass
class _Findings:
    """What is known so far."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    parts: dict[str, ImageSet] = field(default_factory=dict)
    class_folders: dict[str, list[str]] = field(default_factory=dict)  # of each part, those without images included
    compared: dict[str, Fingerprints] = field(default_factory=dict)


def check(
    source: str | Path,
    *,
    image_size: int | None = None,
    data_dir: str | Path | None = None,
    cache_dir: str | Path | None = None,
    progress: bool = False,
) -> CheckReport:
    """Read every image or row of a source and report all that is wrong, not the first alone; nothing decoded is cached.

    Args:
        source: as for `load`. A named data set whose archives are not available is downloaded.
        image_size: as for `load`.
        data_dir: as for `load`.
        cache_dir: where downloads are kept; as for `load`.
        progress: True for a progress bar on stderr.

    >>> check("digits").ok
    True
    """
    if is_table(source):
        if image_size is not None:
            raise DataError(f"image_size does nothing for {source}, which is a table; remove it")
        rows = check_rows(str(source))
        return CheckReport(str(source), tuple(rows.parts), tuple(rows.problems), tuple(rows.notes))
    options = ReadOptions(
        image_size=image_size,
        data_dir=None if data_dir is None else Path(data_dir).expanduser(),
        cache_dir=None if cache_dir is None else Path(cache_dir).expanduser(),
        cache=False,
        progress=progress,
    )
    findings = _Findings(notes=left_out_notes(source, data_dir))
    try:
        paths = container_paths(source, options.data_dir)
        if paths:
            _read_containers(paths, source, options, findings)
        else:
            _read_elsewhere(source, options, findings)
        _look_for_copies(findings)
    except DataError as error:
        findings.problems.append(str(error))
    reports = tuple(map(PartReport.of, findings.parts.values()))
    return CheckReport(str(source), reports, tuple(findings.problems), tuple(findings.notes))


def _read_containers(paths: Mapping[str, Path], source: str | Path, options: ReadOptions, findings: _Findings) -> None:
    """Folders and archives: everything in them is looked at, whatever is wrong with the rest."""
    sizes = Counter() if options.image_size else _sizes(paths.values())
    if len(sizes) > 1:
        side = min(_CHECKED_SIDE, *(min(size) for size in sizes))
        options = dataclasses.replace(options, image_size=side)
        findings.notes.append(_sizes_note(source, sizes, side))
    for split, path in paths.items():
        try:
            with open_container(path) as container:
                _read_container(container, split, options, findings)
        except DataError as error:
            findings.problems.append(str(error))
    _compare_classes(paths, source, findings)
    if WHOLE in findings.parts:
        findings.problems.extend(split_problems(findings.parts[WHOLE], source))


def _sizes(paths: Iterable[Path]) -> Counter[tuple[int, int]]:
    """How many images there are of each width and height; what has none, or cannot be read, is reported later."""
    found: Counter[tuple[int, int]] = Counter()
    for path in paths:
        with contextlib.suppress(DataError), open_container(path) as container:
            for layout in find_splits(container, problems=[]).values():
                for name in layout.files:
                    with contextlib.suppress(DataError):
                        found[size_of(container.read(name), container.where(name))] += 1
    return found


def _sizes_note(source: str | Path, sizes: Counter[tuple[int, int]], side: int) -> str:
    (width, height), count = sizes.most_common(1)[0]
    return (
        f"{source}: images of {len(sizes)} sizes (most often {width} x {height} pixels, {count} of {sizes.total()}); "
        "gence compare and gence train resize them all to one size, which --image-size sets; "
        f"this report shows them at {side} x {side}"
    )


def _read_container(container: Container, split: str, options: ReadOptions, findings: _Findings) -> None:
    before = len(findings.problems)
    layouts = find_splits(container, problems=findings.problems)
    if split != WHOLE and layouts and WHOLE not in layouts:
        raise DataError(misnamed_part(container.path, split))
    if len(findings.problems) == before:  # else images are skipped for other reasons, too
        findings.notes.extend(_validation_notes(container, layouts))
    title = archive_stem(container.path.resolve())
    for inner, layout in layouts.items():
        part_name = split if split != WHOLE else inner
        findings.class_folders[part_name] = [*layout.classes, *layout.empty]
        digests: dict[str, bytes] = {}
        options = dataclasses.replace(options, digests=digests)
        try:
            part = decode_split(container, layout, f"{title}/{inner}", options, findings.problems)
        except DataError as error:
            findings.problems.append(str(error))
        else:
            findings.parts[part_name] = part
            places = [container.where(file) for file in layout.files]
            findings.compared[part_name] = Fingerprints.of_files(part, places, digests)


def _validation_notes(container: Container, layouts: Mapping[str, SplitLayout]) -> list[str]:
    used = sum(len(layout.files) for layout in layouts.values())
    images = sum(not is_ignored(name) and name.lower().endswith(IMAGE_SUFFIXES) for name in container.files)
    if images == used:
        return []
    return [f"{container.path}: {images - used} images belong to a validation part and are skipped"]


def _compare_classes(paths: Mapping[str, Path], source: str | Path, findings: _Findings) -> None:
    found = findings.class_folders
    if {"train", "test"} <= found.keys():
        findings.problems.extend(missing_classes(found["train"], found["test"], str(source)))
    elif WHOLE not in paths and len(paths) == 1:
        findings.notes.append(f"{source} has only a {next(iter(paths))} part: load_images can read it, load cannot")


def _read_elsewhere(source: str | Path, options: ReadOptions, findings: _Findings) -> None:
    """A bundled or downloaded data set, or one of the hub, read as `load` reads it: its first error is the only one."""
    digests: dict[str, bytes] = {}
    parts = read_parts(source, ("train", "test"), dataclasses.replace(options, digests=digests))
    splits = to_splits(parts, source)
    findings.parts = {"train": splits.train, "test": splits.test}
    if str(source).startswith(HUB_PREFIX):
        findings.compared = {
            name: Fingerprints.of_files(part, row_names(part.name, len(part)), digests) for name, part in parts.items()
        }
        return
    if options.image_size is not None:  # resized, images that differ can become equal
        parts = read_parts(source, ("train", "test"), dataclasses.replace(options, image_size=None))
    findings.compared = {name: Fingerprints.of_pixels(part) for name, part in parts.items()}


def _look_for_copies(findings: _Findings) -> None:
    compared = findings.compared
    if WHOLE in compared:
        if not findings.problems:  # repairing them changes which images are split off
            whole = compared[WHOLE]
            train, test = split_off_index(whole.labels, whole.classes)
            findings.notes.extend(leak_notes(whole.digests_at(train), whole.digests_at(test), " that are split off"))
    elif {"train", "test"} <= compared.keys():
        findings.notes.extend(leak_notes(compared["train"].digests, compared["test"].digests))
    findings.notes.extend(contradiction_notes(compared.values()))


_LOOKED_AT = 20  # images whose headers are read, to see how many bits they have


def left_out_notes(source: str | Path, data_dir: str | Path | None = None) -> list[str]:
    """A sentence for each folder or archive of a source in which something is skipped, or classes look alike.

    A folder whose name begins with a dot, and `__MACOSX`, are taken for leftovers of a file manager; a class of that
    name would be missed without a word. A source that cannot be read has no notes: `load` says what is wrong with it.

    Args:
        source: as for `load`.
        data_dir: as for `load`.

    >>> left_out_notes("digits")
    []
    """
    notes = []
    try:
        for path in container_paths(source, None if data_dir is None else Path(data_dir).expanduser()).values():
            with open_container(path) as opened:
                special = opened.skipped
                documents = sorted(name for name in opened.files if is_document(name) and not is_ignored(name))
                deep = _has_deep_images(opened)
                alike = _alike_classes(opened)
                folders = sorted({folder for name in _image_names(opened) if (folder := _ignored_folder(name))})
            if special:
                notes.append(f"{path}: skipped {first_few(special)}: not regular files (pipes, devices or sockets)")
            if documents:
                notes.append(f"{path}: skipped {first_few(documents)}: not images")
            notes += [
                f"{path}: the classes {first_few([repr(name) for name in names])} differ only in case or Unicode form; "
                "rename one if they are the same class"
                for names in alike
            ]
            if deep:
                notes.append(
                    f"{path}: 16- and 32-bit images are scaled to 8 bits, each from its smallest value to its largest"
                )
            if folders:
                notes.append(
                    f"{path}: skipped {first_few(folders)}: hidden folders (a dot in front) and __MACOSX; rename any "
                    "that is a class"
                )
    except (DataError, OSError):
        return []
    return notes


def _alike_classes(container: Container) -> list[list[str]]:
    """The classes of each part that many programs, and people, take for one: equal but for case and Unicode form."""
    found: list[list[str]] = []
    layouts: Iterable[SplitLayout] = ()
    with contextlib.suppress(DataError):  # the problem is reported by another check
        layouts = find_splits(container, allow_flat=True, problems=[]).values()
    for layout in layouts:
        alike: dict[str, list[str]] = {}
        for name in layout.classes:
            alike.setdefault(unicodedata.normalize("NFKC", name).casefold().strip(), []).append(name)
        found += [names for names in alike.values() if len(names) > 1 and names not in found]
    return found


def _has_deep_images(container: Container) -> bool:
    """Whether an image has more than 8 bits, as far as a few of those tell whose format can have them."""
    able = sorted(name for name in container.files if name.lower().endswith((".png", ".tif", ".tiff", ".pgm")))
    return any(is_deep(container.read(name)) for name in able[:: -(-len(able) // _LOOKED_AT) or 1])


def _image_names(container: Container) -> list[str]:
    """Names of image files, relative; of a plain folder only those in hidden folders and `__MACOSX`."""
    names: Iterable[str] = _hidden_names(container.path) if container.path.is_dir() else container.files
    return [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]


def _hidden_names(path: Path) -> Iterator[str]:
    for root, _, _ in walk_folder(path):
        for entry in os.scandir(root):
            if entry.is_dir() and is_ignored(entry.name):
                for inner, _, files in os.walk(entry.path):
                    yield from ((Path(inner) / file).relative_to(path).as_posix() for file in files)


def _ignored_folder(name: str) -> str:
    """The uppermost folder on the way to a skipped file; "" if there is none."""
    parts = name.split("/")[:-1]
    at = next((i for i, part in enumerate(parts) if is_ignored(part)), None)
    return "" if at is None else "/".join(parts[: at + 1])
