from __future__ import annotations

from gence.experiment.result import RunResult
from gence.paper.imbalanced import imbalanced
from gence.paper.measured import measured_table
from gence.paper.table1 import table1

OTHERS = {"ece": 0.1, "offset/accuracy": 0.5}


def test_a_line_for_each_cell_with_three_seeds(writer) -> None:
    assert measured_table(writer.store) == "Nothing is measured yet.\n"
    for exhibit, accuracies in ((table1(), (0.4, 0.5, 0.6)), (imbalanced(), (0.6, 0.7, 0.8))):
        for row in exhibit.rows[:2]:
            for seed, accuracy in enumerate(accuracies):
                spec = row.base.replace(seed=seed)
                result = RunResult(metrics={"accuracy": accuracy, **OTHERS})
                writer.store.write(spec, result, {"device": "test device"})
    lines = measured_table(writer.store).splitlines()
    found = [tuple(word.strip() for word in line.split("|")[1:4]) for line in lines if "paper" in line]
    assert len(found) == len(set(found)) == 4
    assert sum("rho" in size for _, size, _ in found) == 2, "tails of different steepness are different cells"
    assert all("50.0 ± 10.0" in line or "70.0 ± 10.0" in line for line in lines if "paper" in line)
