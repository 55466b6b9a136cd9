"""The record of one run: one line of JSON that carries its own checksum.

    {"key":"0123456789abcdef","checksum":"...","body":{"created":...,"curves":...,"environment":...,"metrics":...,
     "predictions":...,"spec":...,"status":...,"tables":...,"wall_s":...}}

The checksum covers the key and the body's bytes as they stand, so that a number edited by hand is found without
parsing, and ten thousand records are checked in seconds. JSON has no NaN: such numbers are written as strings.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gence.experiment.atomic import StoreError
from gence.experiment.fields import SpecError
from gence.experiment.result import RunResult
from gence.experiment.spec import RunSpec, canonical_json

FORMAT_VERSION = 1
"""Rises when a record's body changes its meaning."""

KEY_FORM = re.compile(r"[0-9a-f]{16}")
_HEAD = re.compile(rb'\{"key":"([0-9a-f]{16})","checksum":"([0-9a-f]{64})","body":')
_TAIL = b"}"
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_OUTCOME = ("status", "metrics", "curves", "tables")


@dataclass(frozen=True)
class Record:
    """A run that was done: its spec, what came out, and where it was made.

    Attributes:
        key: the spec's key.
        spec: the run.
        result: status, metrics, curves and tables; predictions stay in the store until they are asked for.
        environment: versions, commit and device.
        created: when the record was written, ISO 8601 in UTC.
        predictions: SHA-256 of the predictions file, or None where none was kept.
    """

    key: str
    spec: RunSpec
    result: RunResult
    environment: dict[str, Any]
    created: str
    predictions: str | None


def encode(spec: RunSpec, result: RunResult, environment: Mapping[str, Any], predictions: str | None) -> bytes:
    """Return the line that records a run, without the newline."""
    body = {
        "format": FORMAT_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "spec": spec.to_dict(),
        "status": result.status,
        "metrics": {name: float(value) for name, value in result.metrics.items()},
        "curves": {name: list(values) for name, values in result.curves.items()},
        "tables": result.tables,
        "wall_s": float(result.wall_s),
        "environment": dict(environment),
        "predictions": predictions,
    }
    text = canonical_json(_plain(body)).encode()
    return b'{"key":"%b","checksum":"%b","body":%b}' % (spec.key.encode(), _digest(spec.key, text), text)


def verified_body(line: bytes, where: str) -> tuple[str, dict[str, Any]]:
    """Return the key and the body of a record's line as parsed JSON, or raise `StoreError` if it was changed."""
    line = line.rstrip(b"\n")
    match = _HEAD.match(line)
    if match is None or not line.endswith(_TAIL):
        raise StoreError(f"{where} is not a record: it was cut short or reformatted; remove it to have the run redone")
    text = line[match.end() : -len(_TAIL)]
    key = match[1].decode()
    if _digest(key, text) != match[2]:
        raise StoreError(
            f"{where} was changed after it was written (its checksum does not match); restore it, or remove it to have "
            "the run redone"
        )
    body = json.loads(text)
    if body["format"] > FORMAT_VERSION:
        raise StoreError(
            f"{where} was written by a newer version (record format {body['format']}, this one reads up to "
            f"{FORMAT_VERSION}): update gence to read it"
        )
    return key, body


def decode(line: bytes, where: str) -> Record:
    """Read a record's line; raise `StoreError` if it was changed, is foreign, or its spec is of a newer version."""
    key, body = verified_body(line, where)
    try:
        spec = RunSpec.from_dict(body["spec"])
    except SpecError as error:
        raise StoreError(f"{where}: {error}") from error
    if spec.key != key:
        raise StoreError(
            f"{where} is named {key}, but its spec has the key {spec.key}; remove it to have the run redone"
        )
    restored = _restored(body)
    result = RunResult(
        status=body["status"],
        metrics=restored["metrics"],
        curves=restored["curves"],
        tables=restored["tables"],
        wall_s=body["wall_s"],
    )
    return Record(
        key=key,
        spec=spec,
        result=result,
        environment=body["environment"],
        created=body["created"],
        predictions=body["predictions"],
    )


def key_of_line(line: bytes) -> str | None:
    """Return the key at the beginning of a record's line without reading the rest."""
    match = _HEAD.match(line)
    return match[1].decode() if match else None


def outcome_of(line: bytes, where: str) -> tuple[str, str]:
    """Return what came out of a run as one canonical string, and when it was recorded: two machines may agree."""
    _, body = verified_body(line, where)
    return canonical_json({name: body[name] for name in _OUTCOME}), body["created"]


def restored_number(value: Any) -> Any:
    """Return a number as it was before it was written: a string stands for NaN or an infinity."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + body).hexdigest().encode()


def _plain(value: Any) -> Any:
    """Return nested values JSON can hold: arrays and NumPy scalars as lists and numbers, NaN as a string."""
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _restored(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return restored_number(value)
