"""From file names to labels: which folder is a split, which is a class.

Class names sort by code point into label order, as torchvision's ImageFolder has it. Two layouts are known:
`train/CLASS/...` with `test/CLASS/...` (or `val`, `valid`, `validation` in place of a missing test), and
`CLASS/...` alone. One folder around everything is looked through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gence.data.containers import SUMS_NAME, Container, is_ignored
from gence.data.images import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
WHOLE = "all"  # the one split of a source that has no split of its own
_VALIDATION = ("val", "valid", "validation")


@dataclass(frozen=True)
class SplitLayout:
    """The files of one split, ordered by class and then by name."""

    classes: tuple[str, ...]
    files: tuple[str, ...]
    labels: tuple[int, ...]


def find_splits(container: Container, *, allow_flat: bool = False) -> dict[str, SplitLayout]:
    """The splits of a folder or archive: {"train", "test"}, or {"all"} where the class folders come first.

    With train, test and val side by side, val is left out: it is neither training nor test data. `allow_flat` also
    takes images without any class folder, as a single class "unlabelled".
    """
    files = [name for name in container.files if not is_ignored(name) and name.rpartition("/")[2] != SUMS_NAME]
    folders = {name for name in container.folders if name and not is_ignored(name)}
    for name in sorted(files):
        if not name.lower().endswith(IMAGE_SUFFIXES):
            raise DataError(
                f"{container.where(name)} is not an image ({', '.join(IMAGE_SUFFIXES)}); remove it from the data"
            )
    if not files:
        raise DataError(f"{container.path} holds no images")
    prefix = _wrapper(files)
    top = {name[len(prefix) :].split("/")[0] for name in files}
    top |= {f[len(prefix) :].split("/")[0] for f in folders if f.startswith(prefix) and len(f) > len(prefix)}
    test = next((s for s in ("test", *_VALIDATION) if s in top), None)
    if "train" in top and test is not None and top <= {"train", "test", *_VALIDATION}:
        return {
            "train": _classes_below(container, f"{prefix}train/", files, folders, allow_flat),
            "test": _classes_below(container, f"{prefix}{test}/", files, folders, allow_flat),
        }
    return {WHOLE: _classes_below(container, prefix, files, folders, allow_flat)}


def check_same_classes(train: Sequence[str], test: Sequence[str], where: str) -> None:
    """Training and test part must have the same classes: a class that is never tested is most often a mistake."""
    for missing, split in (
        (sorted(set(train) - set(test)), "test"),
        (sorted(set(test) - set(train)), "train"),
    ):
        if missing:
            raise DataError(
                f"{where}: class {missing[0]!r} is missing from {split} ({len(missing)} such); add or remove it"
            )


def _wrapper(files: list[str]) -> str:
    """The folder around everything, with its "/", or "": stripped only while a class folder remains below it."""
    prefix = ""
    while True:
        rest = [name[len(prefix) :] for name in files]
        heads = {name.split("/")[0] for name in rest}
        if len(heads) > 1 or any(name.count("/") < 2 for name in rest):
            return prefix
        prefix += heads.pop() + "/"


def _classes_below(
    container: Container, prefix: str, files: list[str], folders: set[str], allow_flat: bool
) -> SplitLayout:
    below = sorted(name for name in files if name.startswith(prefix))
    if not below:
        raise DataError(f"{container.where(prefix)} holds no images")
    loose = [name for name in below if "/" not in name[len(prefix) :]]
    if allow_flat and len(loose) == len(below):
        return SplitLayout(("unlabelled",), tuple(below), (0,) * len(below))
    if loose:
        raise DataError(
            f"{container.where(loose[0])} lies in no class folder; expected {prefix}CLASS/{loose[0][len(prefix) :]}"
        )
    with_images = {name[len(prefix) :].split("/")[0] for name in below}
    classes = with_images | {f[len(prefix) :].split("/")[0] for f in folders if f.startswith(prefix) and f != prefix}
    empty = sorted(classes - with_images - {""})
    if empty:
        raise DataError(
            f"{container.where(prefix + empty[0])} is an empty class: no images; add some or remove the folder"
        )
    number = {name: k for k, name in enumerate(sorted(with_images))}
    ordered = sorted(below, key=lambda name: (number[name[len(prefix) :].split("/")[0]], name))
    return SplitLayout(
        tuple(number), tuple(ordered), tuple(number[name[len(prefix) :].split("/")[0]] for name in ordered)
    )
