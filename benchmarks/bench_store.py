"""How long a store of many records takes to answer: what is missing, and the table of all of them.

    python benchmarks/bench_store.py [--records 10000] [--output results/bench/store.json]

Records are as large as real ones: 200 epochs of five curves, reliability bins, a 10 x 10 confusion matrix. Times are
the best and the median of several repetitions in fresh `Store` objects.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gence.lab.spec import Grid, RunSpec
from gence.lab.store import RunResult, Store, check_recorded_data, environment_record, record as records


def grid(count: int) -> Grid:
    return Grid(
        base={"data": "cifar10", "model": "resnet50", "recipe": "paper", "subset": 2000, "ood": ["svhn"]},
        product={
            "loss": ["ce", "gence", "gence(anchor=0.1,prior=train)", "focal", "brier"],
            "subset.n": [2000, 5000],
            "seed": range(-(-count // 10)),
        },
    )


def result(rng: random.Random) -> RunResult:
    names = ("train_loss", "train_accuracy", "lr", "marginal_kl", "epoch")
    return RunResult(
        metrics={name: rng.random() for name in ("accuracy", "nll", "ece", "brier", "ood/svhn/auroc_entropy",
                                                 "ood/svhn/auroc_confidence", "offset/accuracy", "offset/ece")},
        curves={name: [rng.random() for _ in range(200)] for name in names},
        tables={"reliability": [[rng.random() for _ in range(3)] for _ in range(15)],
                "confusion": [[rng.randrange(100) for _ in range(10)] for _ in range(10)]},
        wall_s=rng.random(),
    )  # fmt: skip


def fill(store: Store, specs: list[RunSpec], distinct: int = 997) -> None:
    """Write records without flushing each to the disk: the benchmark is about reading.

    After the first `distinct` ones, results are repeated, which is faster: spec, key and checksum alone are new.
    """
    rng = random.Random(0)
    environment = {**environment_record(), "data": {"train": "0" * 64, "test": "1" * 64}}
    bodies: list[tuple[bytes, bytes]] = []  # what stands before and after the spec in a record
    for folder in range(256):
        (store.root / "records" / f"{folder:02x}").mkdir(parents=True, exist_ok=True)
    for number, spec in enumerate(specs):
        if number < distinct:
            line = records.encode(spec, result(rng), environment, None)
            before, own, after = line.partition(spec.to_json().encode())
            assert own
            bodies.append((before[before.index(b'"run":') :], after))
        else:
            before, after = bodies[number % distinct]
            body = before.removeprefix(b'"run":') + spec.to_json().encode() + after
            checksum = hashlib.sha256(spec.key.encode() + body[:-1]).hexdigest()
            line = f'{{"key":"{spec.key}","checksum":"{checksum}","run":'.encode() + body
        (store.root / "records" / spec.key[:2] / f"{spec.key}.json").write_bytes(line + b"\n")


def timed(call: Callable[[], object], repetitions: int) -> dict[str, float]:
    seconds = []
    for _ in range(repetitions):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return {"best_s": round(min(seconds), 4), "median_s": round(statistics.median(seconds), 4), "n": repetitions}


def measure(root: Path, count: int) -> dict[str, object]:
    specs = grid(count).specs()[:count]
    store = Store(root / "store")
    fill(store, specs[: count - 100])
    size = sum(path.stat().st_size for path in (root / "store").rglob("*.json"))

    def missing() -> None:
        fresh = grid(count).specs()[:count]  # new objects, so that their keys are computed too
        place = Store(store.root)
        assert len(place.missing(fresh)) == 100
        check_recorded_data(fresh, place)  # as `gence run` does

    def frame() -> None:
        assert len(Store(store.root).frame()) == count - 100

    figures: dict[str, object] = {"records": count - 100, "megabytes": round(size / 1e6, 1)}
    figures["missing"] = timed(missing, 5)
    figures["frame"] = timed(frame, 5)
    figures["check"] = timed(store.check, 1)
    figures["pack"] = timed(store.pack, 1)
    figures["packed_missing"] = timed(missing, 5)
    figures["packed_frame"] = timed(frame, 5)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_100, help="runs of the grid; 100 of them are left missing")
    parser.add_argument("--output", type=Path, default=Path("results/bench/store.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), arguments.records)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"what": "store", "environment": environment_record(), "targets_s": {"missing": 2, "frame": 3}, **figures}
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
