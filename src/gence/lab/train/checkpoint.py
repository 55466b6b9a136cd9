"""What is on disk while a cohort trains and after it: safetensors, written atomically."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gence._version import __version__
from gence.calibrate import Calibrator
from gence.lab.spec import RunSpec
from gence.lab.store import CHECKPOINT_PREFIX, RUNS_NOTE, changed_parts, writing_file

if TYPE_CHECKING:
    from gence.lab.train.run import Trainee


CHECKSUM = "crc32"
"""The note that holds a file's checksum."""

_log = logging.getLogger("gence.lab.train")


@dataclass(frozen=True)
class SavedCohort:
    """A cohort after some epochs."""

    epoch: int
    elapsed_s: float
    tensors: list[dict[str, Tensor]]
    sums: list[list[Tensor]]


class CohortCheckpoint:
    """The one checkpoint file of a cohort, named by the keys of its runs.

    A file of another version of gence is not used: what its tensors mean may have changed. Nor is one whose images
    were others (`data` has their checksums): half of a training on each would be a training on neither.
    """

    def __init__(self, folder: Path, specs: Sequence[RunSpec], data: Mapping[str, str] | None = None) -> None:
        name = hashlib.sha256("/".join(spec.key for spec in specs).encode()).hexdigest()[:16]
        self.path = folder / f"{CHECKPOINT_PREFIX}{name}.safetensors"
        self._runs = [spec.key for spec in specs]
        self._data = dict(data or {})

    def save(self, epoch: int, elapsed_s: float, tensors: list[dict[str, Tensor]], sums: list[list[Tensor]]) -> None:
        """Write the state after ``epoch`` epochs, which took ``elapsed_s`` seconds."""
        flat = {f"run{i}/{name}": value for i, run in enumerate(tensors) for name, value in run.items()}
        flat |= {f"sums{i}": torch.stack(run) for i, run in enumerate(sums)}
        notes = {"epoch": str(epoch), "elapsed_s": str(elapsed_s), "gence": __version__}
        write_tensors(self.path, flat, {**notes, "data": json.dumps(self._data), RUNS_NOTE: json.dumps(self._runs)})

    def load(self) -> SavedCohort | None:
        """The state that was saved, or None; a file that cannot be read was never finished and is not used."""
        if not self.path.exists():
            return None
        from safetensors import SafetensorError

        try:
            flat, notes = read_tensors(self.path)
        except (SafetensorError, ValueError, OSError) as error:
            _log.warning("the checkpoint %s cannot be used (%s); its runs start over", self.path, error)
            return None
        if notes.get("gence") != __version__ or changed_parts(json.loads(notes.get("data", "{}")), self._data):
            return None
        count = sum(name.startswith("sums") for name in flat)
        tensors = [
            {name.removeprefix(f"run{i}/"): value for name, value in flat.items() if name.startswith(f"run{i}/")}
            for i in range(count)
        ]
        sums = [list(flat[f"sums{i}"]) for i in range(count)]
        return SavedCohort(int(notes["epoch"]), float(notes["elapsed_s"]), tensors, sums)

    def remove(self) -> None:
        """Delete the file: the runs are done."""
        self.path.unlink(missing_ok=True)


def save_model(path: Path, trainee: Trainee, offset: Tensor | None, calibrator: Calibrator | None = None) -> None:
    """Write a trained network with all that prediction needs: spec, classes, normalisation, offset, calibrator."""
    problem = trainee.problem
    flat = {f"model/{name}": value for name, value in trainee.classifier.state_dict().items()}
    flat |= {"mean": problem.mean, "std": problem.std, "prior": problem.prior}
    if offset is not None:
        flat["offset"] = offset
    shape = list(problem.train.images.shape[1:])
    notes = {"spec": trainee.spec.to_json(), "classes": json.dumps(problem.classes), "image_shape": json.dumps(shape)}
    add_calibrator(flat, notes, calibrator)
    write_tensors(path, flat, {**notes, "data": json.dumps(problem.checksums)})


def add_calibrator(tensors: dict[str, Tensor], notes: dict[str, str], calibrator: Calibrator | None) -> None:
    """Put a calibrator among what is to be written; `read_calibrator` finds it there."""
    if calibrator is not None:
        own, notes["calibration"] = calibrator.to_tensors()
        tensors.update(own)


def read_calibrator(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> Calibrator | None:
    """The calibrator of a file, or None where it has none."""
    return Calibrator.from_tensors(tensors, notes["calibration"]) if "calibration" in notes else None


def write_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Write a safetensors file so that it is there whole or not at all; raise `StoreError` if it cannot be written.

    A checksum of tensors and notes goes with them, which `read_tensors` looks at.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    contiguous = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    with writing_file(path) as part:
        try:
            save_file(contiguous, part, metadata={**notes, CHECKSUM: _checksum(contiguous, notes)})
        except SafetensorError as error:
            # It has no number of its own: "... No space left on device (os error 28)".
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else None, str(error)) from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors (on the CPU) and notes of a safetensors file.

    Raises:
        ValueError: tensors or notes are not what was written. Files of older versions have no checksum.
    """
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        names = list(file.keys())
        tensors, notes = {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    written = notes.pop(CHECKSUM, None)
    if written is not None and written != _checksum(tensors, notes):
        raise ValueError(f"{path} is damaged: its checksum differs")
    return tensors, notes


def _checksum(tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> str:
    """CRC-32 of everything in a file: fast enough for gigabytes, and no bit flips unnoticed."""
    found = zlib.crc32(json.dumps(sorted(notes.items())).encode())
    for name, value in sorted(tensors.items()):
        found = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), found)
        found = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"
