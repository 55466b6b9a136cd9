"""Ten thousand classes and a hundred thousand records: how long the commands take, and how much memory.

    python benchmarks/bench_scale.py [--classes 10000] [--records 100000] [--repeats 3]

Every figure is a command in a process of its own, start of Python and imports included: the least of the repetitions.
The images are 8 x 8 pixels, one of each class to train on and one to test; records are those of `bench_store.py`.
"""

from __future__ import annotations

import argparse
import io
import json
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
    return {"s": round(seconds, 2), "gb": round(usage.ru_maxrss / 2**20, 3)}


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


def measure_classes(folder: Path, classes: int, repeats: int) -> dict[str, object]:
    """One epoch with many classes, and how soon a SIGTERM during training or evaluation is heard."""
    write_classes(folder / "classes.zip", classes)
    command = ["train", "--data", "classes.zip", "--model", "mlp", "--recipe", "tiny", "--set", "recipe.epochs=1"]
    os.environ["GENCE_CACHE"] = str(folder / "cache")
    first = measured(command, folder)
    whole = least([measured(command, folder) for _ in range(repeats)])
    heard = [measured(command, folder, stop_after=share * whole["s"])["heard_s"] for share in (0.5, 0.7, 0.8, 0.9)]
    return {"classes": classes, "first": first, "epoch": whole, "sigterm_longest_s": max(heard)}


def measure_records(folder: Path, count: int, repeats: int) -> dict[str, object]:
    """A grid that is done, its table, and packing it."""
    seeds = -(-count // 10)
    (folder / "grid.toml").write_text(
        '[base]\ndata = "cifar10"\nmodel = "resnet50"\nrecipe = "paper"\nood = ["svhn"]\nsubset = 2000\n'
        '[product]\nloss = ["ce", "gence", "gence(anchor=0.1,prior=train)", "focal", "brier"]\n'
        f'"subset.n" = [2000, 5000]\nseed = {list(range(seeds))}\n'
    )
    store = Store(folder / "store")
    specs = bench_store.grid(count).specs()[:count]
    bench_store.fill(store, specs)
    figures: dict[str, object] = {"records": len(specs)}
    figures["megabytes"] = round(sum(path.stat().st_size for path in (folder / "store").rglob("*.json")) / 1e6)
    commands = {"run": ["run", "grid.toml", "--store", "store"], "show": ["show", "store"]}
    for name, command in commands.items():
        figures[name] = least([measured(command, folder) for _ in range(repeats)])
    figures["pack"] = least([measured(["store", "pack", "store"], folder)])  # once: afterwards it is packed
    for name, command in commands.items():
        figures[f"packed_{name}"] = least([measured(command, folder) for _ in range(repeats)])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results/bench/scale.json"))
    parser.add_argument("--folder", type=Path, help="where to make the data, which is some gigabytes")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        figures = {
            "classes": measure_classes(folder, arguments.classes, arguments.repeats),
            "records": measure_records(folder, arguments.records, arguments.repeats),
        }
    finally:
        shutil.rmtree(folder)
    targets = {"epoch": {"s": 10, "gb": 2}, "sigterm_longest_s": 10, "run": {"s": 20}, "show": {"s": 15, "gb": 1},
               "pack": {"s": 30}}  # fmt: skip
    report = {"what": "scale", "environment": environment_record(), "targets": targets, **figures}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
