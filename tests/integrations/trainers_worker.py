"""What each of two ranks does, started by tests/ranks.py: the same trainings as one process with the whole batch."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gence.integrations import huggingface, lightning
from tests.integrations import trainers


def main(folder: Path) -> None:
    watched = huggingface.MarginalCallback(), lightning.MarginalCallback()
    found = {
        "huggingface": trainers.train_huggingface(folder / "trainer", 4, 4, callbacks=watched[:1]),
        "lightning": trainers.train_lightning(4, 4, devices=2, callbacks=watched[1:]),
    }
    for result, callback in zip(found.values(), watched, strict=True):
        del result["trainer"]
        result["history"] = callback.monitor.history
    del found["lightning"]["module"]
    torch.save(found, folder / f"rank{os.environ['RANK']}.pt")
