from __future__ import annotations

import random

import pytest
import torch

from gence.lab.train import checkpoint
from gence.lab.train.checkpoint import CohortCheckpoint, read_tensors, write_tensors
from tests.lab.small_runs import small_spec

TENSORS = [{"a/b": torch.randn(2, 3), "count": torch.tensor([7])}, {"a/b": torch.full((2, 3), torch.nan)}]
SUMS = [[torch.rand(4, dtype=torch.float64) for _ in range(3)] for _ in range(2)]


def test_what_was_saved_comes_back_bit_for_bit(tmp_path):
    place = CohortCheckpoint(tmp_path / "new", [small_spec(), small_spec(seed=1)])
    assert place.load() is None
    place.save(3, 12.5, TENSORS, SUMS)
    saved = place.load()
    assert (saved.epoch, saved.elapsed_s) == (3, 12.5)
    for run, expected in zip(saved.tensors, TENSORS, strict=True):
        assert run.keys() == expected.keys()
        for name, value in run.items():
            torch.testing.assert_close(value, expected[name], atol=0, rtol=0, equal_nan=True)
    for run, expected in zip(saved.sums, SUMS, strict=True):
        torch.testing.assert_close(torch.stack(run), torch.stack(expected), atol=0, rtol=0)
    place.remove()
    place.remove()
    assert place.load() is None


def test_cohorts_have_files_of_their_own(tmp_path):
    one, two = CohortCheckpoint(tmp_path, [small_spec()]), CohortCheckpoint(tmp_path, [small_spec(seed=1)])
    one.save(1, 0.0, TENSORS, SUMS)
    assert two.load() is None


@pytest.mark.parametrize("size", [0, 4, 20, 200])
def test_a_file_that_was_cut_short_is_not_used(tmp_path, size):
    place = CohortCheckpoint(tmp_path, [small_spec()])
    place.save(1, 0.0, TENSORS, SUMS)
    place.path.write_bytes(place.path.read_bytes()[:size])
    assert place.load() is None


@pytest.mark.parametrize("seed", range(20))
def test_a_file_with_flipped_bits_is_begun_anew_and_said(tmp_path, seed, caplog):
    place = CohortCheckpoint(tmp_path, [small_spec()])
    place.save(1, 0.0, TENSORS, SUMS)
    data, draw = bytearray(place.path.read_bytes()), random.Random(seed)
    for _ in range(2):
        data[draw.randrange(8, len(data))] ^= 1 << draw.randrange(8)
    place.path.write_bytes(data)
    assert place.load() is None
    assert "its runs start over" in caplog.text


def test_a_checkpoint_that_cannot_be_read_is_begun_anew(tmp_path, caplog):
    place = CohortCheckpoint(tmp_path, [small_spec()])
    place.path.mkdir()  # what nobody can read as a file, root included
    assert place.load() is None
    assert "its runs start over" in caplog.text


def test_a_file_of_another_version_is_not_used(tmp_path, monkeypatch):
    place = CohortCheckpoint(tmp_path, [small_spec()])
    place.save(1, 0.0, TENSORS, SUMS)
    monkeypatch.setattr(checkpoint, "__version__", "999.0")
    assert place.load() is None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(2)}, {"note": "old"})
    with pytest.raises(TypeError):
        write_tensors(path, {"a": torch.ones(2)}, {"note": 1})
    tensors, notes = read_tensors(path)
    assert notes == {"note": "old"}
    torch.testing.assert_close(tensors["a"], torch.ones(2))
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]
