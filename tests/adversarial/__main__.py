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
from typing import cast

from tests.adversarial.attack import Case, Summary, attack

# Name: (module, function, share of the time, cases of the quick part).
HARNESSES = {
    "losses": ("losses", "case", 3, 300),
    "kernels": ("losses", "interpreted_case", 2, 25),
    "steps": ("losses", "steps_case", 1, 2),
    "parts": ("parts", "case", 2, 60),
    "metrics": ("metrics", "case", 2, 60),
    "kills": ("store", "killed_case", 4, 1),
    "disks": ("store", "full_disk_case", 1, 2),
    "records": ("store", "record_case", 2, 8),
    "places": ("store", "odd_case", 2, 2),
    "archives": ("files.archives", "archive_case", 1, 25),
    "images": ("files.images", "image_case", 1, 40),
    "models": ("files.models", "model_case", 1, 10),
    "tables": ("files.tables", "table_case", 1, 40),
    "names": ("files.names", "name_case", 2, 1),
    "signals": ("process", "signal_case", 4, 2),
    "starts": ("process", "fresh_case", 3, 0),
    "surroundings": ("process", "surroundings_case", 2, 3),
}


def case_of(name: str) -> Case:
    """The function that tries one case of a harness; what its first line says is what is tried."""
    module, function, _, _ = HARNESSES[name]
    return cast(Case, getattr(importlib.import_module(f"tests.adversarial.{module}"), function))


def run_one(name: str, seed: int, cases: int | None, seconds: float | None) -> Summary:
    """Run one harness."""
    return attack(name, case_of(name), seed, cases=cases, seconds=seconds)


def main() -> int:
    """Run all harnesses, print what they found, and return 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=__doc__)
    parser.add_argument("--minutes", type=float, help="time for all harnesses together")
    parser.add_argument("--cases", type=int, help="cases for each harness, whatever the time")
    parser.add_argument("--seed", type=int, default=0, help="the first case's seed; the others follow")
    parser.add_argument("--only", action="append", choices=HARNESSES, help="a harness (repeatable)")
    parser.add_argument("--out", type=Path, help="write the counts to this JSON file, beside those in it")
    options = parser.parse_args()
    names = [name for name in HARNESSES if options.only is None or name in options.only]
    if options.minutes is None and options.cases is None:
        options.minutes = 5.0
    until = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    failed = False
    for done, name in enumerate(names):
        seconds = None
        if until is not None:  # what a harness took too much of, or left, is shared by those after it
            share = HARNESSES[name][2] / sum(HARNESSES[later][2] for later in names[done:])
            seconds = max(0.0, until - time.monotonic()) * share
        if name == "kernels" and os.environ.get("TRITON_INTERPRET") != "1":
            failed |= interpreted(options, seconds) != 0
            continue
        begun = time.monotonic()
        summary = run_one(name, options.seed, options.cases, seconds)
        print(summary, flush=True)
        failed |= bool(summary.failures)
        if options.out is not None:
            keep(options.out, summary, options.seed, time.monotonic() - begun)
    return int(failed)


def interpreted(options: argparse.Namespace, seconds: float | None) -> int:
    """Run the kernels in a process of its own, because Triton decides at its import whether it interprets."""
    again = [sys.executable, "-W", "ignore", "-m", "tests.adversarial", "--only", "kernels"]
    again += ["--seed", str(options.seed)]
    again += [] if seconds is None else ["--minutes", str(seconds / 60)]
    again += [] if options.cases is None else ["--cases", str(options.cases)]
    again += [] if options.out is None else ["--out", str(options.out)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(again, env=environment, check=False).returncode


def what_is_tried(name: str) -> str:
    """The first line of what a case says of itself."""
    return (case_of(name).__doc__ or "").partition("\n")[0]


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
        "minutes": round(minutes, 1), "command": command, "what": what_is_tried(summary.name),
    }  # fmt: skip
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
