"""From file names to labels: which folder is a split, which is a class.

Class names sort by code point into label order, as torchvision's ImageFolder has it. Two layouts are known:
`train/CLASS/...` with `test/CLASS/...` (or `val` in place of a missing test), and `CLASS/...` alone. `Train`,
`training`, `TESTING`, `valid` and `validation` are such parts too. One folder around everything is looked through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gence.data.containers import SUMS_NAME, Container, is_ignored
from gence.data.images import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
WHOLE = "all"  # the one split of a source that has no split of its own
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
    parts = _find_parts(container, prefix, top, files, allow_flat)
    if parts:
        return {
            split: _classes_below(container, f"{prefix}{folder}/", files, folders, allow_flat)
            for split, folder in parts.items()
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


def _find_parts(container: Container, prefix: str, top: set[str], files: list[str], allow_flat: bool) -> dict[str, str]:
    """The folders of {"train", "test"}, or {} where the uppermost folders are classes.

    A doubt is an error, because "train" against "test" can be learned as two classes without anybody noticing. It is
    none where labels do not matter (`allow_flat`), nor for one folder of images called train among others: that is a
    class of vehicles.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(top):
        if name.lower() in _PARTS:
            found.setdefault(_PARTS[name.lower()], []).append(name)
    named = [name for names in found.values() for name in names]
    others = sorted(top - set(named))
    test = found.get(_TEST) or found.get(_VALIDATION)
    if test and _TRAIN in found and not others and all(len(names) == 1 for names in found.values()):
        return {"train": found[_TRAIN][0], "test": test[0]}
    nested = any(_holds_only_folders(f"{prefix}{name}/", files) for name in named)
    if not allow_flat and (len(named) > 1 or (nested and others)):
        beside = f" beside {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}" if others else ""
        raise DataError(
            f"{container.where(prefix) if prefix else container.path} holds {', '.join(named)}{beside}: these look "
            "like parts of a data set, not like classes; keep one train folder and one test folder there and nothing "
            "else, or rename a class that has such a name"
        )
    return {}


def _holds_only_folders(prefix: str, files: list[str]) -> bool:
    """Whether there are images below a folder, and none of them directly in it."""
    below = [name[len(prefix) :] for name in files if name.startswith(prefix)]
    return bool(below) and all("/" in name for name in below)


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
