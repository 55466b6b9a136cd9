"""The study of calibration after temperature scaling: cells on small digits, its tables and figures, its sentences."""

from __future__ import annotations

import pytest
import torch

from gence.lab.data import load
from gence.lab.features import HeadProblem, HeadRun, cross_fit_heads, train_heads
from gence.lab.store import Store
from gence.metrics import best_temperature, classification_metrics
from gence.paper.cells import SEEDS
from gence.paper.exhibit_registry import Asked, shown
from gence.paper.studies import after_calibration as study
from gence.paper.studies.transfer_grid import Setting
from gence.paper.studies.transfer_runs import Features, draw, recipe_for
from tests.paper.commands import invoke

SETTING = Setting(study=study.STUDY, source="sign-digits", per_class=5)


@pytest.fixture(scope="module")
def digits() -> Features:
    splits = load("digits")
    train, test = (part.images.flatten(1).half() / 255 for part in (splits.train, splits.test))
    return Features(
        train, splits.train.labels, test[:300], splits.test.labels[:300], tuple(splits.train.classes),
        {"noise": 1 - test[:50]}, {"train": splits.train.checksum},
    )  # fmt: skip


@pytest.fixture(scope="module")
def small(digits, tmp_path_factory):
    """A store with the cells of three losses in one setting."""
    store = Store(tmp_path_factory.mktemp("after"))
    lines = [line for line in study.LINES if line.name in ("ce", "gence", "mdca")]
    cells = study.make_cells(SETTING, lines, digits, study.outside_of("sign-digits", digits, lambda _: digits))
    study.GRID.records(store).add(cells)
    return store, {cell["cell"]: cell for cell in cells}


def test_a_cell_is_what_its_parts_give(small, digits) -> None:
    _, cells = small
    cell = cells["after_calibration/sign-digits/5/ce"]
    metrics = cell["metrics"]
    assert all(len(values) == SEEDS for values in metrics.values())
    names = {f"{variant}{name}" for variant in study.VARIANTS for name in (*study.SCORES, *study.SETS)}
    names |= {f"auroc_{name}" for name in study.OF_LOGITS | study.OF_FEATURES} | {"temperature"}
    assert names <= metrics.keys()
    assert metrics["accuracy"] == metrics["calibrated/accuracy"]
    index = draw(SETTING, digits, 2)
    problem = HeadProblem(digits.train, digits.train_labels[index], 10, index)
    recipe = recipe_for(SETTING, SETTING.labels).replace(**cell["tuned"])
    (line,) = [line for line in study.LINES if line.name == "ce"]
    run = HeadRun(loss=line.loss, recipe=recipe, seed=2)
    (one,), (held,) = train_heads([problem], [run]), cross_fit_heads([problem], [run])
    temperature = best_temperature(held.logits, held.labels)
    logits = one.head.logits(digits.test)
    assert metrics["temperature"][2] == pytest.approx(temperature, rel=1e-3)
    for prefix, z in (("", logits), ("calibrated/", logits / temperature)):
        expected = classification_metrics(z, digits.test_labels)
        for name in ("accuracy", "nll", "ece", "brier"):
            assert metrics[prefix + name][2] == pytest.approx(expected[name], rel=1e-2, abs=1e-4), name


def test_features_of_other_sources_stand_in_for_out_of_distribution_inputs(digits) -> None:
    bare = Features(digits.train, digits.train_labels, digits.test, digits.test_labels, digits.classes, {}, {})
    other = {"cifar10": Features(bare.train, bare.train_labels, bare.test, bare.test_labels, bare.classes,
                                 {"cifar100": torch.ones(1, 64), "svhn": torch.zeros(1, 64)}, {})}  # fmt: skip
    assert sorted(study.outside_of("cifar100", bare, other.__getitem__)) == ["cifar10", "svhn"]
    assert len(study.outside_of("sign-digits", bare, other.__getitem__)) == 3
    assert study.outside_of("cifar10", digits, other.__getitem__) == dict(digits.outside)


def test_tables_figures_and_what_is_missing(small) -> None:
    store, cells = small
    table, _ = shown(study.STUDY, store)
    rows = {row.cells[0].value: row for row in table.rows}
    mean = sum(cells["after_calibration/sign-digits/5/ce"]["metrics"]["calibrated/nll"]) / SEEDS
    at = table.columns.index("NLL, temperature")
    assert rows["CE"].cells[at].value == pytest.approx(mean)
    assert rows["Focal"].cells[at].text == "missing"
    assert f"3 of {len(study.SETTINGS) * len(study.LINES)} cells" in table.caption
    detectors, _ = shown(f"{study.STUDY}_detectors", store)
    assert "ViM" in detectors.columns
    found = study.drawings(Asked(store))
    assert [one.name for one in found] == ["after-calibration-ece", "after-calibration-detectors"]
    for one in found:
        assert one.figure().axes
    listed = invoke("run", study.STUDY, "--dry-run", "--store", store.root, "--rows", "*/sign-digits/5")
    assert "12 of 15 cells are missing" in listed
    said: list[str] = []
    study.GRID.run(store, ("*/sign-digits/5",), ("ce", "gence"), None, said.append)
    assert said == ["all cells that were asked for are there"]


@pytest.mark.parametrize(("rows", "losses"), [(("table1",), ()), ((), ("hinge",))])
def test_unknown_names_are_errors(rows, losses) -> None:
    with pytest.raises(ValueError, match=r"matches no setting|hinge"):
        study.GRID.asked(rows, losses)
