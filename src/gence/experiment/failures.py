"""What went wrong: the failed attempts of each run, kept so that a restarted driver does not try for ever."""

from __future__ import annotations

import datetime
import json
import traceback
from pathlib import Path
from typing import Any

from gence.experiment import atomic
from gence.experiment.spec import RunSpec

_KEPT_ATTEMPTS = 20


class Failures:
    """The failed attempts recorded in a store.

    Args:
        root: the store's folder.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "failures"

    def add(self, spec: RunSpec, error: BaseException | str) -> int:
        """Record one failed attempt; return how many there are now."""
        attempts = self.attempts(spec.key)
        text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        attempts.append(
            {
                "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "error": text if isinstance(error, str) else f"{type(error).__name__}: {error}",
                "traceback": text,
            }
        )
        content = {"key": spec.key, "spec": spec.to_dict(), "attempts": attempts[-_KEPT_ATTEMPTS:]}
        atomic.replace(self._path(spec.key), json.dumps(content, indent=1).encode())
        return len(attempts)

    def attempts(self, key: str) -> list[dict[str, Any]]:
        """Return the failed attempts of a run, oldest first: time, error and traceback."""
        try:
            attempts: list[dict[str, Any]] = json.loads(self._path(key).read_bytes())["attempts"]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise atomic.StoreError(f"{self._path(key)} cannot be read ({error}); remove it to try again") from error
        return attempts

    def counts(self) -> dict[str, int]:
        """Return how often each run failed."""
        if not self._folder.is_dir():
            return {}
        keys = (path.stem for path in self._folder.glob("*.json") if not path.name.startswith("."))
        return {key: len(self.attempts(key)) for key in keys}

    def forget(self, key: str) -> None:
        """Forget the failures of a run: it succeeded, or is to be tried again."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
