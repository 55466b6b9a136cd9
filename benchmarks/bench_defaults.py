"""The defaults of `gence compare` without a pretrained encoder, beside what anybody would try first, on photographs.

Two sets of small photographs: hand signs (200 labels) and CIFAR-10 (500 labels). Beside the network that `compare`
chooses stand logistic regression and an RBF support vector machine on the same pixels, tuned by cross-validation, and a
plain network of twenty-five lines that is given as many CPU seconds per run. CPU seconds, not wall time: other work on
the machine does not count.

    python benchmarks/bench_defaults.py sign-digits.zip cifar10-train.zip cifar10-test.zip \
                                        --output results/bench/defaults.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gence.lab.compare import CompareOptions, plan_comparison
from gence.lab.data import balanced_subset, load
from gence.lab.report import loss_title
from gence.lab.store import Store, environment_record
from gence.lab.sweep import fit_and_keep_references
from gence.lab.train import pixel_data, train_cohort

LOSSES = ("ce", "gence(anchor=0.1)")
REFERENCES = {"majority": "majority class", "logistic": "logistic regression", "svm": "RBF SVM"}
PER_CLASS = {"train": 100, "test": 200}  # images of CIFAR-10 that are unpacked, in the order of their names


def plain_network(x: Tensor, y: Tensor, seconds: float, seed: int) -> nn.Module:
    """What a tutorial has: three convolutions, Adam, mirrored images, until the time is over."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.LazyLinear(int(y.max()) + 1),
    )  # fmt: skip
    network(x[:2])
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    began = time.process_time()
    while time.process_time() - began < seconds:
        for rows in torch.randperm(len(x)).split(32):
            mirrored = torch.rand(len(rows)) < 0.5
            batch = x[rows]
            batch[mirrored] = batch[mirrored].flip(3)
            optimizer.zero_grad()
            F.cross_entropy(network(batch), y[rows]).backward()
            optimizer.step()
    return network.eval()


def accuracy_of_plain_network(data: str, size: int | None, n: int, seconds: float, seed: int) -> float:
    splits = load(data, image_size=size)
    index = balanced_subset(splits.train.labels, n, seed, splits.train.num_classes)
    train, test = (images.float() / 255 for images in (splits.train.images[index], splits.test.images))
    mean, std = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    network = plain_network((train - mean) / std, splits.train.labels[index], seconds, seed)
    with torch.inference_mode():
        said = torch.cat([network((part - mean) / std).argmax(1) for part in test.split(250)])
    return float((said == splits.test.labels).double().mean())


def measure(name: str, data: Path, n: int, seeds: int, store: Path) -> list[dict[str, Any]]:
    """What compare would train, run by run, each timed in CPU seconds; then the references and the plain network."""
    plan = plan_comparison(
        CompareOptions(data=data, n=n, losses=LOSSES, seeds=seeds, model="auto", recipe="small", device="cpu")
    )
    found: dict[str, list[float]] = {}
    seconds: list[float] = []
    for spec in plan.specs():
        began = time.process_time()
        (result,) = train_cohort([spec], device="cpu")
        seconds.append(time.process_time() - began)
        assert result is not None
        found.setdefault(f"compare: {loss_title(str(spec.loss))}", []).append(result.metrics["accuracy"])
        print(name, spec.loss, spec.seed, result.metrics["accuracy"], f"{seconds[-1]:.1f} s", file=sys.stderr)
    for row in fit_and_keep_references(plan.base, plan.seeds, Store(store), pixel_data(plan.base)):
        found.setdefault(REFERENCES[row["name"]], []).append(row["metrics"]["accuracy"])
    size, cpu_s = plan.base.image_size, statistics.fmean(seconds)
    found["plain network"] = [accuracy_of_plain_network(str(data), size, n, cpu_s, seed) for seed in plan.seeds]
    about = f"{name}, {n} labels"
    return [
        {
            "row": about,
            "column": what,
            "accuracies": [round(value, 6) for value in values],
        }
        | ({} if what in REFERENCES.values() else {"cpu_s_per_run": round(cpu_s, 1)})
        for what, values in found.items()
    ]


def unpack(archives: dict[str, Path], folder: Path) -> Path:
    for part, archive in archives.items():
        taken: Counter[str] = Counter()
        with zipfile.ZipFile(archive) as files:
            for name in sorted(entry for entry in files.namelist() if not entry.endswith("/")):
                label, file = name.split("/")[-2:]
                taken[label] += 1
                if taken[label] <= PER_CLASS[part]:
                    place = folder / part / label / file
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(files.read(name))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("signs", type=Path)
    parser.add_argument("cifar_train", type=Path)
    parser.add_argument("cifar_test", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("signs", "cifar"), help="measure one set; the record's other rows stay")
    parser.add_argument("--output", type=Path, default=Path("results/bench/defaults.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows: list[dict[str, Any]] = []
        if options.only != "cifar":
            rows += measure("sign digits", options.signs, 200, options.seeds, root / "signs-out")
        if options.only != "signs":
            cifar = unpack({"train": options.cifar_train, "test": options.cifar_test}, root / "cifar")
            rows += measure("CIFAR-10", cifar, 500, options.seeds, root / "cifar-out")
    if options.only is not None and options.output.exists():
        measured = {row["row"] for row in rows}
        rows = [*(one for one in json.loads(options.output.read_text())["rows"] if one["row"] not in measured), *rows]
    record = {
        "study": "benchmarks/bench_defaults.py",
        "environment": environment_record("cpu"),
        "rows_are": "images",
        "rows": rows,
    }
    print(json.dumps(rows, indent=1))
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
