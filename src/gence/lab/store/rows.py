"""The rows of a store's table, from a cache that is made from the records and can be deleted at any time.

Records never change, so a row is good as long as its file's size and time are; ten thousand records are then one file
to read. A cache that cannot be read or written is ignored: the records are the truth.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.spec import RECIPES, SCHEMA_VERSION, LossSpec, canonical_json
from gence.lab.store import files
from gence.lab.store.files import StoreError
from gence.lab.store.record import restored_number, verified_run

if TYPE_CHECKING:
    from gence.lab.store.store import Store

_LAYOUT = 1
_NESTED = ("recipe", "subset")


def cached_rows(store: Store) -> list[dict[str, Any]]:
    """Return one flat row a record, reading only the records that are not in the cache."""
    path = store.root / "cache" / "rows.json"
    old = _load(path)
    loose: dict[str, Any] = {}
    for key, file in store.loose_files():
        stamp = _stamp(file)
        entry = old["loose"].get(key)
        if stamp is None:  # moved into the pack since it was listed; it is read from there below
            continue
        loose[key] = entry if entry is not None and entry[0] == stamp else [stamp, _row(store.line(key), key, store)]
    packed = old["packed"]
    pack_stamp = _stamp(store.pack_path)
    if packed[0] != pack_stamp:
        packed = [pack_stamp, {key: _row(line, key, store) for key, line in store.packed_lines()}]
    new = {"version": _version(), "loose": loose, "packed": packed}
    if new != old:
        _save(path, new)
    rows = {**packed[1], **{key: entry[1] for key, entry in loose.items()}}
    return [{name: restored_number(value) for name, value in row.items()} for row in rows.values()]


def _row(line: bytes, key: str, store: Store) -> dict[str, Any]:
    """Return the scalars of one record, flat."""
    where = f"record {key} in {store.root}"
    _, run = verified_run(line, where)
    spec = run["spec"]
    if spec["schema"] > SCHEMA_VERSION:
        raise StoreError(
            f"{where} has a spec written by a newer version (schema {spec['schema']}, this one reads up to "
            f"{SCHEMA_VERSION}): update gence to read it"
        )
    environment = run["environment"]
    row: dict[str, Any] = {
        "key": key,
        "status": run["status"],
        "data": spec["data"],
        "model": spec["model"],
        "loss": str(LossSpec(**spec["loss"])),
        "recipe": recipe_name(canonical_json(spec["recipe"])),
        "seed": spec["seed"],
        "evaluate_on": spec["evaluate_on"],
        "image_size": spec["image_size"],
        "ood": ",".join(spec["ood"]),
        "loss.name": spec["loss"]["name"],
        **{f"loss.{name}": value for name, value in spec["loss"]["params"].items()},
    }
    for part in _NESTED:
        for name, value in spec[part].items():
            row[f"{part}.{name}"] = ",".join(map(str, value)) if isinstance(value, list) else value
    row |= {
        "device": environment.get("device"),
        "commit": environment.get("commit"),
        "created": run["created"],
        "wall_s": run["wall_s"],
    }
    for name, value in run["metrics"].items():
        row[name if name not in row else f"metrics.{name}"] = value
    return row


@functools.cache
def recipe_name(canonical: str) -> str:
    """Return the name of a recipe, given as canonical JSON, or "custom-" and the beginning of its hash."""
    for name, recipe in RECIPES.items():
        if canonical_json(recipe.to_dict()) == canonical:
            return name
    return f"custom-{hashlib.sha256(canonical.encode()).hexdigest()[:6]}"


def _version() -> str:
    """Return what a cache must say to be used: rows hold recipes' names, so they depend on the recipes."""
    recipes = canonical_json({name: recipe.to_dict() for name, recipe in RECIPES.items()})
    return f"{_LAYOUT}-{hashlib.sha256(recipes.encode()).hexdigest()[:16]}"


def _stamp(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _load(path: Path) -> dict[str, Any]:
    empty: dict[str, Any] = {"version": _version(), "loose": {}, "packed": [None, {}]}
    try:
        cache = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return empty
    return cache if _usable(cache) else empty


def _usable(cache: Any) -> bool:
    """Return whether a cache has this version and the form it is written in."""
    match cache:
        case {"version": version, "loose": dict(loose), "packed": [_, dict(packed)]} if version == _version():
            rows = (*packed.values(), *(entry[1] if _is_pair(entry) else None for entry in loose.values()))
            return all(isinstance(row, dict) for row in rows)
    return False


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2


def _save(path: Path, cache: dict[str, Any]) -> None:
    with contextlib.suppress(StoreError):  # a read-only store is still a store
        files.create_file(path.parent / ".gitignore", b"*\n")
        files.replace_file(path, json.dumps(cache, separators=(",", ":")).encode())
