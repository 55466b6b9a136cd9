"""Saved models, checkpoints and cached files whose bytes, tensors or notes were changed by hand."""

from __future__ import annotations

import functools
import json
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from gence.lab.data import load
from gence.lab.spec import RunSpec
from gence.lab.store import RunResult, StoreError
from gence.lab.train import is_row_model, load_model, load_row_model, train_cohort
from tests.adversarial.files.harm import damaged, kept_in, refused
from tests.adversarial.process import workshop

DOCUMENTED = (ValueError, FileNotFoundError, StoreError)
_EVIL = (
    "own:os:abort",
    "own:antigravity:x",
    "own:evil:make",
    "timm:hf-hub:evil/x",
    "timm:../../x",
    "hf:evil/evil",
    "../../../etc/passwd",
    "linear@efficientnet_lite0",
    "\0",
    "x" * 10_000,
    "=1+1",
    "http://127.0.0.1:9/x",
    "__import__('os')",
    "vgg19",
    "timm:resnet18",
    "",
)


def model_case(rng: random.Random, place: Path) -> str:
    """A saved model, cache or checkpoint, changed: it computes what it did, or is refused by name, or rebuilt."""
    kind = rng.choice(("model",) * 5 + ("rows",) * 4 + ("images cache",) * 2 + ("checkpoint",))
    if kind == "checkpoint":
        return _checkpoint_case(rng, place)
    if kind == "images cache":
        return _cache_case(rng, place)
    name = "model.safetensors" if kind == "model" else "rows.safetensors"
    path = Path(shutil.copy(workshop() / name, place / name))
    before = _predicted(path)
    how = _changed(rng, path)
    with kept_in(place):
        found = refused(lambda: _predicted(path), str(path) if how != "values" else "", DOCUMENTED)
    if found is not None:
        assert found.shape[1] >= 1
        assert bool(found.isfinite().all()), f"{how}: probabilities that are no numbers"
        if how.startswith(("bytes", "padding")):
            torch.testing.assert_close(found, before, rtol=0, atol=0, msg=f"{how} changed predictions unnoticed")
    return f"{kind}, {how.split(':')[0]}: {'refused' if found is None else 'read'}"


def _predicted(path: Path) -> Tensor:
    """Probabilities for a few inputs of the model's own form; nothing is cached."""
    draw = torch.Generator().manual_seed(0)
    if is_row_model(path):
        import pandas as pd

        rows = load_row_model(path)
        frame = pd.read_csv(workshop() / "rows.csv", dtype=str).head(5).drop(columns="label")
        return rows.probabilities(frame)
    model = load_model(path, "cpu")
    if max(model.image_shape) > 512:  # a convolutional network takes any size: the memory would be this input's
        return torch.full((1, len(model.classes)), 1 / len(model.classes))
    return model.probabilities(torch.randint(0, 256, (3, *model.image_shape), generator=draw, dtype=torch.uint8))


def _changed(rng: random.Random, path: Path) -> str:
    """Change a file; return how."""
    data = path.read_bytes()
    how = rng.choice(
        ("bytes", "bytes", "bytes", "header", "header bytes", "notes", "notes", "notes", "tensors", "tensors", "values")
    )
    if how == "bytes":
        path.write_bytes(damaged(rng, data)[1])
        return how
    length = int.from_bytes(data[:8], "little")
    if how == "header":
        header = json.loads(data[8 : 8 + length])
        path.write_bytes(_hostile_header(rng, header, data[8 + length :]))
        return how
    if how == "header bytes":
        path.write_bytes(data[:8] + damaged(rng, data[8 : 8 + length])[1] + data[8 + length :])
        return how
    tensors = load_file(path)
    with safe_open(str(path), "pt") as file:
        notes = dict(file.metadata())
    if how == "notes":
        how = f"notes: {_other_notes(rng, notes)}"
    elif how == "tensors":
        how = f"tensors: {_other_tensors(rng, tensors)}"
    else:
        name = rng.choice(sorted(tensors))
        if tensors[name].is_floating_point():
            tensors[name] = torch.full_like(tensors[name], rng.choice((float("nan"), float("inf"), 1e30, 0.0)))
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, path, metadata=_signed(rng, tensors, notes)
    )
    return how


def _signed(rng: random.Random, tensors: dict[str, Tensor], notes: dict[str, str]) -> dict[str, str]:
    """The notes as written by somebody who can compute the checksum, or leaves it out as old versions did."""
    notes = {name: text for name, text in notes.items() if name != "crc32"}
    if rng.random() < 0.5:
        return notes
    found = zlib.crc32(json.dumps(sorted(notes.items())).encode())
    for name, value in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), found)
        found = zlib.crc32(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), found)
    return {**notes, "crc32": f"{found:08x}"}


def _hostile_header(rng: random.Random, header: dict[str, Any], body: bytes) -> bytes:
    """A header that claims what cannot be: lengths, offsets, types, depths."""
    name = rng.choice([key for key in header if key != "__metadata__"])
    kind = rng.randrange(8)
    if kind == 0:
        header[name]["shape"] = rng.choice(([2**40], [-1], [2**62, 4], ["x"], [0], [[1]]))
    elif kind == 1:
        header[name]["data_offsets"] = rng.choice(([0, 2**60], [5, 1], [-4, 4], [0, 0]))
    elif kind == 2:
        header[name]["dtype"] = rng.choice(("F64", "U8", "BOOL", "C64", "evil", 7, "F8_E4M3"))
    elif kind == 3:
        header["__metadata__"] = rng.choice(([], "x", {"spec": 7}, None))
    elif kind == 4:
        text = json.dumps(header).encode()
        return struct.pack("<Q", rng.choice((2**63, 2**64 - 1, 0, len(text) + 10**6, 99_999_999))) + text + body
    elif kind == 5:
        text = b'{"a":' * 20_000
        return struct.pack("<Q", len(text)) + text + body
    elif kind == 6:
        header["../../out"] = header[name]
    else:
        text = json.dumps(header)[:-1] + ',"__metadata__":{"spec":"x"}}'
        return struct.pack("<Q", len(text)) + text.encode() + body
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _other_notes(rng: random.Random, notes: dict[str, str]) -> str:
    """Other notes: none, no JSON, other types, specs and shapes that ask for what is not there or far too much."""
    name = rng.choice(sorted(notes))
    kind = rng.choice(("gone", "no JSON", "other JSON", "spec", "spec", "shape", "classes"))
    if kind == "gone":
        del notes[name]
    elif kind == "no JSON":
        notes[name] = rng.choice(("", "{", "\0", "x" * 100_000, "[" * 5000))
    elif kind == "other JSON":
        notes[name] = rng.choice(("null", "[]", "{}", "7", "-1", '"x"', "[1,2]", "1e999", "NaN", "true", '{"a":{}}'))
    elif kind == "spec" and "spec" in notes:
        spec = json.loads(notes["spec"])
        field = rng.choice(sorted(spec))
        if isinstance(spec[field], dict) and spec[field]:
            inner = rng.choice(sorted(spec[field]))
            spec[field][inner] = rng.choice((None, -1, 1e308, "x", [], 10**30, *_EVIL))
        else:
            spec[field] = rng.choice((None, -1, [], {}, 10**30, *_EVIL))
        notes["spec"] = json.dumps(spec)
        kind = f"spec.{field}"
    elif kind == "shape" and "image_shape" in notes:
        shapes = (
            [1, 3000, 3000],
            [3, 10**6, 10**6],
            [0, 8, 8],
            [1, -8, 8],
            [1, 8],
            [2, 8, 8],
            ["1", 8, 8],
            [1, 8.5, 8],
            [1, 1e400, 8],
            [1, 2**70, 8],
            [True, 8, 8],
            [1, 8, 9],
        )
        notes["image_shape"] = json.dumps(rng.choice(shapes))
    else:
        notes["classes"] = json.dumps(
            rng.choice(([], ["a"], ["a", "a"], ["a", 7], "ab", {"a": 1}, ["x"] * 100_000, None, [["a"], ["b"]]))
        )
    return kind


def _other_tensors(rng: random.Random, tensors: dict[str, Tensor]) -> str:
    """Other tensors: gone, of another shape or type, under another name, and more of them."""
    name = rng.choice(sorted(tensors))
    kind = rng.choice(("gone", "shape", "type", "name", "more", "empty", "scalar"))
    value = tensors[name]
    if kind == "gone":
        del tensors[name]
    elif kind == "shape":
        tensors[name] = torch.cat([value.reshape(-1)] * 2)
    elif kind == "type":
        tensors[name] = value.to(rng.choice((torch.int64, torch.uint8, torch.float16, torch.float64, torch.bool)))
    elif kind == "name":
        tensors[rng.choice(("../x", "model/evil", "offset", "mean", "run0/x"))] = tensors.pop(name)
    elif kind == "more":
        tensors[rng.choice(("offset", "model/x", "calibration/x", "detectors/x"))] = torch.ones(3)
    else:
        tensors[name] = torch.zeros(0) if kind == "empty" else torch.tensor(1.0)
    return kind


# Files that are made anew where they cannot be used.


def _cache_case(rng: random.Random, place: Path) -> str:
    """Decoded images in the cache: what is damaged there is decoded again, and the images are the same."""
    photos = shutil.copytree(workshop() / "photos", place / "photos")
    cache = place / "cache"
    true = load(photos, cache_dir=cache)
    (path,) = cache.rglob("*.safetensors")
    how = _changed_cache(rng, path)
    found = load(photos, cache_dir=cache)
    for one, other in ((found.train, true.train), (found.test, true.test)):
        assert one.classes == other.classes
        assert torch.equal(one.images, other.images), how
        assert torch.equal(one.labels, other.labels), how
    return f"images cache, {how}"


def _changed_cache(rng: random.Random, path: Path) -> str:
    data = path.read_bytes()
    if rng.random() < 0.6:
        path.write_bytes(damaged(rng, data)[1])
        return "bytes"
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.5:
        path.write_bytes(_hostile_header(rng, json.loads(data[8 : 8 + length]), data[8 + length :]))
        return "header"
    tensors = load_file(path)
    notes = {
        "gence": rng.choice(("", "{}", "[]", "null", "7", '{"train": 7}', '{"train": {"classes": 7}}', "[" * 5000))
    }
    save_file(tensors, path, metadata=notes if rng.random() < 0.8 else None)
    return "notes"


@functools.cache
def _trained() -> tuple[RunSpec, bytes, str, RunResult]:
    """A run, its checkpoint after the first epoch with its name, and what the whole of it gives."""
    spec = RunSpec.from_dict(
        {"data": str(workshop() / "photos"), "subset": None, "model": "mlp", "loss": "ce", "recipe": "tiny", "seed": 0}
    )
    spec = spec.replace(recipe=spec.recipe.replace(epochs=3, batch_size=8, warmup_epochs=0))
    with tempfile.TemporaryDirectory(prefix="attack-checkpoint-") as folder:
        epochs: list[Any] = []
        done = train_cohort(
            [spec], device="cpu", workdir=Path(folder), on_epoch=epochs.append, should_stop=lambda: bool(epochs)
        )
        assert done == [None]
        (path,) = Path(folder).glob("*.safetensors")
        saved, name = path.read_bytes(), path.name
    (result,) = train_cohort([spec], device="cpu")
    assert result is not None
    return spec, saved, name, result


def _checkpoint_case(rng: random.Random, place: Path) -> str:
    """A checkpoint: one that is damaged is not gone on from, and the run ends as it would have."""
    spec, saved, name, true = _trained()
    work = place / "work"
    work.mkdir()
    path = work / name
    path.write_bytes(saved)
    how = rng.choice(("bytes", "header", "notes", "tensors"))
    length = int.from_bytes(saved[:8], "little")
    if how == "bytes":
        path.write_bytes(damaged(rng, saved)[1])
    elif how == "header":
        path.write_bytes(_hostile_header(rng, json.loads(saved[8 : 8 + length]), saved[8 + length :]))
    else:
        tensors = load_file(path)
        with safe_open(str(path), "pt") as file:
            notes = dict(file.metadata())
        if how == "notes":
            changed = rng.choice(sorted(notes))
            notes[changed] = rng.choice(("", "x", "{", "null", "[]", "nan", "-1", "99"))
            if changed in ("epoch", "elapsed_s"):
                notes["crc32"] = "00000000"  # else a checkpoint of somebody else's making, which is believed
        else:
            _other_tensors(rng, tensors)
        save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata=notes)
    (result,) = train_cohort([spec], device="cpu", workdir=work)
    assert result is not None
    np.testing.assert_equal(result.metrics, true.metrics)
    np.testing.assert_equal(result.curves, true.curves)
    return f"checkpoint, {how}"


Changes = Callable[[random.Random, Path], str]
