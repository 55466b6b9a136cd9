"""Runs cases by their seeds, and keeps count of what was tried and what failed."""

from __future__ import annotations

import os
import random
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Case = Callable[[random.Random, Path], str]


@dataclass
class Summary:
    """What was tried of a harness: cases by kind, and the seed and message of each failure."""

    name: str
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """All cases, failures included."""
        return sum(self.kinds.values()) + len(self.failures)

    def __str__(self) -> str:
        """The summary as a line, and the failures with what repeats them."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kinds.items()))
        lines = [f"{self.name}: {self.cases} cases, {len(self.failures)} failures ({kinds})"]
        lines += [f"  seed {seed}: {message}" for seed, message in self.failures]
        return "\n".join(lines)


def attack(
    name: str, case: Case, seed: int, *, cases: int | None = None, seconds: float | None = None, most_failures: int = 20
) -> Summary:
    """Run cases with the seeds from ``seed`` on, until there are enough of them or the time is over."""
    summary, until = Summary(name), None if seconds is None else time.monotonic() + seconds
    for own in _seeds(seed):
        over = (cases is not None and summary.cases >= cases) or (until is not None and time.monotonic() > until)
        if over or len(summary.failures) >= most_failures:
            break
        with tempfile.TemporaryDirectory(prefix="attack-") as place:
            before = Path.cwd()
            try:
                summary.kinds[case(random.Random(f"{name} {own}"), Path(place))] += 1
            except (Exception, SystemExit) as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                summary.failures.append((own, f"{type(error).__name__} at {where}: {error}"))
            finally:
                os.chdir(before)
    return summary


def _seeds(seed: int) -> Iterator[int]:
    while True:
        yield seed
        seed += 1
