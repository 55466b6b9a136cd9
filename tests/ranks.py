"""Ranks for tests: processes of this machine that train together.

torchrun starts Python again for each rank, and its imports take longer than all that a rank does here. So one process
imports what they need, and then becomes several.
"""

from __future__ import annotations

import atexit
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_ranks(module: str, folder: Path, *counts: int) -> None:
    """Call `main(folder)` of a module in so many ranks at once, with the variables that torchrun would set.

    Each count is one call after the other, and has the folder of its own that is named by it.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.ranks", module, str(folder), *map(str, counts)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-6000:]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _rank(rank: int, count: int, port: int, main: Callable[[Path], None], folder: Path) -> None:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ |= {name: str(value) for name, value in {**own, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items()}
    main(folder)
    atexit._run_exitfuncs()  # processes of this kind end without, and coverage is written there


if __name__ == "__main__":
    from torch.multiprocessing import start_processes

    main = importlib.import_module(sys.argv[1]).main
    for count in map(int, sys.argv[3:]):
        folder = Path(sys.argv[2], str(count))
        folder.mkdir()
        start_processes(_rank, (count, free_port(), main, folder), nprocs=count, start_method="fork")
