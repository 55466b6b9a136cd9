"""`python -m tests.adversarial --minutes N --seed S [--only NAME] [--cases N] [--out FILE]`: the whole attack."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.adversarial.attack import Summary, attack

# Name: (module, function, share of the time, cases of the quick part). Heavy ones come last.
HARNESSES = {
    "losses": ("losses", "case", 3, 300),
    "steps": ("losses", "steps_case", 1, 2),
    "parts": ("parts", "case", 1, 60),
    "metrics": ("metrics", "case", 1, 60),
    "kernels": ("losses", "interpreted_case", 2, 25),
    "kills": ("store", "killed_case", 3, 1),
    "disks": ("store", "full_disk_case", 1, 0),
    "records": ("store", "record_case", 2, 8),
    "places": ("store", "odd_case", 1, 2),
    "archives": ("files.archives", "archive_case", 1, 25),
    "images": ("files.images", "image_case", 1, 40),
    "names": ("files.names", "name_case", 1, 0),
    "models": ("files.models", "model_case", 1, 10),
    "tables": ("files.tables", "table_case", 1, 8),
    "signals": ("process", "signal_case", 3, 2),
    "starts": ("process", "fresh_case", 1, 0),
    "surroundings": ("process", "surroundings_case", 1, 3),
}


def run_one(name: str, seed: int, cases: int | None, seconds: float | None) -> Summary:
    """Run one harness."""
    module, function, _, _ = HARNESSES[name]
    return attack(
        name,
        getattr(importlib.import_module(f"tests.adversarial.{module}"), function),
        seed,
        cases=cases,
        seconds=seconds,
    )


def main() -> int:
    """Run all harnesses, print what they found, and return 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=__doc__)
    parser.add_argument("--minutes", type=float, help="time for all harnesses together")
    parser.add_argument("--cases", type=int, help="cases for each harness, whatever the time")
    parser.add_argument("--seed", type=int, default=0, help="the first case's seed; the others follow")
    parser.add_argument("--only", action="append", choices=HARNESSES, help="a harness (repeatable)")
    parser.add_argument("--out", type=Path, help="write the counts to this JSON file, beside those in it")
    options = parser.parse_args()
    names = options.only or list(HARNESSES)
    if options.minutes is None and options.cases is None:
        options.minutes = 5.0
    # In a process of its own, because Triton decides at its import whether it interprets.
    if "kernels" in names and os.environ.get("TRITON_INTERPRET") != "1":
        environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        share = HARNESSES["kernels"][2] / sum(HARNESSES[name][2] for name in names)
        again = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.adversarial",
            "--only",
            "kernels",
            "--seed",
            str(options.seed),
        ]
        again += [] if options.minutes is None else ["--minutes", str(options.minutes * share)]
        again += [] if options.cases is None else ["--cases", str(options.cases)]
        again += [] if options.out is None else ["--out", str(options.out)]
        failed = subprocess.run(again, env=environment, check=False).returncode != 0
        names = [name for name in names if name != "kernels"]
        options.minutes = None if options.minutes is None else options.minutes * (1 - share)
    else:
        failed = False
    whole = sum(HARNESSES[name][2] for name in names)
    for name in names:
        seconds = None if options.minutes is None else 60 * options.minutes * HARNESSES[name][2] / whole
        begun = time.monotonic()
        summary = run_one(name, options.seed, options.cases, seconds)
        print(summary, flush=True)
        failed |= bool(summary.failures)
        if options.out is not None:
            keep(options.out, summary, options.seed, time.monotonic() - begun)
    return int(failed)


def keep(path: Path, summary: Summary, seed: int, seconds: float) -> None:
    """Put a summary beside those that a file has: added to one whose seeds end where its begin, else in its place."""
    known = json.loads(path.read_text()) if path.exists() else {}
    cases, kinds, minutes = summary.cases, Counter(summary.kinds), seconds / 60
    failures = [{"seed": own, "message": message} for own, message in summary.failures]
    before = known.get(summary.name)
    if before is not None and before["seed"] + before["cases"] == seed:
        seed, cases, minutes = before["seed"], before["cases"] + cases, before["minutes"] + minutes
        kinds.update(before["kinds"])
        failures = before["failures"] + failures
    command = f"python -m tests.adversarial --only {summary.name} --seed {seed} --cases {cases}"
    known[summary.name] = {
        "cases": cases, "kinds": dict(sorted(kinds.items())), "seed": seed, "failures": failures,
        "minutes": round(minutes, 1), "command": command,
    }  # fmt: skip
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
