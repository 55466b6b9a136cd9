"""Ten thousand classes and a hundred thousand records: how long the commands take, and how much memory.

    python benchmarks/bench_scale.py [--classes 10000] [--records 100000] [--repeats 3]

Every figure is a command in a process of its own, start of Python and imports included: the least of the repetitions.
`s` is wall time, `cpu_s` the processor's seconds of all threads, which other work on the machine disturbs less, `gb`
the largest memory of the process. The images are 8 x 8 pixels, one of each class to train on and one to test; records
are those of `bench_store.py`.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
import bench_store

from gence.lab.store import Store, environment_record


def measured(arguments: list[str], folder: Path, *, stop_after: float | None = None) -> dict[str, float]:
    """Run a command of gence; return its seconds and peak memory, or how long it took to hear a SIGTERM."""
    command = [sys.executable, "-m", "gence", *arguments]
    with (folder / "output.txt").open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        if stop_after is not None:
            time.sleep(stop_after)
            began = time.perf_counter()
            process.send_signal(signal.SIGTERM)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    expected = 0 if stop_after is None else 143
    if process.returncode != expected:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}, expected {expected}: "
                           f"{(folder / 'output.txt').read_text()[-2000:]}")  # fmt: skip
    if stop_after is not None:
        return {"heard_s": round(seconds, 2)}
    spent = usage.ru_utime + usage.ru_stime
    return {"s": round(seconds, 2), "cpu_s": round(spent, 2), "gb": round(usage.ru_maxrss / 2**20, 3)}


def least(found: list[dict[str, float]]) -> dict[str, float]:
    """The smallest of each figure, and how many there were."""
    return {**{name: min(one[name] for one in found) for name in found[0]}, "n": len(found)}


def write_classes(path: Path, classes: int) -> None:
    """An archive of two noisy images of each class."""
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(classes):
            base = rng.integers(0, 256, (8, 8))
            for part in ("train", "test"):
                pixels = np.clip(base + rng.normal(0, 20, (8, 8)), 0, 255).astype(np.uint8)
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "PNG")
                archive.writestr(f"{part}/c{k:05d}/0.png", buffer.getvalue())


def measure_classes(folder: Path, classes: int, repeats: int) -> list[dict[str, object]]:
    """One epoch with many classes, and how soon a SIGTERM during training or evaluation is heard."""
    if not (folder / "classes.zip").exists():
        write_classes(folder / "classes.zip", classes)
    command = ["train", "--data", "classes.zip", "--model", "mlp", "--recipe", "tiny", "--set", "recipe.epochs=1"]
    os.environ["GENCE_CACHE"] = str(folder / "cache")
    whole = least([measured(command, folder) for _ in range(repeats)])
    shares = (0.5, 0.6, 0.7, 0.8)  # beyond them a quiet machine is done already
    heard = [measured(command, folder, stop_after=share * whole["s"])["heard_s"] for share in shares]
    what = f"{classes:,} classes"
    return [
        {"command": "gence train", "of": f"{what}, 1 epoch", **whole, "aim": "10 s, 2 GB"},
        {"command": "SIGTERM", "of": f"{what}, heard after (longest)", "s": max(heard), "n": len(heard), "aim": "10 s"},
    ]


def measure_records(folder: Path, count: int, repeats: int) -> list[dict[str, object]]:
    """A grid that is done, its table, and packing it."""
    seeds = -(-count // 10)
    (folder / "grid.toml").write_text(
        '[base]\ndata = "cifar10"\nmodel = "resnet50"\nrecipe = "paper"\nood = ["svhn"]\nsubset = 2000\n'
        '[product]\nloss = ["ce", "gence", "gence(anchor=0.1,prior=train)", "focal", "brier"]\n'
        f'"subset.n" = [2000, 5000]\nseed = {list(range(seeds))}\n'
    )
    store = folder / "store"
    if not store.exists():
        fill = multiprocessing.get_context("spawn").Process(target=filled, args=(store, count))
        fill.start()  # in a process of its own: a command's largest memory is counted from that of its parent on
        fill.join()
    commands = {
        "gence run": (["run", "grid.toml", "--store", "store"], "20 s"),
        "gence show": (["show", "store"], "15 s, 1 GB"),
    }
    rows: list[dict[str, object]] = []
    for state in ("one file each", "packed"):
        of = f"{count:,} records, {state}"
        for name, (command, aim) in commands.items():
            found = least([measured(command, folder) for _ in range(repeats)])
            rows.append({"command": name, "of": of, **found, "aim": aim})
        if state != "packed":  # once: afterwards it is packed
            packing = least([measured(["store", "pack", "store"], folder)])
            rows.append({"command": "gence store pack", "of": of, **packing, "aim": "30 s"})
    return rows


def filled(store: Path, count: int) -> None:
    """Write a store of `count` records."""
    bench_store.fill(Store(store), bench_store.grid(count).specs()[:count])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("classes", "records"), help="measure one part; the other's rows are kept")
    parser.add_argument("--output", type=Path, default=Path("results/bench/scale.json"))
    parser.add_argument("--folder", type=Path, help="work here and keep the data, some gigabytes, for the next call")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp()) if arguments.folder is None else arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    rows = json.loads(arguments.output.read_text())["rows"] if arguments.only and arguments.output.exists() else []
    parts = {"classes": (measure_classes, arguments.classes), "records": (measure_records, arguments.records)}
    try:
        for part, (measure, size) in parts.items():
            if arguments.only in (None, part):
                rows = [row for row in rows if part not in row["of"]] + measure(folder, size, arguments.repeats)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)
    environment = {**environment_record("cpu"), "load": [round(load, 1) for load in os.getloadavg()]}
    environment["device"] = f"cpu, {os.environ.get('OMP_NUM_THREADS', os.cpu_count())} threads"
    report = {
        "bench": "scale",
        "environment": environment,
        "rows": sorted(rows, key=lambda row: "records" in row["of"]),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
