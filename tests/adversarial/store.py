"""Attacks on the store: killed grids, disks that fill, damaged records, odd places and clocks.

What is held against it: after whatever happened a last run ends complete, every record equals that of an undisturbed
run, none is there twice, none is ever replaced, and what is damaged is named by a `StoreError` and never read as sound.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gence.lab.spec import RunSpec
from gence.lab.store import RunResult, Store, StoreError
from gence.lab.sweep import RunReport, run_grid
from tests.adversarial.zygote import Child, zygote
from tests.lab import tiny_trainer

KILLS, DRIVERS = 5, 3
_GRID = "tests.adversarial.store:drive"


def killed_case(rng: random.Random, place: Path) -> str:
    """A grid on one folder, its three drivers killed five times in all; now and then somebody packs and checks."""
    kind = rng.choice(("blobs", "blobs", "digits"))
    engine = "processes" if rng.random() < 0.04 else "local"
    root = place / "store"
    options = {"kind": kind, "engine": engine, "cohort_size": rng.choice((1, 2, 3))}
    longest = 0.35 if kind == "blobs" else 0.8
    seen: dict[str, bytes] = {}
    drivers: list[Child] = []
    kills = 0
    while kills < KILLS:
        while len(drivers) < DRIVERS:
            pause = {"EPOCH_S": str(rng.choice((0.001, 0.003)))}
            drivers.append(zygote().start(_GRID, str(root), options, cwd=place, environment=pause))
        if rng.random() < 0.3:
            drivers.append(zygote().start("tests.adversarial.store:pack", str(root), cwd=place))
        time.sleep(rng.uniform(0, longest))
        victims = drivers if rng.random() < 0.3 else [rng.choice(drivers)]
        for victim in victims[: KILLS - kills]:
            victim.send(signal.SIGKILL)
            if zygote().wait(victim) == -signal.SIGKILL:
                kills += 1
            drivers.remove(victim)
        for child in [child for child in drivers if rng.random() < 0.1]:
            assert zygote().wait(child) in (0, 3), child.errors[-2000:]  # the grid may be done before all the kills
            drivers.remove(child)
        if rng.random() < 0.5:
            _same_as_before(root, seen)
        if root.exists() and not _missing(root, kind):
            root = _begun_anew(root, seen, drivers)
    last = zygote().start(_GRID, str(root), {**options, "engine": "local"}, cwd=place)
    for child in (*drivers, last):
        assert zygote().wait(child) in (0, 3), child.errors[-2000:]
    assert last.code == 0, last.output + last.errors[-2000:]
    _same_as_before(root, seen)
    _complete(root, kind, undisturbed(kind))
    return f"{kind} killed {KILLS} times" + (", processes" if engine == "processes" else "")


def _begun_anew(root: Path, seen: dict[str, bytes], drivers: list[Child]) -> Path:
    """Check a store that is complete before all the kills, and return another place to go on."""
    _same_as_before(root, seen)
    for child in drivers:
        assert zygote().wait(child) in (0, 3), child.errors[-2000:]
    drivers.clear()
    seen.clear()
    return root.with_name(root.name + "-")


def _missing(root: Path, kind: str) -> list[RunSpec]:
    return Store(root).missing(specs_of(kind))


def _same_as_before(root: Path, seen: dict[str, bytes]) -> None:
    """No record is ever replaced; and whatever is there is sound, while others write."""
    if not root.exists():
        return
    store = Store(root)
    found = {key: store.line(key) for key in sorted(store.keys())}
    assert seen.items() <= found.items(), "a record was replaced or lost"
    seen.update(found)
    report = store.check()
    assert report.ok, report.problems


def _complete(root: Path, kind: str, truth_at: Path) -> None:
    """The store has what an undisturbed grid has: no more, no less, nothing twice."""
    store = Store(root)
    report = store.check(remove_leftovers=True)
    assert report.ok, report.problems
    names = [path.stem for path in (root / "records").rglob("*.json")] if (root / "records").exists() else []
    packed = store.pack_path.read_bytes().count(b"\n") if store.pack_path.exists() else 0
    wanted = specs_of(kind)
    assert store.keys() == {spec.key for spec in wanted}
    assert len(names) == len(set(names))
    assert packed <= len(wanted)
    assert report.sound == len(wanted)
    assert not report.notes, report.notes
    truth = true_runs(truth_at)
    for spec in wanted:
        same_result(store.read(spec.key).result, truth[spec.key][0])
        same_arrays(store.predictions(spec.key), truth[spec.key][1])
    assert not list((root / "failures").glob("*.json")), "a kill is no failure of the run"
    assert not list((root / "claims").glob("*.claim")) or _all_dead(root), "the last driver holds nothing"
    assert not [path for path in root.rglob(".writing-*") if path.exists()], "leftovers were removed"


def _all_dead(root: Path) -> bool:
    for path in (root / "claims").glob("*.claim"):
        with contextlib.suppress(ValueError, OSError):
            os.kill(json.loads(path.read_bytes())["pid"], 0)
            return False
    return True


def same_result(one: RunResult, other: RunResult) -> None:
    """All that a run computed is equal to the last bit; only its time may differ."""
    assert one.status == other.status
    np.testing.assert_equal(one.metrics, other.metrics)
    np.testing.assert_equal(one.curves, other.curves)
    np.testing.assert_equal(one.tables, other.tables)


def same_arrays(one: dict[str, Any] | None, other: dict[str, Any] | None) -> None:
    """Predictions are equal, bytes and all."""
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert {name: array.tobytes() for name, array in one.items()} == {
            name: array.tobytes() for name, array in other.items()
        }


def specs_of(kind: str) -> list[RunSpec]:
    """A grid of twelve runs of a regression in NumPy, or of four small networks on the digits."""
    if kind == "blobs":
        return tiny_trainer.make_specs(6)
    from gence.lab.spec import LossSpec, named_recipe

    recipe = named_recipe("tiny").replace(epochs=3, batch_size=20, warmup_epochs=0)
    base = {"data": "digits", "model": "mlp", "recipe": recipe, "subset": {"n": 40}}
    return [
        RunSpec.from_dict(
            {"data": "digits", "subset": 40, "model": "mlp", "loss": "ce", "recipe": "tiny", "seed": seed}
        ).replace(loss=LossSpec.parse(loss), recipe=base["recipe"])
        for loss in ("ce", "gence(anchor=0.1)")
        for seed in range(2)
    ]


@functools.cache
def undisturbed(kind: str) -> Path:
    """A store of what each run gives when nobody disturbs it."""
    folder = Path(tempfile.mkdtemp(prefix="attack-undisturbed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    child = zygote().run(_GRID, str(folder / "store"), {"kind": kind}, cwd=folder)
    assert child.code == 0, child.errors
    return folder / "store"


@functools.cache
def true_runs(root: Path) -> dict[str, tuple[RunResult, dict[str, Any] | None]]:
    """What lies in a store, by key."""
    store = Store(root)
    return {key: (store.read(key).result, store.predictions(key)) for key in sorted(store.keys())}


def grid(root: Path, kind: str = "blobs", **options: Any) -> RunReport:
    """Do the missing runs of a grid, without a bar."""
    trainer = {} if kind == "digits" else {"trainer": tiny_trainer.train}
    return run_grid(specs_of(kind), root, device="cpu", on_progress=lambda _: None, **trainer, **options)


def drive(root: str, options: dict[str, Any]) -> None:
    """In a child: do the grid, and say how it ended."""
    if options.get("engine") == "processes":
        from gence.lab.sweep import create_engine

        options = {**options, "engine": create_engine("processes", workers=2)}
    report = grid(Path(root), **options)
    assert not report.failed, report.failed
    sys.exit(0 if report.complete else 3)


def pack(root: str) -> None:
    """In a child: pack the store now and then, while others write."""
    for _ in range(8):
        if Path(root).exists():
            Store(root).pack()
        time.sleep(0.05)


def full_disk_case(rng: random.Random, place: Path) -> str:
    """A disk that fills at a random size, is made larger, and read-only in the end; nothing is lost."""
    disk = place / "disk"
    disk.mkdir()
    kind = rng.choice(("blobs", "blobs", "digits"))
    size = rng.randrange(8, 160)
    child = zygote().run(
        "tests.adversarial.store:on_small_disk", str(disk), kind, size, str(undisturbed(kind)), cwd=place
    )
    if child.code == 77:
        return "mounting is not permitted here"
    assert child.code == 0, child.output + child.errors[-3000:]
    return child.output.split()[-1]


def on_small_disk(disk: str, kind: str, size: int, truth_at: str) -> None:
    """In a child: the grid on a disk of some kilobytes, then on one large enough, then on one that is read-only."""
    if not _own_mounts() or not _mount(disk, f"size={size}k"):
        sys.exit(77)
    root = Path(disk) / "store"
    seen: dict[str, bytes] = {}
    filled = False
    for room in (size, size + 40):
        try:
            _mount(disk, f"size={room}k", remount=True)
            grid(root, kind)
        except StoreError as error:
            filled = True
            assert "no space left" in str(error), str(error)
            assert str(disk) in str(error), str(error)
        if root.exists():
            assert not list(root.rglob(".writing-*")), "unfinished files"
            _same_as_before(root, seen)
    assert _mount(disk, "size=20m", remount=True)
    assert grid(root, kind).complete
    _same_as_before(root, seen)
    _complete(root, kind, Path(truth_at))
    assert _mount(disk, "", remount=True, read_only=True)
    try:
        grid(root, kind)
    except StoreError as error:
        assert "Read-only file system" in str(error), str(error)
    else:
        raise AssertionError("a read-only disk was written")
    _same_as_before(root, seen)
    print("filled" if filled else "large-enough")


def _own_mounts() -> bool:
    """Give this process mounts of its own; as a user without rights by way of a user namespace."""
    new_mounts, new_user = 0x00020000, 0x10000000
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(new_mounts if user == 0 else new_mounts | new_user):
        return False
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    private, recursive = 1 << 18, 1 << 14
    return libc.mount(None, b"/", None, private | recursive, None) == 0


def _mount(disk: str, options: str, *, remount: bool = False, read_only: bool = False) -> bool:
    flags = (32 if remount else 0) | (1 if read_only else 0)
    return ctypes.CDLL(None, use_errno=True).mount(b"tmpfs", os.fsencode(disk), b"tmpfs", flags, options.encode()) == 0


# Damaged records.


@functools.cache
def _template() -> Path:
    """A store of the twelve runs, made once."""
    folder = Path(tempfile.mkdtemp(prefix="attack-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ.pop("EPOCH_S", None)
    assert grid(folder / "store").complete
    return folder / "store"


def _one_of(rng: random.Random, found: list[Path]) -> Path:
    return rng.choice(sorted(found))


def _flip(rng: random.Random, store: Path, files: list[Path]) -> None:
    path = _one_of(rng, files)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _truncate(rng: random.Random, store: Path, files: list[Path]) -> None:
    path = _one_of(rng, files)
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _grow(rng: random.Random, store: Path, files: list[Path]) -> None:
    path = _one_of(rng, files)
    data = path.read_bytes()
    at = rng.randrange(len(data) + 1)
    more = rng.choice((b"\n", b"\0", b"}", rng.randbytes(5), data[: rng.randrange(1, len(data))], b'{"key":"'))
    path.write_bytes(data[:at] + more + data[at:])


def _rename(rng: random.Random, store: Path, files: list[Path]) -> None:
    path = _one_of(rng, files)
    key = f"{rng.getrandbits(64):016x}"
    name = rng.choice(
        (f"{key}.json", "x.json", f"{path.stem.upper()}.json", f"{path.name}.bak", "=cmd.json", "a\nb.json")
    )
    path.rename(path.with_name(name))


def _copy(rng: random.Random, store: Path, files: list[Path]) -> None:
    """One file's bytes under another's name, or beside it."""
    source, target = _one_of(rng, files), _one_of(rng, files)
    if rng.random() < 0.5:
        target = target.with_name(f"{rng.getrandbits(64):016x}{target.suffix}")
    target.write_bytes(source.read_bytes())


def _lines(rng: random.Random, store: Path, files: list[Path]) -> None:
    """A pack whose lines are swapped, doubled, joined or edited; made of the loose records where there is none."""
    pack = store / "records.jsonl"
    lines = (
        pack.read_bytes().splitlines()
        if pack.exists()
        else [p.read_bytes().rstrip() for p in files if p.suffix == ".json"]
    )
    if not lines:
        return _flip(rng, store, files)
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        lines.insert(at, lines[other])
    elif kind == 1:
        lines[at] += lines[other]
    elif kind == 2:
        lines[at] = lines[at].replace(b'"seed":', b'"seed":1', 1)
    elif kind == 3:
        lines.insert(at, rng.choice((b"", b"{}", b"null", b"\xff\xfe", b"[" * 2000)))
    else:
        lines[at] = lines[at].replace(b"accuracy", b"accuracz", 1)
    return (pack.write_bytes(b"\n".join(lines) + b"\n"), None)[1]


def _specials(rng: random.Random, store: Path, files: list[Path]) -> None:
    """A folder, a link to nowhere or to itself, an empty file in a record's place."""
    path = _one_of(rng, files)
    path.unlink()
    kind = rng.randrange(4)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to("nowhere")
    elif kind == 2:
        path.symlink_to(path.name)
    else:
        path.write_bytes(b"")


DAMAGE: tuple[Callable[[random.Random, Path, list[Path]], None], ...] = (
    _flip,
    _flip,
    _truncate,
    _grow,
    _rename,
    _copy,
    _lines,
    _lines,
    _specials,
)


def record_case(rng: random.Random, place: Path) -> str:
    """A store with one or two kinds of damage: every way to read it gives what was written, or a `StoreError`."""
    store = place / "store"
    shutil.copytree(_template(), store)
    form = rng.choice(("loose", "packed", "mixed"))
    if form != "loose":
        Store(store).pack()
        if form == "mixed":
            for path in [path for path in sorted((_template() / "records").rglob("*.json")) if rng.random() < 0.5]:
                target = store / path.relative_to(_template())
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    did = []
    for _ in range(rng.choice((1, 1, 2))):
        files = [
            path
            for path in [*(store / "records").rglob("*.json"), *(store / "predictions").rglob("*.npz")]
            if path.is_file()
        ]
        files += [store / "records.jsonl"] * (6 if (store / "records.jsonl").exists() else 0)
        damage = rng.choice(DAMAGE)
        if files:
            damage(rng, store, files)
            did.append(damage.__name__.lstrip("_"))
    _readers_tell_the_truth(rng, store)
    return f"{form}: {did[0] if did else 'nothing'}"


def _readers_tell_the_truth(rng: random.Random, root: Path) -> None:
    truth = true_runs(undisturbed("blobs"))
    store = Store(root)
    try:
        report, keys = store.check(), store.keys()
    except StoreError as error:  # nothing can be read, where a folder or a link lies in the pack's place
        assert "records.jsonl" in str(error)
        return
    sound = 0
    for key in sorted(keys):
        try:
            found = store.read(key)
        except StoreError:
            assert not report.ok, "check finds nothing where reading fails"
            continue
        assert key in truth, "a run that never was is read"
        same_result(found.result, truth[key][0])
        sound += 1
        try:
            arrays = store.predictions(key)
        except StoreError:
            assert not report.ok
        else:
            if arrays is not None:
                same_arrays(arrays, truth[key][1])
    if report.ok:
        assert sound == len(keys) == report.sound
    with contextlib.suppress(StoreError):
        for row in store.frame().to_dict("records"):
            for name in ("accuracy", "nll"):
                assert row[name] == truth[row["key"]][0].metrics[name]
    merged = Store(root.with_name("merged"))
    merged.merge(store)
    assert not (problems := merged.check().problems), f"merging takes over what is damaged: {problems}"
    before = {key: merged.line(key) for key in sorted(merged.keys())}
    again = merged.merge(Store(_template()))
    assert not again.conflicts
    assert len(merged.keys()) == len(truth)
    assert before.items() <= {key: merged.line(key) for key in sorted(merged.keys())}.items()
    if rng.random() < 0.5:
        with contextlib.suppress(StoreError):
            store.pack()
        after = Store(root).keys()
        assert after >= keys, "packing loses a record"
    if rng.random() < 0.3:
        report = grid(root)
        assert not report.left
        assert not report.failed
        assert set(report.done).isdisjoint(report.unreadable)
        readable = {spec.key for spec in specs_of("blobs")} - report.unreadable.keys()
        for key in readable:
            same_result(Store(root).read(key).result, truth[key][0])


# Odd places and clocks.

_ODD = (
    "with space",
    "new\nline",
    "tab\t",
    "ünïcødé 漢字",
    "quote'\"s",
    "per%cent %s %(x)s",
    "[red]b[/red]",
    "-dash",
    "~",
    "$HOME",
    "a;b|c&d",
    "*?[x]",
    "back\\slash",
    "{0}",
    "#hash",
    "\u202ertl",
    "e\u0301",
    ".hidden",
    "x" * 200,
    "\x1b[31m",
    "con",
    " lead",
    "trail ",
    "=1+1",
    "\udcff",
)


def odd_case(rng: random.Random, place: Path) -> str:
    """A store at an odd path, with odd claims of other machines in it, dated anywhere; perhaps behind a link."""
    root = place
    for _ in range(rng.choice((1, 1, 2))):
        root = root / rng.choice(_ODD)
    kind = "path"
    if rng.random() < 0.3:
        target, kind = place / "target", "link"
        target.mkdir()
        root.parent.mkdir(parents=True, exist_ok=True)
        root.symlink_to(target, target_is_directory=True)
    os.chdir(place)
    if rng.random() < 0.5:
        root = root.relative_to(place)
    if rng.random() < 0.6:
        kind += ", claims"
        _claims(rng, root)
    begun = time.monotonic()
    report = grid(root, stale_after_s=0.3)
    assert report.complete, report
    assert time.monotonic() - begun < 60
    _complete(root, "blobs", undisturbed("blobs"))
    store = Store(root)
    out = place / "out.csv"
    assert store.export_csv(out) == 12
    store.pack()
    assert not Store(place / "merged").merge(store).damaged
    _complete(root, "blobs", undisturbed("blobs"))
    for command in (["store", "check", "--", str(root)], ["show", "--", str(root)]):
        if rng.random() < 0.25:
            child = zygote().run("gence.cli:main", argv=command, cwd=place, encoding=rng.choice(("utf-8", "ascii")))
            assert child.code == 0, child.output + child.errors
            assert "Traceback" not in child.errors
    return kind


def _claims(rng: random.Random, root: Path) -> None:
    """Claims of a machine that is gone, garbled ones and empty ones, dated up to years ahead or back."""
    folder = root / "claims"
    folder.mkdir(parents=True, exist_ok=True)
    for spec in specs_of("blobs"):
        if rng.random() < 0.5:
            continue
        holder = {
            "host": "elsewhere",
            "boot": "x",
            "pid_space": "y",
            "pid": rng.choice((1, os.getpid(), 2**40, -1)),
            "started": "1",
        }
        content = rng.choice((json.dumps(holder).encode(), b"", b"[]", b"{", b"\xff" * 9, b'{"pid":true}', b"null"))
        path = folder / f"{spec.key}.claim"
        path.write_bytes(content)
        when = time.time() + rng.choice((-1e9, -100, 0, 0.5, 100, 1e8, 1e9))
        os.utime(path, (when, when))
