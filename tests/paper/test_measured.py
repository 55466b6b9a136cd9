from __future__ import annotations

import dataclasses

import pytest

from gence.lab.spec.loss import LossSpec
from gence.lab.store.record import RunResult
from gence.paper.blocks import COLUMNS, measured_table
from gence.paper.exhibits.imbalanced import imbalanced
from gence.paper.exhibits.table1 import table1

OTHERS = {"offset/accuracy": 0.8, "offset/ece": 0.05}


@pytest.fixture
def write(writer):
    def write(row, loss: str, accuracies, **metrics) -> None:
        for seed, accuracy in enumerate(accuracies):
            spec = row.base.replace(loss=LossSpec.parse(loss), seed=seed)
            result = RunResult(metrics={"accuracy": accuracy, "ece": 1 - accuracy, **OTHERS, **metrics})
            writer.store.write(spec, result, {"device": "test device"})

    return write


def cells(table: str) -> list[list[str]]:
    return [[word.strip() for word in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| C")]


def test_a_line_for_each_cell_with_three_seeds_of_both(writer, write) -> None:
    assert measured_table(writer.store) == "Nothing is measured yet.\n"
    for row in (*table1().rows[:2], *imbalanced().rows[:2]):
        write(row, "ce", (0.4, 0.5, 0.6))
        write(row, "gence", (0.6, 0.7, 0.8))
    write(table1().rows[3], "ce", (0.1, 0.2, 0.3))
    write(table1().rows[3], "gence", (0.1, 0.2))
    found = cells(measured_table(writer.store))
    assert len(found) == len({tuple(line[:4]) for line in found}) == 4
    assert sum("rho" in line[1] for line in found) == 2, "tails of different steepness are different cells"
    for line in found:
        assert line[4:8] == ["50.0 ± 10.0", "70.0 ± 10.0", "**80.0 ± 0.0**", "–"]


def test_a_cell_of_the_whole_data_set_is_shown_as_such(writer, write) -> None:
    row = table1().rows[0]
    whole = dataclasses.replace(row, base=row.base.replace(**{"subset.n": None}))
    write(whole, "ce", (0.4, 0.5, 0.6))
    write(whole, "gence", (0.4, 0.5, 0.6))
    (line,) = cells(measured_table(writer.store))
    assert line[1] == "all"


def test_without_both_losses_there_is_no_line(writer, write) -> None:
    write(table1().rows[0], "ce", (0.4, 0.5, 0.6))
    assert measured_table(writer.store) == "No cell has enough seeds of both cross-entropy and GenCE yet.\n"


def test_calibration_has_no_best_and_other_losses_are_left_out(writer, write) -> None:
    row = table1().rows[0]
    for loss, accuracy in (("ce", 0.9), ("gence", 0.7), ("brier", 0.96), ("gence(anchor=0.3)", 0.99)):
        write(row, loss, (accuracy,) * 4)
    (line,) = cells(measured_table(writer.store, "ece"))
    shown = dict(zip([column.name for column in COLUMNS], line[4:], strict=True))
    assert [shown[name] for name in ("ce", "offset", "brier")] == ["10.0 ± 0.0", "5.0 ± 0.0", "4.0 ± 0.0"]
    assert shown["anchored"] == shown["mae"] == "–"
    assert "over 4 seeds. 12 runs on test device; none diverged." in measured_table(writer.store, "ece")


def test_a_seed_without_the_number_leaves_the_cell_open(writer, write) -> None:
    row = table1().rows[0]
    write(row, "ce", (0.4, 0.5, 0.6))
    write(row, "gence", (0.6, 0.7, 0.8, 0.9), **{"offset/accuracy": float("nan")})
    (line,) = cells(measured_table(writer.store))
    assert line[5:7] == ["**75.0 ± 12.9**", "–"]
