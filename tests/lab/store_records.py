"""Stores with a few records, for tests."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gence.lab.store import record as records
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from tests.lab.tiny_trainer import make_specs

SPECS = make_specs(3, losses=("ce", "gence(anchor=0.1)"))
ENVIRONMENT = {"device": "cpu", "commit": "abc", "versions": {}}


def result(accuracy: float = 0.5, **changes) -> RunResult:
    values = {"metrics": {"accuracy": accuracy}, "curves": {"epoch": [1, 2]}, "wall_s": 1.5, **changes}
    return RunResult(**values)


def filled(path: Path, specs=SPECS, accuracy: float = 0.5) -> Store:
    store = Store(path)
    for spec in specs:
        assert store.write(spec, result(accuracy + spec.seed / 100), ENVIRONMENT)
    return store


def record_file(store: Store, spec=SPECS[0]) -> Path:
    return store.root / "records" / spec.key[:2] / f"{spec.key}.json"


@contextlib.contextmanager
def a_day_later(monkeypatch):
    """Date what is written meanwhile as another machine would have a day later."""

    class Tomorrow(records.datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + records.datetime.timedelta(days=1)

    with monkeypatch.context() as patched:
        patched.setattr(records.datetime, "datetime", Tomorrow)
        yield
