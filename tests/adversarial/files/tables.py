"""Tables: CSV, Parquet, Arrow and .npz that are damaged, ragged, enormous by their own words, or pickles."""

from __future__ import annotations

import functools
import io
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gence.lab.data import check, load_rows, read_one
from tests.adversarial.files.harm import Touch, damaged, kept_in, refused, zipped


@functools.cache
def _sound_tables() -> dict[str, bytes]:
    import pandas as pd

    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"a": draw.normal(size=40).round(3), "b": draw.integers(0, 9, 40), "label": ["x", "y"] * 20})
    made = {"t.csv": frame.to_csv(index=False).encode(), "t.tsv": frame.to_csv(index=False, sep="\t").encode()}
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    made["t.parquet"] = buffer.getvalue()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, X=draw.normal(size=(40, 3)).astype("float32"), y=np.array(["x", "y"] * 20))
    made["t.npz"] = buffer.getvalue()
    buffer = io.BytesIO()
    frame.to_feather(buffer)
    made["t.arrow"] = buffer.getvalue()
    return made


def _npz(**members: bytes) -> bytes:
    return zipped({f"{name}.npy": data for name, data in members.items()})


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _npy_header(text: str, body: bytes = b"") -> bytes:
    head = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def hostile_table(rng: random.Random) -> tuple[str, str, bytes]:
    """What calls itself a table: pickles, claims of enormous arrays, ragged or binary text."""
    labels = _npy(np.array(["x", "y"] * 20))
    trap = np.empty(1, dtype=object)
    trap[0] = Touch()
    header = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"
    csv = _sound_tables()["t.csv"]
    kinds: dict[str, tuple[str, Callable[[], bytes]]] = {
        "pickled X": ("t.npz", lambda: _npz(X=_npy(trap), y=labels)),
        "pickled y": ("t.npz", lambda: _npz(X=_npy(np.zeros((40, 2))), y=_npy(trap))),
        "bare pickle": ("t.npz", lambda: pickle.dumps(Touch())),
        "huge shape": (
            "t.npz",
            lambda: _npz(
                X=_npy_header(
                    header
                    % (
                        "<f4",
                        rng.choice(
                            ("(10**12, 9)", "(1000000000000, 9)", "(-1, 3)", "(40,)", "()", "(99999999999999999999, 1)")
                        ),
                    )
                ),
                y=labels,
            ),
        ),
        "odd type": (
            "t.npz",
            lambda: _npz(
                X=_npy_header(
                    header % (rng.choice(("|O", "<c8", "<U9", "|V8", "<M8[s]", "<f2", "evil", "|b1")), "(40, 2)"),
                    bytes(40 * 2 * 36),
                ),
                y=labels,
            ),
        ),
        "code in a header": (
            "t.npz",
            lambda: _npz(X=_npy_header("__import__('os').system('touch /tmp/attack-was-here')"), y=labels),
        ),
        "not finite": ("t.npz", lambda: _npz(X=_npy(np.full((40, 2), rng.choice((np.nan, np.inf, 1e300)))), y=labels)),
        "deep header": ("t.npz", lambda: _npz(X=_npy_header("(" * 5000), y=labels)),
        "NUL": ("t.csv", lambda: csv.replace(b"x", b"\0", 3)),
        "UTF-16": ("t.csv", lambda: csv.decode().encode("utf-16")),
        "half UTF-16": ("t.csv", lambda: csv.decode().encode("utf-16")[:-1]),
        "Latin-1": ("t.csv", lambda: csv.replace(b"x", b"\xe9", 3)),
        "ragged": ("t.csv", lambda: csv + b"1,2\n"),
        "quotes": ("t.csv", lambda: csv + b'"1,2,x\n'),
        "wide": (
            "t.csv",
            lambda: (",".join(f"c{i}" for i in range(3000)) + ",label\n" + ",".join("1" * 3000) + ",x\n").encode(),
        ),
        "twice": ("t.csv", lambda: csv.replace(b"a,b", b"a,a", 1)),
        "empty names": ("t.csv", lambda: csv.replace(b"a,b", b",", 1)),
        "no rows": ("t.csv", lambda: b"a,b,label\n"),
        "only newlines": ("t.csv", lambda: b"\n" * 500),
        "formulas": ("t.csv", lambda: csv.replace(b"a,", b"=HYPERLINK(1),", 1).replace(b"x", b"=1+1")),
        "long cell": ("t.csv", lambda: csv + b'1,2,"' + b"y" * 300_000 + b'"\n'),
        "numbers": ("t.csv", lambda: csv.replace(b"\n", b"\n1e999,99999999999999999999999,x\n", 3)),
        "CR": ("t.csv", lambda: csv.replace(b"\n", b"\r")),
    }
    kind = rng.choice(list(kinds))
    name, make = kinds[kind]
    return kind, name, make()


def table_case(rng: random.Random, place: Path) -> str:
    """A table that is damaged or hostile: refused by name, or read and finite."""
    if rng.random() < 0.5:
        kind, name, data = hostile_table(rng)
    else:
        name = rng.choice(list(_sound_tables()))
        kind, data = "damaged", damaged(rng, _sound_tables()[name])[1]
    path = place / name
    path.write_bytes(data)
    with kept_in(place):
        found = refused(lambda: load_rows(str(path)), name)
        refused(lambda: read_one(data, str(path), []), name)
        if rng.random() < 0.5:
            report = refused(lambda: check(str(path)), name)
            assert report is None or report.problems or found is not None, f"{kind}: refused, and check finds nothing"
    if kind.startswith(("pickled", "bare", "code", "half", "ragged", "quotes", "Latin")):
        assert found is None, f"{kind} was read"
    if found is not None:
        assert len(found.train) + len(found.test) <= 2 * 40 + 3
        content = found.train.content
        if isinstance(content, torch.Tensor):
            assert bool(content.isfinite().all())
    return f"{name.rpartition('.')[2]} {kind}: {'refused' if found is None else 'read'}"
