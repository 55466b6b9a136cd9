"""Which images a run was made from, and what to say when the current ones differ.

A run's key has the name of its data, not their contents: a folder may change under its name. So every record and every
saved network has the checksums of its images, and whoever would use it in place of training compares them first. What
was made before there were checksums is taken as it is.

What reads images is imported where it is needed: the driver of a grid does without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gence.lab.spec import RunSpec
from gence.lab.store.record import Record, recorded_checksums
from gence.lab.store.store import Store

if TYPE_CHECKING:
    from gence.lab.data import DataSplits, ImageSet, RowSet, RowSplits

_OOD = "ood/"
_IN_WORDS = {"train": "the training images", "test": "the test images", "encoder": "the encoder's weights"}


def data_checksums(
    splits: DataSplits | RowSplits, ood: Mapping[str, ImageSet | RowSet] | None = None
) -> dict[str, str]:
    """SHA-256 of both parts of a source ("train", "test") and of OOD sets ("ood/NAME").

    >>> from gence.lab.data import load
    >>> sorted(data_checksums(load("digits")))
    ['test', 'train']
    """
    outside = {f"{_OOD}{name}": images.checksum for name, images in (ood or {}).items()}
    return {"train": splits.train.checksum, "test": splits.test.checksum, **outside}


def checksums_at_hand(spec: RunSpec, cache_dir: Path | None = None) -> dict[str, str]:
    """The checksums of a run's images, as far as its folders and archives are here; nothing is downloaded."""
    from gence.lab.data import DataError, container_paths, is_table, load, load_images, load_ood_rows, load_rows

    try:
        if is_table(spec.data):
            rows = load_rows(spec.data)
            return data_checksums(rows, {name: load_ood_rows(name, rows.columns, rows.width) for name in spec.ood})
        if not container_paths(spec.data):
            return {}
        splits = load(spec.data, image_size=spec.image_size, cache_dir=cache_dir, download=False)
        channels, height, _ = splits.train.image_shape
        ood = {
            name: load_images(name, "test", image_size=height, channels=channels, cache_dir=cache_dir, download=False)
            for name in spec.ood
            if container_paths(name)
        }
    except (DataError, OSError):
        return {}
    return data_checksums(splits, ood)


def changed_parts(recorded: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The parts that both know and that differ, as words.

    >>> changed_parts({"train": "a", "test": "b", "ood/svhn": "c"}, {"train": "a", "test": "x", "ood/svhn": "y"})
    ['the test images', 'the images of svhn']
    """
    changed = [part for part, checksum in recorded.items() if found.get(part, checksum) != checksum]
    return [_IN_WORDS.get(part, f"the images of {part.removeprefix(_OOD)}") for part in sorted(changed, key=_place)]


def _place(part: str) -> int:
    """Training before test before OOD sets; a record has them by name."""
    return list(_IN_WORDS).index(part) if part in _IN_WORDS else len(_IN_WORDS)


def check_same_data(records: Iterable[Record], found: Mapping[str, str], store: Path) -> None:
    """Raise `DataError` if a record that would be used was made from other images than the current ones.

    Args:
        records: the records, from `store`.
        found: checksums of the current images.
        store: the folder of the records, for the message.
    """
    for record in records:
        changed = changed_parts(record.result.data, found)
        if changed:
            from gence.lab.data import DataError

            raise DataError(
                f"{record.spec.data} has changed since the run {record.key} in {store} was recorded ("
                f"{' and '.join(changed)} differ); results on different images cannot be compared. "
                "Name another folder (--store, or --out for a comparison), or remove the old records"
            )


def check_recorded_data(specs: Iterable[RunSpec], store: Store, cache_dir: Path | None = None) -> None:
    """Raise `DataError` if one of these runs is recorded, and was made from other images than the current ones.

    Args:
        specs: the runs, recorded or not.
        store: where the records are.
        cache_dir: where decoded images are kept.
    """
    # One record of each source is enough, and ten thousand would take a second: none is added that differs from it.
    checked: set[tuple[str, int | None, tuple[str, ...]]] = set()
    present = store.keys()
    for spec in specs:
        images = (spec.data, spec.image_size, spec.ood)
        if images not in checked and spec.key in present and recorded_checksums(store.line(spec.key)):
            checked.add(images)
            check_same_data([store.read(spec.key)], checksums_at_hand(spec, cache_dir), store.root)
