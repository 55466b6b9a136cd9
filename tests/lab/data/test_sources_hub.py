"""Hugging Face data sets, from folders on this machine in the hub's own formats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gence.lab.data import (
    DataError,
    NotAtHandError,
    is_table,
    load,
    load_images,
    load_ood_rows,
    load_rows,
    with_columns,
)

from .conftest import digit_files, digit_pixels, write_folder

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    datasets.disable_progress_bars()


def save_parquet(folder: Path, per_split: dict[str, int]) -> None:
    pixels = digit_pixels(max(per_split.values()))
    for split, count in per_split.items():
        rows = [(image, k) for k, images in enumerate(pixels.values()) for image in images[:count]]
        features = datasets.Features(
            {"img": datasets.Image(), "label": datasets.ClassLabel(names=list(pixels)), "other": datasets.ClassLabel(3)}
        )
        table = {
            "img": [{"bytes": png, "path": None} for png in digit_files(count).values()],
            "label": [k for _, k in rows],
            "other": [2 - k for _, k in rows],
        }
        folder.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(table, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")


def test_parquet(tmp_path: Path) -> None:
    save_parquet(tmp_path / "set" / "data", {"train": 4, "test": 2})
    splits = load(f"hf:{tmp_path / 'set'}")
    assert (len(splits.train), len(splits.test)) == (12, 6)
    assert splits.classes == ("digit0", "digit1", "digit2")
    assert splits.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    expected = torch.stack([torch.from_numpy(p) for images in digit_pixels(4).values() for p in images])
    torch.testing.assert_close(splits.train.images[:, 0], expected, rtol=0, atol=0)
    other = load_images(f"hf:{tmp_path / 'set'}#other")
    assert other.labels.tolist() == [2, 2, 1, 1, 0, 0]
    with pytest.raises(DataError, match="no ClassLabel column 'wrong'"):
        load(f"hf:{tmp_path / 'set'}#wrong")


def test_without_permission_the_hub_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_parquet(tmp_path / "set" / "data", {"train": 4, "test": 2})
    write_folder(tmp_path / "whole", digit_files(5))
    sources = [f"hf:{tmp_path / 'set'}", f"hf:{tmp_path / 'set'}#other", f"hf:{tmp_path / 'whole'}"]
    expected = [load(source, cache_dir=tmp_path / "cache") for source in sources]

    def asked(*_args: object, **_options: object) -> None:
        raise AssertionError("the library was asked")

    monkeypatch.setattr(datasets, "load_dataset", asked)
    for source, splits in zip(sources, expected, strict=True):
        found = load(source, cache_dir=tmp_path / "cache", download=False)
        assert (found.train.checksum, found.test.checksum) == (splits.train.checksum, splits.test.checksum)
        with pytest.raises(NotAtHandError, match="downloads are off"):
            load(source, image_size=5, cache_dir=tmp_path / "cache", download=False)
        with pytest.raises(NotAtHandError, match="downloads are off"):
            load(source, cache_dir=tmp_path / "empty", download=False)


def test_image_folder_without_test_part(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", digit_files(5))
    splits = load(f"hf:{tmp_path / 'set'}", image_size=6)
    assert (len(splits.train), len(splits.test)) == (12, 3)
    assert splits.train.image_shape == (1, 6, 6)
    assert splits.classes == ("digit0", "digit1", "digit2")


def test_what_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be loaded"):
        load(f"hf:{tmp_path / 'gone'}")


def test_texts_are_read_where_a_column_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENCE_CACHE", str(tmp_path / "cache"))
    features = datasets.Features({"message": datasets.Value("string"), "team": datasets.ClassLabel(names=["b", "a"])})
    for split, count in (("train", 8), ("test", 4)):
        table = {"message": [f"{split} {i}" for i in range(count)], "team": [i % 2 for i in range(count)]}
        folder = tmp_path / "set" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(table, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    plain = f"hf:{tmp_path / 'set'}"
    with pytest.raises(DataError, match="to read it as a table, name a column: --text COLUMN"):
        load(plain)
    source = with_columns(plain, text="message", label="team")
    assert is_table(source)
    with pytest.raises(NotAtHandError, match="downloads are off"):
        load_rows(source, download=False)
    splits = load_rows(source)
    assert (splits.classes, len(splits.train), len(splits.test)) == (("a", "b"), 8, 4)
    assert splits.train.labels.tolist() == [1, 0] * 4
    monkeypatch.setattr(datasets, "load_dataset", None)  # what was kept is not asked for again
    assert load_rows(source, download=False).test.checksum == splits.test.checksum
    assert len(load_ood_rows(plain, splits.columns, splits.width)) == 4


def test_a_hub_out_of_reach_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("gence.lab.data.download.check_hub_is_reachable", unreachable)
    with pytest.raises(DataError, match=r"hf:owner/tickets cannot be loaded: .*the hub cannot be reached from here"):
        load_rows("hf:owner/tickets#text=message&label=team")
