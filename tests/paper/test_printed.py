"""The printed values agree with themselves and with what the paper's text says of them."""

from __future__ import annotations

import pytest

from gence.paper.exhibit_registry import load_exhibit

COUNTS = {"table1": 72, "imbalanced": 24, "ece": 36, "ood": 4 * 24, "smoothing": 15, "reliability": 0, "batch_size": 0}


def values(name: str, row: str) -> dict[str, float]:
    return {loss: printed.mean for loss, printed in load_exhibit(name).selected([row])[0].printed.items()}


@pytest.mark.parametrize("name", COUNTS)
def test_every_value_is_there_and_possible(name: str) -> None:
    printed = [value for row in load_exhibit(name).rows for value in row.printed.values()]
    assert len(printed) == COUNTS[name]
    assert all(0 < value.mean < 100 and 0 < value.std < 4 for value in printed)


@pytest.mark.parametrize("name", [name for name, count in COUNTS.items() if count])
def test_the_value_in_bold_is_the_best_of_its_row(name: str) -> None:
    exhibit = load_exhibit(name)
    for row in (row for row in exhibit.rows if row.printed):
        best = (max if exhibit.higher_is_better else min)(row.printed, key=lambda loss: row.printed[loss].mean)
        assert best == row.bold, row.name


def test_tables_print_the_same_value_for_the_same_cell() -> None:
    for data in ("cifar10", "cifar100", "mini-imagenet"):
        accuracy = load_exhibit("table1").selected([f"{data}-2000-resnet50"])[0].printed
        smoothing = load_exhibit("smoothing").selected([f"{data}-2000-resnet50"])[0].printed
        assert (accuracy["gence"], accuracy["ce"]) == (smoothing["gence"], smoothing["ce"])


def test_the_text_on_accuracy() -> None:
    gap = {row.name: row.printed["gence"].mean - row.printed["ce"].mean for row in load_exhibit("table1").rows}
    assert round(gap["cifar100-2000-vgg19"], 1) == 9.5
    assert max(gap, key=lambda name: gap[name]) == "cifar100-2000-vgg19"
    assert 0.5 < gap["cifar10-5000-vgg19"] < gap["cifar10-5000-resnet50"] < 1.2  # "around a point on either backbone"
    rows = load_exhibit("imbalanced")
    assert all(
        values("imbalanced", f"{data}-rho100-resnet50")["gence"] - values("imbalanced", f"{data}-rho100-resnet50")["ce"]
        > values("imbalanced", f"{data}-rho10-resnet50")["gence"] - values("imbalanced", f"{data}-rho10-resnet50")["ce"]
        for data in ("cifar10", "cifar100")
    )
    assert len(rows.rows) == 4


def test_the_text_on_calibration_and_ood() -> None:
    printed = [row for row in load_exhibit("ece").rows if row.printed]
    assert sum(row.bold == "gence" for row in printed) == 5
    assert len(printed) == 6
    accuracy, ece = values("table1", "cifar10-5000-resnet50"), values("ece", "cifar10-5000-resnet50")
    assert ece["focal"] < ece["gence"]
    assert accuracy["gence"] - accuracy["focal"] > 1  # "it pays more than a point of accuracy for that calibration"
    far = load_exhibit("ood").selected(["cifar10-5000-resnet50/far-entropy"])[0].printed
    assert (far["gence"].std, far["ce"].std) == (1.33, 3.43)
    near = values("ood", "cifar10-5000-resnet50/near-entropy")
    assert round(near["gence"] - near["ce"]) == 1
