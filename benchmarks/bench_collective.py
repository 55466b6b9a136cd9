"""Count the bytes that ranks send for one loss, forward and backward, as the kernel counts them (Linux, Gloo over TCP).

    PYTHONPATH=. python benchmarks/bench_collective.py [--output results/bench/collective.json]

The counting is that of tests/losses/distributed, which holds it below a bound. The median of five steps and the rank
that sent most are recorded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.losses.distributed.worker import bytes_of_a_step

from gence.lab.store import environment_record

RANKS = (2, 3)
SHAPES = ((4, 100), (400, 100), (4, 1100), (400, 1100))  # rows of a rank, classes


def count(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=ranks)
    counts = [bytes_of_a_step(rows, classes) for rows, classes in SHAPES]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(counts))
    dist.barrier()
    dist.destroy_process_group()


def measure() -> list[dict[str, float]]:
    found = []
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(count, (ranks, folder), nprocs=ranks)
            of_ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
        for place, (rows, classes) in enumerate(SHAPES):
            sent = max(counts[place] for counts in of_ranks)
            reduced = round(2 * (ranks - 1) / ranks * (2 * classes + 1) * 4)
            found.append({"ranks": ranks, "rows_of_a_rank": rows, "classes": classes, "bytes_sent": sent,
                          "of_an_all_reduce_of_2K_+_1_floats": reduced, "beyond_it": sent - reduced})  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/bench/collective.json"))
    options = parser.parse_args()
    rows = measure()
    record = {"bench": "collective", "backend": "gloo", "dtype": "float32", "environment": environment_record(),
              "rows": rows}  # fmt: skip
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
