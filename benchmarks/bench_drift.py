"""Record the drift that tests/theory/test_network_drift.py tests: plain GenCE, the same networks repaired, the anchor.

PYTHONPATH=. python benchmarks/bench_drift.py [--seeds 5] [--output results/bench/drift.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tests.theory.test_network_drift import accuracy, digits, train, two_layers

from gence.losses import fold_offset, marginal_offset
from gence.paper import write_study

RATE = 0.03  # the test's: above the threshold from which this network drifts
BATCH_SIZES = (25, 50, 100, 300)  # 50 is the test's; all have the same epochs


def measure(seeds: int, batch_size: int) -> dict[str, list[float]]:
    x, y, test_x, test_y = digits()
    plain, repaired, anchored = [], [], []
    for seed in range(seeds):
        network = train(two_layers(seed), x, y, lr=RATE, anchor=0.0, batch_size=batch_size)
        plain.append(accuracy(network, test_x, test_y))
        with torch.no_grad():
            fold_offset(network, marginal_offset(network(x)))
        repaired.append(accuracy(network, test_x, test_y))
        network = train(two_layers(seed), x, y, lr=RATE, anchor=0.1, batch_size=batch_size)
        anchored.append(accuracy(network, test_x, test_y))
    return {"plain GenCE": plain, "the same networks, offset folded in": repaired, "GenCE, anchor 0.1": anchored}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/bench/drift.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        (name, f"batch {batch_size}"): seeds
        for batch_size in BATCH_SIZES
        for name, seeds in measure(options.seeds, batch_size).items()
    }
    write_study(options.output, "`benchmarks/bench_drift.py`", found, rows_are="training")
    for (name, batch), seeds in found.items():
        print(f"{name}, {batch}: " + ", ".join(f"{value:.3f}" for value in seeds))


if __name__ == "__main__":
    main()
