"""What harnesses of files share: damage, traps, and bounds on what reading may do."""

from __future__ import annotations

import io
import os
import random
import resource
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from gence.lab.data import DataError

MOST_MEMORY = 900  # MiB by which a case may raise the peak of its process


@contextmanager
def kept_in(place: Path) -> Iterator[None]:
    """What is read in the block writes nothing, runs nothing, calls nobody, and stays within bounds of memory.

    The current folder is below ``place``, and has a module that says so where it is imported.
    """
    inner = place / "deep" / "inner"
    inner.mkdir(parents=True, exist_ok=True)
    os.chdir(inner)
    (inner / "evil.py").write_text("from pathlib import Path\nPath('/tmp/attack-was-here').touch()\n")
    before, peak = _everything(place), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with mock.patch("socket.socket.connect", _nobody), mock.patch("socket.getaddrinfo", _nobody):
        yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    assert grown < MOST_MEMORY, f"memory grew by {grown:.0f} MiB"
    assert _everything(place) == before, f"written: {sorted(_everything(place) ^ before)}"
    assert not Path("/tmp/attack-was-here").exists(), "something was executed or written outside"


def _nobody(*address: object, **_: object) -> None:
    raise SystemExit(f"the network is asked: {address}")  # no error that a reader would catch


def _everything(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def refused(call: Callable[[], Any], name: str, kinds: tuple[type[Exception], ...] = (DataError,)) -> Any:
    """Call; return what it gives, or None after an error of the documented kinds that names the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except kinds as error:
            assert name in str(error), f"the error does not name {name}: {error}"
            assert len(str(error)) < 2000, f"an error of {len(str(error))} characters"
            return None


def damaged(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """A bit flipped, a byte replaced, the end cut off, a piece doubled, removed or zeroed."""
    kind = rng.choice(("flip", "flip", "replace", "cut", "double", "remove", "zeros", "number"))
    at, length = rng.randrange(len(data)), rng.randrange(1, 40)
    changed = bytearray(data)
    if kind == "flip":
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == "replace":
        changed[at] = rng.randrange(256)
    elif kind == "cut":
        del changed[at:]
    elif kind == "double":
        changed[at:at] = changed[at : at + length]
    elif kind == "remove":
        del changed[at : at + length]
    elif kind == "zeros":
        changed[at : at + length] = bytes(length)
    else:  # the numbers on which readers of formats stumble
        changed[at : at + 4] = struct.pack(rng.choice("<>") + "I", rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1)))
    return kind, bytes(changed)


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The files as a zip."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", compression) as archive:
        warnings.simplefilter("ignore")
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class Touch:
    """An object that runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/attack-was-here",)
