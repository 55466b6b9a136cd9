"""The record of one run: one line of JSON that carries its own checksum.

    {"key":"0123456789abcdef","checksum":"...",
     "run":{"created":...,"environment":...,"metrics":...,"spec":...,"status":...,"wall_s":...},
     "detail":{"curves":...,"tables":...}}

The checksum covers the key and all bytes after it as they stand, so that a number edited by hand is found without
parsing; and the short part comes first, so that a table of ten thousand runs need not parse their curves. JSON has no
NaN: such numbers are written as strings.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import marshal
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gence.lab.spec import RECIPES, SCHEMA_VERSION, LossSpec, RunSpec, SpecError, canonical_json
from gence.lab.store.files import NewerVersionError, StoreError

if TYPE_CHECKING:
    import numpy as np

STATUSES = ("done", "diverged")
"""How a finished run ended. A diverged run is a result too: it is recorded, not repeated."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What training returns for one run.

    Attributes:
        status: "done" or "diverged" (the loss became infinite or NaN; the metrics are those of that model).
        metrics: flat names to numbers: "accuracy", "nll", "ece", "ood/svhn/auroc_entropy", "offset/accuracy".
        curves: one number per epoch: "epoch", "train_loss", "train_accuracy", "lr", "marginal_kl".
        tables: JSON-ready small tables: "reliability", "marginal", "prior", "confusion", "per_class_accuracy".
        predictions: compact arrays: "label" and "predicted" uint16, "confidence" float16, "index".
        wall_s: seconds this run took (its share of the cohort's).
        data: SHA-256 of the images it was made from: "train", "test", "ood/NAME"; empty where they are not known.
    """

    status: str = "done"
    metrics: dict[str, float]
    curves: dict[str, list[float]] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    predictions: dict[str, np.ndarray] | None = None
    wall_s: float = 0.0
    data: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"RunResult.status is {self.status!r}; expected one of {', '.join(STATUSES)}")


FORMAT_VERSION = 1
"""Rises when a record's body changes its meaning."""

KEY_FORM = re.compile(r"[0-9a-f]{16}")
_HEAD = re.compile(rb'\{"key":"([0-9a-f]{16})","checksum":"([0-9a-f]{64})","run":')
_HEAD_LENGTH = len('{"key":"","checksum":"","run":') + 16 + 64
_TAIL = b"}}"
_CHECKSUMS = re.compile(rb'"data":(\{[^{}]*\})')  # as records are written; a spec's own "data" is a name
_DECODER = json.JSONDecoder()
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Record:
    """A run that was done: its spec, what came out, and where it was made.

    Attributes:
        key: the spec's key.
        spec: the run.
        result: status, metrics, curves and tables; predictions stay in the store until they are asked for.
        environment: versions, commit and device, and under "data" the checksums of the images.
        created: when the record was written, ISO 8601 in UTC.
        predictions: SHA-256 of the predictions file, or None where none was kept.
    """

    key: str
    spec: RunSpec
    result: RunResult
    environment: dict[str, Any]
    created: str
    predictions: str | None

    def row(self) -> dict[str, Any]:
        """Return the scalars of the record, flat; see `Store.frame`."""
        result = self.result
        run = {"status": result.status, "metrics": result.metrics, "wall_s": result.wall_s, "created": self.created}
        return _flat(self.key, {**run, "spec": self.spec.to_dict(), "environment": self.environment})


def encode(spec: RunSpec, result: RunResult, environment: Mapping[str, Any], predictions: str | None) -> bytes:
    """Return the line that records a run, without the newline."""
    run = {
        "format": FORMAT_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "spec": spec.to_dict(),
        "status": result.status,
        "metrics": {name: float(value) for name, value in result.metrics.items()},
        "wall_s": float(result.wall_s),
        "environment": {**environment, **({"data": dict(result.data)} if result.data else {})},
        "predictions": predictions,
    }
    detail = {"curves": {name: list(values) for name, values in result.curves.items()}, "tables": result.tables}
    text = f'{canonical_json(_plain(run))},"detail":{canonical_json(_plain(detail))}'.encode()
    return b'{"key":"%b","checksum":"%b","run":%b}' % (spec.key.encode(), _digest(spec.key, text), text)


def verified_run(line: bytes, where: str) -> tuple[str, dict[str, Any]]:
    """Return the key and the short part of a record (no curves, no tables); raise `StoreError` if it was changed."""
    key, run, _ = _verified(line, where)
    return key, run


def decode(line: bytes, where: str) -> Record:
    """Read a record's line; raise `StoreError` if it was changed, is foreign, or its spec is of a newer version."""
    key, run, rest = _verified(line, where)
    detail = _restored(json.loads(rest))
    result = RunResult(
        status=run["status"],
        metrics=_restored(run["metrics"]),
        curves=detail["curves"],
        tables=detail["tables"],
        wall_s=run["wall_s"],
        data=run["environment"].get("data", {}),
    )
    return Record(
        key=key,
        spec=verified_spec(key, run, where),
        result=result,
        environment=run["environment"],
        created=run["created"],
        predictions=run["predictions"],
    )


def row_of_line(line: bytes, where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what `Record.row` does and the checksums of the images, from a record's line without its curves.

    Raises:
        StoreError: the line was changed.
    """
    key, run, _ = _verified(line, where)
    _check_schema(run, where)
    spec = run["spec"]
    seed, spec["seed"] = spec["seed"], None
    row = _flat_spec(marshal.dumps(spec, 2)).copy()  # of 100,000 runs most differ in seed and numbers alone
    row["key"], row["seed"] = key, seed
    return _with_outcome(row, run), run["environment"].get("data", {})


def _check_schema(run: Mapping[str, Any], where: str) -> None:
    if run["spec"]["schema"] > SCHEMA_VERSION:
        raise NewerVersionError(
            f"{where} has a spec written by a newer version (schema {run['spec']['schema']}, this one reads up to "
            f"{SCHEMA_VERSION}): update gence to read it"
        )


def verified_spec(key: str, run: Mapping[str, Any], where: str) -> RunSpec:
    """Return the spec of a record; raise `StoreError` if it is of a newer version or belongs to another key."""
    _check_schema(run, where)
    try:
        spec = RunSpec.from_dict(run["spec"])
    except SpecError as error:
        raise StoreError(f"{where}: {error}") from error
    if spec.key != key:
        raise StoreError(
            f"{where} is named {key}, but its spec has the key {spec.key}; remove it to train the run again"
        )
    return spec


def key_of_line(line: bytes) -> str | None:
    """Return the key at the beginning of a record's line without reading the rest."""
    match = _HEAD.match(line)
    return match[1].decode() if match else None


def recorded_checksums(line: bytes) -> dict[str, str]:
    """The checksums of a run's images from its record as it is stored, without parsing it: there may be thousands."""
    found = _CHECKSUMS.search(line)
    return json.loads(found[1]) if found else {}


def outcome_of(line: bytes, where: str) -> tuple[str, str]:
    """Return what came out of a run as one canonical string, and when it was recorded: two machines may agree."""
    _, run, detail = _verified(line, where)
    return canonical_json([run["status"], run["metrics"], detail]), run["created"]


def _flat(key: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalars of a record's short part as one flat row."""
    return _with_outcome(_of_spec(key, run["spec"]), run)


@functools.lru_cache(maxsize=1024)
def _flat_spec(marshalled: bytes) -> dict[str, Any]:
    """Return the columns of a spec, as bytes that stand for it."""
    return _of_spec("", marshal.loads(marshalled))


def _of_spec(key: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": key,
        "status": None,
        "data": spec["data"],
        "model": spec["model"],
        "loss": str(LossSpec(**spec["loss"])),
        "recipe": _recipe_name(canonical_json(spec["recipe"])),
        "seed": spec["seed"],
        "evaluate_on": spec["evaluate_on"],
        "image_size": spec["image_size"],
        "ood": ",".join(spec["ood"]),
        "loss.name": spec["loss"]["name"],
        **{f"loss.{name}": value for name, value in sorted(spec["loss"]["params"].items())},
    }
    for part in ("recipe", "subset"):
        for name, value in sorted(spec[part].items()):
            row[f"{part}.{name}"] = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return row


def _with_outcome(row: dict[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    environment = run["environment"]
    row["status"] = run["status"]
    row["device"], row["commit"] = environment.get("device"), environment.get("commit")
    row["created"], row["wall_s"] = run["created"], _restored(run["wall_s"])
    for name, value in run["metrics"].items():
        row[name if name not in row else f"metrics.{name}"] = value if type(value) is float else _restored(value)
    return row


@functools.cache
def _recipe_name(canonical: str) -> str:
    """Return the name of a recipe, given as canonical JSON, or "custom-" and the beginning of its hash."""
    for name, recipe in RECIPES.items():
        if canonical_json(recipe.to_dict()) == canonical:
            return name
    return f"custom-{hashlib.sha256(canonical.encode()).hexdigest()[:6]}"


def check_unchanged(line: bytes, where: str) -> str:
    """Return the key of a record of any version; raise `StoreError` if it was changed after it was written."""
    line = line.rstrip(b"\n")
    match = _HEAD.match(line)
    if match is None or not line.endswith(_TAIL):
        raise StoreError(f"{where} is not a record: it was cut short or reformatted; remove it to train the run again")
    key = match[1].decode()
    if _digest(key, memoryview(line)[match.end() : -1]) != match[2]:
        raise StoreError(
            f"{where} was changed after it was written (its checksum does not match); restore it, or remove it to have "
            "the run redone"
        )
    return key


def _verified(line: bytes, where: str) -> tuple[str, dict[str, Any], str]:
    """Return key, short part and the text of the detail of a record that is as it was written."""
    key = check_unchanged(line, where)
    text = line.rstrip(b"\n").decode()
    run, end = _DECODER.raw_decode(text, _HEAD_LENGTH)
    if run["format"] > FORMAT_VERSION:
        raise NewerVersionError(
            f"{where} was written by a newer version (record format {run['format']}, this one reads up to "
            f"{FORMAT_VERSION}): update gence to read it"
        )
    return key, run, text[end + len(',"detail":') : -1]


def _digest(key: str, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(body)
    return digest.hexdigest().encode()


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
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
