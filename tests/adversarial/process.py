"""Attacks on the process: signals at random moments in every command, and surroundings that are poor or odd.

What is held against it: the exit code is the usual one, 130 or 143; no traceback is printed, no unfinished file is
left, and the same command afterwards completes.
"""

from __future__ import annotations

import atexit
import functools
import io
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from tests.adversarial.zygote import THREADS, Child, zygote

MAIN = "gence.cli:main"
CPU = ("--device", "cpu")
GRID = """
[base]
data = "photos"
model = "mlp"
recipe = "short"
[product]
loss = ["ce", "gence"]
seed = [0, 1]
[recipes.short]
base = "tiny"
epochs = 2
batch_size = 8
"""

# Name: (command, weight). Each is run in a folder of its own, with photos, a grid, a store, a model and a table. The
# heavy ones are drawn less often.
_COMMANDS = {
    "compare": ("compare --data photos --losses ce,gence --seeds 2 --epochs 1 --ood more --out out --workers 1", 1),
    "train": ("train --data photos --epochs 2 --save new.safetensors --store new", 3),
    "tune": ("tune grid.toml --store new --trials 2 --losses ce", 2),
    "run": ("run grid.toml --store new", 4),
    "run --dry-run": ("run grid.toml --store store --dry-run", 1),
    "evaluate": ("evaluate model.safetensors --data photos --ood more", 2),
    "predict": ("predict model.safetensors photos --out predicted.csv", 3),
    "predict rows": ("predict rows.safetensors rows.csv --out predicted.csv", 2),
    "export": ("export model.safetensors model.pt2", 0.3),
    "show": ("show store", 4),
    "report": ("report store --out page", 1.5),
    "data check": ("data check photos", 4),
    "data prepare": ("data prepare photos", 4),
    "data list": ("data list", 1),
    "store merge": ("store merge merged store", 5),
    "store check": ("store check store --remove-leftovers", 4),
    "store pack": ("store pack store", 5),
    "store export": ("store export store runs.csv", 4),
    "store export parquet": ("store export store runs.parquet", 2),
    "bench loss": ("bench loss --shapes 16x4 --quick --no-compile --device cpu", 0.3),
    "version": ("version", 1),
}
_TRAINING = ("compare", "train", "tune", "run", "evaluate", "predict")
COMMANDS = {name: (*line.split(), *(CPU if name in _TRAINING else ())) for name, (line, _) in _COMMANDS.items()}
_USED = {name: _COMMANDS[name][1] for name in COMMANDS}


def write_photos(folder: Path, count: int, seed: int, classes: tuple[str, ...] = ("ant", "bee")) -> Path:
    """Small noise in a folder per class."""
    draw = random.Random(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.frombytes("L", (8, 8), draw.randbytes(64)).save(folder / name / f"{i}.png")
    return folder


@functools.cache
def workshop() -> Path:
    """A folder with all that commands need, made once by the commands themselves."""
    folder = Path(tempfile.mkdtemp(prefix="attack-workshop-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_photos(folder / "photos", 12, 0)
    write_photos(folder / "more", 6, 1, ("cat",))
    (folder / "grid.toml").write_text(GRID)
    lines = [f"{i % 7},{i * i % 11},{'even' if i % 2 else 'odd'}" for i in range(60)]
    (folder / "rows.csv").write_text("\n".join(("a,b,label", *lines)) + "\n")
    for arguments in (
        ("run", "grid.toml", "--store", "store", *CPU),
        ("train", "--data", "photos", "--epochs", "1", "--save", "model.safetensors", *CPU),
        ("train", "--data", "rows.csv", "--epochs", "1", "--save", "rows.safetensors", *CPU),
    ):
        child = start(arguments, folder)
        assert zygote().wait(child) == 0, child.errors
    shutil.rmtree(folder / "cache")
    return folder


def start(
    arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str] | None = None, **options: str
) -> Child:
    """Start a command in a folder, with its cache there."""
    own = {"GENCE_CACHE": str(folder / "cache"), "COLUMNS": "80", **(environment or {})}
    return zygote().start(MAIN, argv=arguments, cwd=folder, environment=own, **options)


@functools.cache
def usual_seconds(name: str) -> float:
    """How long a command takes when nobody disturbs it."""
    with tempfile.TemporaryDirectory(prefix="attack-timed-") as place:
        folder = shutil.copytree(workshop(), Path(place) / "f")
        begun = time.monotonic()
        child = start(COMMANDS[name], folder)
        assert zygote().wait(child) == 0, f"{name}: {child.output}{child.errors}"
        return time.monotonic() - begun


def signal_case(rng: random.Random, place: Path) -> str:
    """A signal, or two, at a random moment in a command; then the same command again."""
    (name,) = rng.choices(list(_USED), list(_USED.values()))
    arguments = COMMANDS[name]
    folder = shutil.copytree(workshop(), place / "f")
    number = rng.choice((signal.SIGINT, signal.SIGTERM))
    twice = rng.random() < 0.15
    moment = rng.uniform(0, 1.05) * usual_seconds(name)
    child = start(arguments, folder)
    time.sleep(moment)
    child.send(number)
    if twice:
        time.sleep(rng.uniform(0, 0.1))
        child.send(number)
    code = zygote().wait(child)
    what = f"{name}, {number.name}{' twice' if twice else ''} after {moment:.2f} s: {code}"
    allowed = {0, 130} if number == signal.SIGINT else {0, 143, -signal.SIGTERM}
    assert code in allowed, f"{what}: {child.errors[-1500:]}"
    assert "Traceback" not in child.errors, f"{what}: {child.errors[-2500:]}"
    assert "Exception ignored" not in child.errors, f"{what}: {child.errors[-2500:]}"
    if not twice:
        assert not (left := unfinished(folder)), f"{what}: left {left}"
    again = start(arguments, folder)
    assert zygote().wait(again) == 0, f"{what}, then {again.code}: {again.output[-500:]}{again.errors[-1500:]}"
    assert not (left := unfinished(folder)) or twice, f"{what}: left {left} after the second time"
    for store in ("new", "merged", "store"):
        if (folder / store).is_dir():
            _sound(folder / store)
    return f"{name}: {'ended before' if code == 0 else number.name}"


def unfinished(folder: Path) -> list[str]:
    """Files and folders that are not finished, and claims that nobody holds."""
    patterns = (".writing-*", "*.part", ".gence-*", "*.claim", "stop-*")
    return sorted(str(path.relative_to(folder)) for pattern in patterns for path in folder.rglob(pattern))


def _sound(folder: Path) -> None:
    from gence.lab.store import Store

    report = Store(folder).check()
    assert report.ok, report.problems


def fresh_case(rng: random.Random, place: Path) -> str:
    """A signal at a random moment in a command that starts from nothing, so that some come while it imports."""
    name = rng.choice(
        ("show", "store check", "data list", "version", "store pack", "data check", "train", "run", "predict")
    )
    arguments = COMMANDS[name]
    folder = shutil.copytree(workshop(), place / "f")
    number = rng.choice((signal.SIGINT, signal.SIGTERM))
    moment = rng.uniform(0.05, 1.0) * _fresh_seconds(name)
    process = _fresh(arguments, folder)
    try:
        time.sleep(moment)
        process.send_signal(number)
        out, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    what = f"{name}, {number.name} after {moment:.2f} s: {process.returncode}"
    allowed = {0, 130, -signal.SIGINT} if number == signal.SIGINT else {0, 143, -signal.SIGTERM}
    assert process.returncode in allowed, f"{what}: {out[-500:]}{errors[-2500:]}"
    # Before the first line of the package Python itself is in charge, and says so: its own files alone are named then.
    if "/gence/" in errors:
        assert "Traceback" not in errors, f"{what}: {errors[-2500:]}"
    assert not (left := unfinished(folder)), f"{what}: left {left}"
    return f"{name}: {'ended before' if process.returncode == 0 else number.name}"


def _hear_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell has its background jobs ignore it


def _fresh(arguments: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, **THREADS, "GENCE_CACHE": str(folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "gence", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        start_new_session=True,
        preexec_fn=_hear_ctrl_c,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@functools.cache
def _fresh_seconds(name: str) -> float:
    with tempfile.TemporaryDirectory(prefix="attack-timed-") as place:
        folder = shutil.copytree(workshop(), Path(place) / "f")
        begun = time.monotonic()
        _, errors = _fresh(COMMANDS[name], folder).communicate(timeout=240)
        assert "Traceback" not in errors, errors
        return time.monotonic() - begun


def surroundings_case(rng: random.Random, place: Path) -> str:
    """A command without a home, a width, an encoding or a cache, or with hardly a file to open."""
    (name,) = rng.choices(list(_USED), list(_USED.values()))
    arguments = COMMANDS[name]
    folder = shutil.copytree(workshop(), place / "f")
    kind = rng.choice(
        (
            "ASCII",
            "20 columns",
            "1 column",
            "no HOME",
            "HOME is a file",
            "cache is a file",
            "few files",
            "no stdout",
            "full stdout",
            "odd TERM",
        )
    )
    environment: dict[str, str] = {}
    call, expected = MAIN, {0}
    if kind == "20 columns":
        environment = {"COLUMNS": "20", "FORCE_COLOR": "1"}
    elif kind == "1 column":
        environment = {"COLUMNS": "1", "FORCE_COLOR": "1"}
    elif kind == "no HOME":
        environment = dict.fromkeys(("HOME", "GENCE_CACHE", "XDG_CACHE_HOME", "USER", "LOGNAME"))  # type: ignore[assignment]
        environment["XDG_CACHE_HOME"] = str(folder / "xdg")
    elif kind == "HOME is a file":
        environment = {"HOME": str(folder / "grid.toml"), "GENCE_CACHE": ""}
        expected = {0, 1, 2}
    elif kind == "cache is a file":
        environment = {"GENCE_CACHE": str(folder / "grid.toml")}
        expected = {0, 1, 2}
    elif kind == "few files":
        call, expected = "tests.adversarial.process:main_with_few_files", {0, 1, 2}
        environment = {"FEW_FILES": str(rng.choice((7, 9, 12, 16, 24)))}
    elif kind == "no stdout":
        call, expected = "tests.adversarial.process:main_without_stdout", {0, 1, 2}
    elif kind == "full stdout":
        call, expected = "tests.adversarial.process:main_on_full_stdout", {0, 1, 2}
    elif kind == "odd TERM":
        environment = {"TERM": rng.choice(("", "dumb", "xterm-\u00e9", "nothing")), "NO_COLOR": "", "COLUMNS": "junk"}
    own = {"GENCE_CACHE": str(folder / "cache"), **environment}
    encoding = "ascii" if kind == "ASCII" else "utf-8"
    child = zygote().run(call, argv=arguments, cwd=folder, environment=own, encoding=encoding)
    what = f"{name}, {kind} {environment.get('FEW_FILES', '')}: {child.code}"
    assert child.code in expected, f"{what}: {child.errors[-2000:]}"
    assert "Traceback" not in child.errors, f"{what}: {child.errors[-2500:]}"
    if child.code == 2:
        assert child.errors.strip(), f"{what}: says nothing"
    assert not (left := unfinished(folder)), f"{what}: left {left}"
    if child.code != 0:
        again = start(arguments, folder)
        assert zygote().wait(again) == 0, f"{what}, then {again.code}: {again.errors[-1500:]}"
    return f"{kind}: {'done' if child.code == 0 else 'refused'}"


def main_with_few_files() -> None:
    """In a child: the command where hardly a file more can be opened."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(os.environ["FEW_FILES"]), most))
    _main()


def main_without_stdout() -> None:
    """In a child: the command whose reader has gone, as `gence show | head` has it."""
    ours, theirs = os.pipe()
    os.close(ours)
    os.dup2(theirs, 1)
    os.close(theirs)
    _main()


def main_on_full_stdout() -> None:
    """In a child: the command whose output goes to a full disk."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1)
    os.close(full)
    _main()


def _main() -> None:
    from gence.cli import main

    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "wb", closefd=False)), encoding="utf-8")

    main()
