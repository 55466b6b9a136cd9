"""What each of two ranks does, started by torchrun: the same trainings as one process with the whole batch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.integrations import trainers


def main(folder: Path) -> None:
    found = {"huggingface": trainers.train_huggingface(folder / "trainer", 4, 4)}
    lightning = trainers.train_lightning(4, 4, devices=2)
    found["lightning"] = {"weights": lightning["weights"], "losses": lightning["losses"]}
    torch.save(found, folder / f"rank{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
