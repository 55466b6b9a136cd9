"""From file names to labels: which folder is a split, which is a class.

Class names sort by code point into label order, as torchvision's ImageFolder has it. Two layouts are known:
`train/CLASS/...` with `test/CLASS/...` (or `val` in place of a missing test), and `CLASS/...` alone. `Train`,
`training`, `TESTING`, `valid` and `validation` are such parts too. One folder around everything is looked through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gence.lab.data.archives import SUMS_NAME, Container, is_ignored
from gence.lab.data.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
DOCUMENT_SUFFIXES = (".txt", ".csv", ".tsv", ".md", ".rst", ".json", ".xml", ".yaml", ".yml", ".html", ".pdf", ".log")
"""What lies beside the images of many data sets, and cannot be taken for an image: skipped, with a note."""
WHOLE = "all"  # the one split of a source that has no split of its own
_NAMED = 20  # files or folders of one kind of problem that are named one by one; the rest are counted
_TRAIN, _TEST, _VALIDATION = "train", "test", "val"
_PARTS = {
    **dict.fromkeys(("train", "training"), _TRAIN),
    **dict.fromkeys(("test", "testing"), _TEST),
    **dict.fromkeys(("val", "valid", "validation"), _VALIDATION),
}  # a folder's name in lower case -> the part it holds


@dataclass(frozen=True)
class SplitLayout:
    """The files of one split, ordered by class and then by name."""

    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]
    empty: tuple[str, ...] = ()  # class folders without images: none unless problems are collected


def find_splits(
    container: Container, *, allow_flat: bool = False, problems: list[str] | None = None
) -> dict[str, SplitLayout]:
    """The splits of a folder or archive: {"train", "test"}, or {"all"} where the class folders come first.

    With train, test and val side by side, val is skipped: it is neither training nor test data.

    Args:
        container: the folder or archive.
        allow_flat: take images without any class folder, too, as a single class "unlabelled".
        problems: a list that collects what is wrong, instead of stopping at the first; the splits then hold what can
            be placed without doubt.

    Raises:
        DataError: there are not images, or the parts cannot be told; without `problems`, whatever is wrong.
    """
    listed = sorted(
        name
        for name in container.files
        if not is_ignored(name) and name.rpartition("/")[2] != SUMS_NAME and not is_document(name)
    )
    files = [name for name in listed if name.lower().endswith(IMAGE_SUFFIXES)]
    folders = {name for name in container.folders if name and not is_ignored(name)}
    search = _Search(container, files, folders, allow_flat, problems)
    search.report(
        [
            f"{container.where(name)} is not an image ({', '.join(IMAGE_SUFFIXES)}); remove it from the data"
            for name in listed
            if not name.lower().endswith(IMAGE_SUFFIXES)
        ],
        rest=f"files in {container.path} are not images",
    )
    if not files:
        raise DataError(f"{container.path} holds no images")
    prefix = _wrapper(search)
    parts = _find_parts(search, prefix)
    below = {split: f"{prefix}{folder}/" for split, folder in parts.items()} or {WHOLE: prefix}
    layouts = {split: _classes_below(search, inner) for split, inner in below.items()}
    return {split: layout for split, layout in layouts.items() if layout is not None}


def is_document(name: str) -> bool:
    """Whether a file is text about the images: skipped, unlike a photograph in a format that cannot be read.

    >>> is_document("photos/README.txt"), is_document("LICENSE"), is_document("photos/cat/1.heic")
    (True, True, False)
    """
    last = name.rpartition("/")[2].lower()
    return last.endswith(DOCUMENT_SUFFIXES) or last in ("readme", "license", "licence")


def check_same_classes(train: Sequence[str], test: Sequence[str], where: str) -> None:
    """Training and test part must have the same classes: a class that is never tested is most often a mistake."""
    missing = missing_classes(train, test, where)
    if missing:
        raise DataError(missing[0])


def missing_classes(train: Sequence[str], test: Sequence[str], where: str) -> list[str]:
    """A sentence for each of the two parts that lacks classes of the other."""
    lacking = {"test": sorted(set(train) - set(test)), "train": sorted(set(test) - set(train))}
    return [
        f"{where}: class {missing[0]!r} is missing from {split} ({len(missing)} such); add or remove it"
        for split, missing in lacking.items()
        if missing
    ]


def misnamed_part(path: Path, split: str) -> str:
    """What is wrong with an archive `X-test.zip` that holds a train and a test folder."""
    return f"{path} is named as the {split} part, but holds train and test folders; rename it"


@dataclass(frozen=True)
class _Search:
    """What a folder or archive holds, and what to do about what is wrong with it."""

    container: Container
    files: list[str]  # the images, sorted
    folders: set[str]
    allow_flat: bool
    problems: list[str] | None

    def below(self, prefix: str) -> list[str]:
        """The images below a folder."""
        return [name for name in self.files if name.startswith(prefix)]

    def folder_names(self, prefix: str) -> set[str]:
        """The folders directly in a folder."""
        return {name[len(prefix) :].split("/")[0] for name in self.folders if name.startswith(prefix)}

    def where(self, prefix: str) -> str:
        """How messages call a folder."""
        return self.container.where(prefix) if prefix else str(self.container.path)

    def report(self, found: Sequence[str], rest: str = "") -> None:
        """Raise the first problem, or collect them all; `rest` describes those that are too many to be named."""
        if self.problems is None:
            if found:
                raise DataError(found[0])
            return
        self.problems.extend(found[:_NAMED])
        if len(found) > _NAMED:
            self.problems.append(f"{len(found) - _NAMED} more {rest}")


def _wrapper(search: _Search) -> str:
    """The folder around everything, with its "/", or "": stripped only while a class folder remains below it.

    A train folder beside an empty test folder is not a wrapper: a test part would be split off silently.
    """
    prefix = ""
    while True:
        rest = [name[len(prefix) :] for name in search.files]
        heads = {name.split("/")[0] for name in rest}
        heads |= {name for name in search.folder_names(prefix) if name.lower() in _PARTS}
        if len(heads) > 1 or any(name.count("/") < 2 for name in rest):
            return prefix
        prefix += heads.pop() + "/"


def _find_parts(search: _Search, prefix: str) -> dict[str, str]:
    """The folders of {"train", "test"}, or {} where the uppermost folders are classes.

    A doubt is an error, because "train" against "test" can be learned as two classes without anybody noticing. It is
    none where labels do not matter (`allow_flat`), nor for one folder of images called train among others: that is a
    class of vehicles. Where problems are collected, one train and one test folder are read whatever lies beside them.
    """
    top = {name[len(prefix) :].split("/")[0] for name in search.files} | search.folder_names(prefix)
    found: dict[str, list[str]] = {}
    for name in sorted(top):
        if name.lower() in _PARTS:
            found.setdefault(_PARTS[name.lower()], []).append(name)
    named = [name for names in found.values() for name in names]
    others = sorted(top - set(named))
    test = found.get(_TEST) or found.get(_VALIDATION)
    one_each = {}
    if test and _TRAIN in found and all(len(names) == 1 for names in found.values()):
        one_each = {"train": found[_TRAIN][0], "test": test[0]}
    if one_each and not others:
        return one_each
    nested = any(_holds_only_folders(search.below(f"{prefix}{name}/"), f"{prefix}{name}/") for name in named)
    if search.allow_flat or not (len(named) > 1 or (nested and others)):
        return {}
    beside = f" beside {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}" if others else ""
    doubt = (
        f"{search.where(prefix)} holds {', '.join(named)}{beside}: these look like parts of a data set, not like "
        "classes; keep one train folder and one test folder there and nothing else, or rename a class that has such a "
        "name"
    )
    if not one_each:
        raise DataError(doubt)
    search.report([doubt])
    return one_each


def _holds_only_folders(below: list[str], prefix: str) -> bool:
    """Whether there are images below a folder, and none of them directly in it."""
    return bool(below) and all("/" in name[len(prefix) :] for name in below)


def _classes_below(search: _Search, prefix: str) -> SplitLayout | None:
    """The classes of a part; None where problems are collected and no image lies in a class folder."""
    below = search.below(prefix)
    if not below:
        search.report([f"{search.where(prefix)} holds no images"])
        return None
    loose = [name for name in below if "/" not in name[len(prefix) :]]
    if search.allow_flat and len(loose) == len(below):
        return SplitLayout(("unlabelled",), tuple(below), (0,) * len(below))
    search.report(
        [
            f"{search.where(name)} lies in no class folder; expected {prefix}CLASS/{name[len(prefix) :]}"
            for name in loose
        ],
        rest=f"images in {search.where(prefix)} lie in no class folder",
    )
    class_of = {name: name[len(prefix) :].split("/")[0] for name in below if "/" in name[len(prefix) :]}
    number = {name: k for k, name in enumerate(sorted(set(class_of.values())))}
    empty = sorted(search.folder_names(prefix) - number.keys())
    search.report(
        [
            f"{search.where(prefix + name)} is an empty class: no images; add some or remove the folder"
            for name in empty
        ],
        rest=f"class folders in {search.where(prefix)} are empty",
    )
    if not class_of:
        return None
    ordered = sorted(class_of, key=lambda name: (number[class_of[name]], name))
    return SplitLayout(
        tuple(number), tuple(ordered), tuple(number[class_of[name]] for name in ordered), empty=tuple(empty)
    )
