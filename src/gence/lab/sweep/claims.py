"""Claims: who is doing which run now, so that two drivers on one store do not repeat each other's runs.

A claim is a file that can be made only once. It says which process holds it, and a thread keeps its time fresh. A
claim whose process is dead on this machine, or whose time is old (the machine is gone), is taken over. Claims prevent
waste, not damage: if two processes did the same run after all, the second record would find its name taken.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock

from gence.lab.spec import RunSpec
from gence.lab.store import StoreError, create_file, is_alive, process_identity, replace_file, temporary_path

HEARTBEAT_S = 10.0
"""How often a claim's time is renewed."""

STALE_AFTER_S = 120.0
"""How old a claim of another machine may be before its holder counts as dead."""

_AHEAD_S = 1.0


class Claims:
    """The claims this process holds in one store; use it in a `with` block, so that they end with the work.

    Args:
        root: the store's folder.
        stale_after_s: age at which a claim that cannot be checked (made on another machine) may be taken over.
        heartbeat_s: how often the claims' times are renewed.
    """

    def __init__(self, root: Path, *, stale_after_s: float = STALE_AFTER_S, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._folder = root / "claims"
        self._stale_after_s = stale_after_s
        self._heartbeat_s = heartbeat_s
        self._held: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for key in sorted(self._held):
            self.release(key)

    def take(self, key: str) -> bool:
        """Claim a run; return whether it is ours now."""
        path = self._path(key)
        data = json.dumps(process_identity()).encode()
        taken = create_file(path, data, durable=False)
        if not taken and self._is_stale(path):
            # Under a lock the operating system frees when its holder dies: of two that see the same dead claim, one
            # removes it, and nobody removes the new one in the belief that it is still the old.
            with self._lock():
                if self._is_stale(path):
                    path.unlink(missing_ok=True)
                taken = create_file(path, data, durable=False)
        if taken:
            self._held.add(key)
            self._beat()
        return taken

    def release(self, key: str) -> None:
        """Give a claim back."""
        if key in self._held:
            self._held.discard(key)
            with contextlib.suppress(OSError), self._lock():
                self._path(key).unlink(missing_ok=True)

    def held_elsewhere(self, key: str) -> bool:
        """Return whether a living process other than this one seems to be doing the run."""
        path = self._path(key)
        return key not in self._held and path.exists() and not self._is_stale(path)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.claim"

    def _lock(self) -> FileLock:
        self._folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._folder / "takeover.lock")

    def _is_stale(self, path: Path) -> bool:
        try:
            content = path.read_bytes()
            touched = path.stat().st_mtime
        except FileNotFoundError:
            return True
        except OSError:
            return False
        alive = is_alive(_holder(content))
        if alive is not None:
            return not alive
        now = self._file_system_time()
        if touched > now + _AHEAD_S:
            # A clock was ahead, and may have been corrected by years since: the claim ages from now on. Its holder, if
            # it lives, dates it again.
            with contextlib.suppress(OSError):
                os.utime(path)
        return now - touched > self._stale_after_s

    def _file_system_time(self) -> float:
        """Return now by the clock of the file system, as the clocks of a cluster's machines differ."""
        probe = temporary_path(self._folder / "clock")
        try:
            probe.write_bytes(b"")
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _beat(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_fresh, name="gence-claims", daemon=True)
            self._thread.start()

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self._heartbeat_s):
            for key in tuple(self._held):
                with contextlib.suppress(OSError):
                    os.utime(self._path(key))


def _holder(content: bytes) -> dict[str, Any]:
    """Return who holds a claim; nobody known, where a full disk or a power cut left the file empty or garbled."""
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


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
        replace_file(self._path(spec.key), json.dumps(content, indent=1).encode())
        return len(attempts)

    def attempts(self, key: str) -> list[dict[str, Any]]:
        """Return the failed attempts of a run, oldest first: time, error and traceback."""
        try:
            attempts: list[dict[str, Any]] = json.loads(self._path(key).read_bytes())["attempts"]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{self._path(key)} cannot be read ({error}); remove it to try again") from error
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
