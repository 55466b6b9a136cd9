"""Losses on texts with few labels: BANKING77 and CLINC150, heads on a frozen text encoder, all tuned alike.

Each setting is one `gence compare`: every loss gets the same trials of cross-validation on the training labels, the
references get the same folds, and CLINC150's requests of no intent are the out-of-distribution inputs. A setting that
is finished is kept in the store, so that the same command resumes after an interruption; the record is written after
each. Embedding is timed on texts of its own, because features that are kept take no time.

    python benchmarks/bench_text.py banking77.zip clinc150.zip [--per-class 5 10] [--output results/bench/text.json]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gence.lab.compare import compare
from gence.lab.data import load_rows
from gence.lab.features import TEXT_ENCODER, load_text_encoder, new_features
from gence.lab.spec import LossSpec
from gence.lab.store import environment_record

METRICS = ("accuracy", "nll", "ece")
OUTSIDE = "out-of-scope-test.csv"
TIMED_TEXTS = 500
USERS = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def setting(data: Path, per_class: int, losses: str | None, seeds: int, out: Path) -> dict[str, Any]:
    """One comparison: a row per loss and per reference, and the differences of logistic regression and CE's head."""
    splits = load_rows(data)
    outside = [f"{data}/{OUTSIDE}"] if "clinc" in data.name else []
    chosen = {} if losses is None else {"losses": losses}
    began, worked = time.perf_counter(), processor_seconds()
    result = compare(
        data, n=per_class * len(splits.classes), seeds=seeds, ood=outside, out=out / f"{data.stem}-{per_class}",
        files=False, **chosen,
    )  # fmt: skip
    whole, worked = time.perf_counter() - began, processor_seconds() - worked
    frame = result.frame
    outer = [name for name in frame if name.startswith("ood/") and name.endswith("auroc_entropy")]
    rows = []
    for loss, runs in frame.groupby("loss", sort=False):
        row: dict[str, Any] = {"loss": str(loss), "seeds": len(runs)}
        for metric in (*METRICS, *outer):
            row[metric] = spread(runs[metric].tolist())
        row["lr"], row["weight_decay"] = float(runs["recipe.lr"].iloc[0]), float(runs["recipe.weight_decay"].iloc[0])
        rows.append(row)
    kept = [json.loads(file.read_text()) for file in (out / f"{data.stem}-{per_class}" / "store").glob("references/*")]
    fitted = list({(row["name"], row["seed"]): row for one in kept for row in one["rows"]}.values())
    references = [
        {"name": name, "seeds": len(own), "seconds_per_seed": round(sum(r["wall_s"] for r in own) / len(own), 1),
         **{metric: spread([row["metrics"][metric] for row in own]) for metric in METRICS}}
        for name in dict.fromkeys(row["name"] for row in fitted)
        if (own := [row for row in fitted if row["name"] == name])
    ]  # fmt: skip
    found: dict[str, Any] = {
        "data": data.stem, "classes": len(splits.classes), "labels_per_class": per_class,
        "test_texts": len(splits.test), "losses": rows, "references": references,
        "seconds_whole_command": round(whole, 1), "processor_seconds": round(worked, 1),
        "seconds_training_final_heads": round(float(frame["wall_s"].sum()), 1) if "wall_s" in frame else None,
    }  # fmt: skip
    ce = next((row for row in rows if LossSpec.parse(row["loss"]).name == "ce"), None)
    logistic = next((row for row in references if row["name"] == "logistic"), None)
    if ce is not None and logistic is not None:
        found["ce_minus_logistic_points"] = round(100 * (ce["accuracy"]["mean"] - logistic["accuracy"]["mean"]), 2)
    return found


def processor_seconds() -> float:
    """Of this process and those it started: what a comparison costs, whatever else the machine does."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, USERS))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and sample standard deviation."""
    found = torch.tensor(values, dtype=torch.float64)
    return {"mean": round(float(found.mean()), 5), "sd": round(float(found.std()), 5) if len(found) > 1 else 0.0}


def embedding(data: Path) -> dict[str, Any]:
    """Texts per second, embedded again."""
    texts = load_rows(data).train.texts[:TIMED_TEXTS]
    encoder = load_text_encoder(TEXT_ENCODER)
    began, worked = time.perf_counter(), processor_seconds()
    new_features(encoder, texts)
    seconds, worked = time.perf_counter() - began, processor_seconds() - worked
    return {"data": data.stem, "texts": len(texts), "seconds": round(seconds, 2),
            "texts_per_second": round(len(texts) / seconds, 1),
            "processor_ms_per_text": round(1000 * worked / len(texts), 2)}  # fmt: skip


def table(settings: Sequence[dict[str, Any]], embeddings: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Accuracy in each setting, and the AUROC of detection where there is one, per loss and reference; then seconds."""
    found: dict[str, dict[str, str]] = {}
    seconds: dict[str, str] = {}
    speeds: dict[str, str] = {}
    embedded = {one["data"]: one["texts_per_second"] for one in embeddings}
    for one in settings:
        title = f"{one['data'].upper()}, {one['labels_per_class']}"
        seconds[title], speeds[title] = f"{one['seconds_whole_command']:.0f}", f"{embedded[one['data']]:.0f}"
        for row in (*one["losses"], *one["references"]):
            line = found.setdefault(row.get("loss") or row["name"], {})
            auroc = next((value for name, value in row.items() if name.startswith("ood/")), None)
            for heading, values in ((title, row["accuracy"]), (f"{title}, AUROC", auroc)):
                if values is not None:
                    line[heading] = f"{100 * values['mean']:.1f} ± {100 * values['sd']:.1f}"
    found |= {"seconds, from kept features": seconds, "texts embedded per second": speeds}
    return [{"loss": name, **line} for name, line in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="banking77.zip and clinc150.zip")
    parser.add_argument("--per-class", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--losses", help="as for gence compare; its seven by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--work", type=Path, help="keep stores and reports here")
    parser.add_argument("--output", type=Path, default=Path("results/bench/text.json"))
    options = parser.parse_args()
    work = options.work or Path(tempfile.mkdtemp(prefix="bench-text-"))
    record: dict[str, Any] = {
        "what": "losses on texts with few labels; heads on a frozen text encoder, 16 trials of cross-validation each",
        "environment": environment_record("cpu"),
        "encoder": TEXT_ENCODER,
        "threads": torch.get_num_threads(),
        "embedding": [embedding(data) for data in options.data],
        "settings": [],
    }
    for data in options.data:
        for per_class in options.per_class:
            record["settings"].append(setting(data, per_class, options.losses, options.seeds, work))
            record["rows"] = table(record["settings"], record["embedding"])
            options.output.write_text(json.dumps(record, indent=1) + "\n")
            print(json.dumps(record["settings"][-1], indent=1), flush=True)


if __name__ == "__main__":
    main()
