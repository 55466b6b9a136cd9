"""Record what a training step costs: bench_train.py OUT.json [models] [cohort sizes] [compile 0/1] [usual 0/1]."""

import sys
from pathlib import Path

from gence.lab.bench import bench_train, write_record

if __name__ == "__main__":
    out, models, sizes, compiled, usual = (
        sys.argv[1:] + ["vgg19,resnet50", "1,4,8,14", "1", "1"][len(sys.argv) - 2 :]
    )[:5]
    record = bench_train(
        models.split(","),
        cohort_sizes=[int(s) for s in sizes.split(",")],
        compile=compiled == "1",
        usual=usual == "1",
    )
    for row in record["rows"]:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    write_record(record, Path(out))
