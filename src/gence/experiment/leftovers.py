"""Files in a store that nobody will use again: what killed processes were writing, and checkpoints of finished runs.

A cohort that ends removes its checkpoint. One that was stopped, and whose runs were then done in cohorts of another
size, leaves it behind.
"""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path

from gence.experiment import atomic

CHECKPOINT_PREFIX = "cohort-"
"""How the names of checkpoints begin."""

RUNS_NOTE = "runs"
"""The note of a checkpoint that has the keys of its runs."""


def leftovers(root: Path, recorded: Container[str]) -> list[Path]:
    """Return what can be deleted in a store.

    Args:
        root: the store's folder.
        recorded: the keys of its records.
    """
    unfinished = root.rglob(f"{atomic.TEMPORARY_PREFIX}*")
    checkpoints = (root / "work").glob(f"{CHECKPOINT_PREFIX}*.safetensors")
    return sorted([*unfinished, *(path for path in checkpoints if _is_over(path, recorded))])


def _is_over(checkpoint: Path, recorded: Container[str]) -> bool:
    """Whether all runs of a checkpoint are recorded; of one that does not name them, nobody knows."""
    try:
        with checkpoint.open("rb") as file:
            # As safetensors has it: the header's length, then the header. The library itself would import torch.
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        runs = json.loads(header["__metadata__"][RUNS_NOTE])
    except (OSError, ValueError, KeyError, OverflowError, MemoryError):
        return False
    return all(key in recorded for key in runs)
