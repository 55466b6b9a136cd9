"""Record what the loss and a training step with it cost.

    python benchmarks/bench_loss.py --out results/bench

writes loss.json and step.json there and prints the loss table and the paired differences.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gence.lab.bench import bench_loss, bench_step, print_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None, help="folder of the records")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-step", dest="step", action="store_false")
    parser.add_argument("--no-loss", dest="loss", action="store_false")
    options = parser.parse_args()
    loss_out = None if options.out is None else options.out / "loss.json"
    step_out = None if options.out is None else options.out / "step.json"
    if options.loss:
        record = bench_loss(device=options.device, out=loss_out, quick=options.quick, compile=options.compile)
        print_table(record)
    if options.step:
        for row in bench_step(device=options.device, out=step_out, pairs=20 if options.quick else 60)["rows"]:
            low, high = row["low_percent"], row["high_percent"]
            print(
                f"{row['model']:10} {row['way']:6} CE {row['ce_ms']['median']:.3f} ms, "
                f"GenCE {row['gence_ms']['median']:.3f} ms, "
                f"{row['difference_percent']:+.3f} % [{low:+.3f}, {high:+.3f}]"
            )


if __name__ == "__main__":
    main()
