"""Record the drift that tests/theory/test_network_drift.py tests: plain GenCE, the same networks repaired, the anchor.

PYTHONPATH=. python benchmarks/bench_drift.py [--seeds 5] [--output results/bench/drift.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tests.theory.test_network_drift import accuracy, digits, train, two_layers

from gence.experiment.small_study import write_study
from gence.losses import fold_offset, marginal_offset

RATE = 0.03  # the test's: above the threshold from which this network drifts


def measure(seeds: int) -> dict[tuple[str, str], list[float]]:
    x, y, test_x, test_y = digits()
    plain, repaired, anchored = [], [], []
    for seed in range(seeds):
        network = train(two_layers(seed), x, y, lr=RATE, anchor=0.0)
        plain.append(accuracy(network, test_x, test_y))
        with torch.no_grad():
            fold_offset(network, marginal_offset(network(x)))
        repaired.append(accuracy(network, test_x, test_y))
        anchored.append(accuracy(train(two_layers(seed), x, y, lr=RATE, anchor=0.1), test_x, test_y))
    names = ("plain GenCE", "the same networks, offset folded in", "GenCE, anchor 0.1")
    return {(name, "accuracy"): found for name, found in zip(names, (plain, repaired, anchored), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/bench/drift.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.seeds)
    write_study(options.output, "`benchmarks/bench_drift.py`", found, rows_are="training")
    for (name, _), seeds in found.items():
        print(f"{name}: " + ", ".join(f"{value:.3f}" for value in seeds))


if __name__ == "__main__":
    main()
