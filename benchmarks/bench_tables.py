"""Losses on scikit-learn's bundled tables: wine, breast cancer, and breast cancer with words in place of numbers.

Each table is one `gence compare` with its default losses, seeds and trials on the file that a user would have; the
references, among them gradient-boosted trees, come from the same command.

    python benchmarks/bench_tables.py [--output results/bench/tables.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
from bench_text import processor_seconds, spread
from sklearn.datasets import load_breast_cancer, load_wine

from gence.lab.compare import compare
from gence.lab.store import environment_record


def tables() -> dict[str, pd.DataFrame]:
    """Each with a column `label`."""
    wine, cancer = load_wine(as_frame=True), load_breast_cancer(as_frame=True)
    worded = {
        name: pd.qcut(cancer.data[name], 4, labels=["low", "middling", "high", "highest"]).astype(str)
        for name in cancer.data if name.startswith("mean ")
    }  # fmt: skip
    named = cancer.target.map({0: "malignant", 1: "benign"})
    return {
        "wine": wine.data.assign(label=wine.target.map("cultivar {}".format)),
        "breast cancer": cancer.data.assign(label=named),
        "breast cancer in words": pd.DataFrame(worded).assign(label=named),
    }


def one(name: str, frame: pd.DataFrame, work: Path) -> dict[str, Any]:
    """What one comparison found, by loss and by reference."""
    path = work / f"{name.replace(' ', '-')}.csv"
    frame.to_csv(path, index=False)
    began, worked = time.perf_counter(), processor_seconds()
    result = compare(path, label="label", out=work / path.stem, files=False)
    took, worked = time.perf_counter() - began, processor_seconds() - worked
    accuracy = {str(loss): spread(runs["accuracy"].tolist()) for loss, runs in result.frame.groupby("loss", sort=False)}
    kept = [json.loads(file.read_text()) for file in (work / path.stem / "store").glob("references/*")]
    fitted = list({(row["name"], row["seed"]): row for part in kept for row in part["rows"]}.values())
    for reference in dict.fromkeys(row["name"] for row in fitted):
        own = [row["metrics"]["accuracy"] for row in fitted if row["name"] == reference]
        accuracy[f"reference: {reference}"] = spread(own)
    return {
        "table": name, "rows": len(frame), "columns": frame.shape[1] - 1, "seeds": int(result.frame["seed"].nunique()),
        "seconds": round(took, 1), "processor_seconds": round(worked, 1), "accuracy": accuracy,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/bench/tables.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [one(name, frame, Path(folder)) for name, frame in tables().items()]
    lines: dict[str, dict[str, str]] = {}
    for table in found:
        for loss, values in table["accuracy"].items():
            shown = f"{100 * values['mean']:.1f} ± {100 * values['sd']:.1f}"
            lines.setdefault(loss, {})[table["table"]] = shown
    record = {
        "what": "gence compare on bundled tables: accuracy in per cent on the fifth of the rows that is held out",
        "environment": environment_record("cpu"),
        "tables": found,
        "rows": [{"loss": loss, **line} for loss, line in lines.items()],
    }
    print(json.dumps(record, indent=1))
    options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
