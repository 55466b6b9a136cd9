"""How fast images are embedded, against the bare network on tensors that are ready.

    python benchmarks/bench_embed.py DATA [--images 1024] [--output results/bench/embed-cpu.json]

"embed" is all of it: resizing in a thread, the network, the cache on disk with its checksums. The rounds alternate, so
that whatever else the machine does falls on both; the ratio is that of the medians, and of the best rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gence.lab.bench import write_record
from gence.lab.data import load
from gence.lab.features import embed, load_encoder
from gence.lab.features.embedding import BATCH
from gence.lab.store import environment_record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    encoder = load_encoder()
    size = encoder.preprocessing.size
    images = load(arguments.data, image_size=size).train
    images = images.subset(torch.arange(min(arguments.images, len(images))))
    ready = [encoder.preprocessing(part) for part in torch.split(images.images, BATCH)]
    encoder(ready[0])
    bare, whole, ratios = [], [], []
    for _ in range(arguments.rounds):
        began = time.perf_counter()
        for pixels in ready:
            encoder(pixels)
        bare.append(time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            embed(images, encoder, cache_dir=Path(folder))
            whole.append(time.perf_counter() - began)
        ratios.append(bare[-1] / whole[-1])
    rate = {name: round(len(images) / min(times), 1) for name, times in (("bare", bare), ("embed", whole))}
    found: dict[str, Any] = {
        "what": "embed", "environment": environment_record(), "threads": torch.get_num_threads(),
        "data": Path(arguments.data).name, "images": len(images), "encoder": encoder.name, "size": size, "batch": BATCH,
        "rounds": arguments.rounds, "images_per_second": rate, "share_of_bare": round(min(bare) / min(whole), 3),
        "median_share_of_bare": round(statistics.median(ratios), 3),
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if arguments.output:
        write_record(found, arguments.output)


if __name__ == "__main__":
    main()
