"""Record how long `gence compare` takes with no option at all, from the start of Python to the written report.

python benchmarks/bench_demo.py [--output results/bench/demo.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gence.lab.store import environment_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/bench/demo.json"))
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    busy = os.getloadavg()[0]  # what else ran in the minute before
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        environment = {**os.environ, "GENCE_CACHE": folder, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, "-m", "gence", "compare"], cwd=folder, env=environment, check=True)
        seconds = time.perf_counter() - began
    row = {"command": "`gence compare`", "cores": cores, "load_before": round(busy, 1), "seconds": round(seconds)}
    record = {"bench": "demo", "environment": environment_record(), "rows": [row]}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(row)


if __name__ == "__main__":
    main()
