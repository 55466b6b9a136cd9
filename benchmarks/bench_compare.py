"""Seconds of `gence compare` on photographs: the first time, with embedding, and from features that are kept.

Each measurement is a process of its own with an empty store; the first also has an empty cache. Processor seconds tell
what a busy machine hides: on a free one with two cores the clock shows between half of them and all.

    python benchmarks/bench_compare.py sign-digits.zip --n 200 --out results/bench/compare-encoder.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gence.lab.store import environment_record


def compare(data: Path, n: int, cache: Path, out: Path) -> tuple[float, float]:
    """Seconds of one comparison with the default losses, seeds and trials: by the clock, and of the processor."""
    command = [sys.executable, "-m", "gence", "compare", "--data", str(data), "--n", str(n), "--out", str(out)]
    began, worked = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, "GENCE_CACHE": str(cache)}, check=True, capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, used.ru_utime + used.ru_stime - worked.ru_utime - worked.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder or archive of photographs")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the record here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        first = compare(options.data, options.n, root / "cache", root / "first")
        kept = [compare(options.data, options.n, root / "cache", root / f"kept{i}") for i in range(options.rounds)]
    record = {
        "what": "compare on frozen features: 7 losses, 5 seeds, 16 trials each, references, report",
        "environment": environment_record("cpu"),
        "data": options.data.name,
        "labels": options.n,
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "first_use_s": round(first[0], 1),
        "first_use_processor_s": round(first[1], 1),
        "from_kept_features_s": {"best": round(min(kept)[0], 1), "all": [round(seconds, 1) for seconds, _ in kept]},
        "from_kept_features_processor_s": round(min(worked for _, worked in kept), 1),
    }
    print(json.dumps(record, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
