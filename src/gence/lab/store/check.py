"""What merging and checking a store found, and what to do where there is nothing."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from gence.lab.store import files

CHECKPOINT_PREFIX = "cohort-"
"""How the names of checkpoints begin."""

RUNS_NOTE = "runs"
"""The note of a checkpoint that has the keys of its runs."""


def leftovers(root: Path, recorded: Container[str]) -> list[Path]:
    """Return what can be deleted in a store: unfinished files that nobody writes, checkpoints of recorded runs.

    Args:
        root: the store's folder.
        recorded: the keys of its records.
    """
    unfinished = (path for path in root.rglob(f"{files.TEMPORARY_PREFIX}*") if files.is_abandoned(path))
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


def is_it_the_folder(root: Path) -> str:
    """Return what to do about a store without records: often its folder is a level below, as `gence compare` has it."""
    inner = root / "store"
    if (inner / "records").is_dir() or (inner / "records.jsonl").is_file():
        return f"there are records in {inner}: name that folder"
    return "check the path, or make runs with `gence compare` or `gence run`"


@dataclass(frozen=True)
class MergeReport:
    """What a merge did: keys added, keys both had with the same outcome, and keys whose outcomes differ.

    Of two records that differ the older one is kept, so that merging in either order gives the same store. What is
    wrong with records of the other store that could not be read, which stay where they are, is in `damaged`.
    """

    added: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoreCheck:
    """What a check found.

    Attributes:
        sound: how many records are as they were written.
        problems: what is wrong, a sentence each.
        notes: what is odd and harms nobody.
        leftovers: files that nobody will use again.
    """

    sound: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    leftovers: tuple[Path, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every record is sound (notes and leftovers harm nobody)."""
        return not self.problems
