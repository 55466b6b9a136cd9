"""The transfer study on small digits: its cells are made once, resumed, shown as missing where they are, and tested."""

from __future__ import annotations

import json

import pytest
import torch

from gence.lab.data import load
from gence.lab.features import HeadProblem, HeadRun, fit_references, train_heads
from gence.lab.spec import LossSpec
from gence.lab.store import Store, StoreError
from gence.paper.blocks import renderers
from gence.paper.cells import SEEDS, Records
from gence.paper.does_it_help import decision_guide, does_it_help_table
from gence.paper.exhibit_registry import Asked, shown
from gence.paper.studies.transfer import evidence, part_view, winners_view
from gence.paper.studies.transfer_grid import MAIN, PARTS, Setting, selected
from gence.paper.studies.transfer_runs import Features, draw, judge, make_cells, recipe_for, run_cells
from tests.paper.commands import invoke

TWO = Setting(study="balanced", source="sign-digits", per_class=2)


@pytest.fixture(scope="module")
def digits() -> Features:
    """Ten classes, as the sign digits have; their pixels are the features."""
    splits = load("digits")
    train, test = (part.images.flatten(1).half() / 255 for part in (splits.train, splits.test))
    return Features(
        train, splits.train.labels, test, splits.test.labels, tuple(splits.train.classes), {"noise": 1 - test[:50]},
        {"train": splits.train.checksum},
    )  # fmt: skip


def run(records: Records, digits: Features, rows: str, *losses: str, **more) -> list[str]:
    said: list[str] = []
    run_cells(records, selected((rows,), losses), more.get("time_limit"), said.append, lambda _: digits)
    return said


def test_cells_are_made_once_and_resumed_to_the_same_file(tmp_path, digits) -> None:
    records = Records(tmp_path)
    run(records, digits, "balanced/sign-digits/2", "ce", "gence", "centroid")
    cells = records.read()
    assert sorted(cells) == [f"balanced/sign-digits/2/{name}" for name in ("ce", "centroid", "gence")]
    found = cells["balanced/sign-digits/2/ce"]
    assert all(len(values) == SEEDS for values in found["metrics"].values())
    assert all(0.3 < accuracy < 0.9 for accuracy in found["metrics"]["accuracy"])
    assert {"nll", "ece", "auroc", "offset_accuracy"} <= set(found["metrics"])
    assert len(found["tuned"]["lr"]) == SEEDS  # one draw of labels to tune on per seed

    records.path.write_text("".join(line for line in records.path.read_text().splitlines(True) if '/ce"' not in line))
    said = run(records, digits, "balanced/sign-digits/2", "ce", "gence", "centroid")
    assert sum("1 cells" in line for line in said) == 1
    again = records.read()["balanced/sign-digits/2/ce"]["metrics"]
    assert again.keys() == found["metrics"].keys()
    for name, values in found["metrics"].items():
        assert again[name] == pytest.approx(values, rel=1e-3, abs=1e-6), name
    assert "all cells that were asked for are there" in said[-1]
    before = records.path.read_bytes()
    assert run(records, digits, "balanced/sign-digits/2", "ce", "gence") == ["all cells that were asked for are there"]
    assert records.path.read_bytes() == before


def test_other_data_are_refused(tmp_path, digits) -> None:
    records = Records(tmp_path)
    records.note("sign-digits", digits.checksums, {})
    with pytest.raises(StoreError, match="train has changed since its cells were recorded"):
        records.note("sign-digits", {"train": "0" * 64}, {})


def test_a_time_limit_ends_between_settings(tmp_path, digits) -> None:
    said = run(Records(tmp_path), digits, "balanced/sign-digits/2", "centroid", time_limit=0.0)
    assert said == ["stopped by the time limit; run it again to resume"]


@pytest.mark.parametrize(("rows", "losses"), [(("table1-*",), ()), ((), ("hinge",))])
def test_unknown_names_are_errors(rows, losses) -> None:
    with pytest.raises(ValueError, match=r"matches no setting|hinge"):
        selected(rows, losses)


def test_no_setting_is_named_twice() -> None:
    names = [setting.name for part in PARTS.values() for setting in part.settings]
    assert len(names) == len(set(names))


def test_one_label_per_class_is_trained_with_what_two_chose(digits) -> None:
    one = make_cells(Setting(study="balanced", source="sign-digits", per_class=1), MAIN[1:2], digits)
    two = make_cells(TWO, MAIN[1:2], digits)
    assert one[0]["tuned"] == two[0]["tuned"]
    assert sum(one[0]["metrics"]["accuracy"]) < sum(two[0]["metrics"]["accuracy"])


def test_the_full_batch_and_a_hidden_layer_are_settings_too(digits) -> None:
    for setting in (
        Setting(study="batch", source="sign-digits", per_class=2, batch=0),
        Setting(study="mlp", source="sign-digits", per_class=2, head="mlp"),
    ):
        (cell,) = make_cells(setting, MAIN[:1], digits)
        assert min(cell["metrics"]["accuracy"]) > 0.3, setting


def test_supcon_is_a_line_of_the_settings_that_have_its_sizes(digits) -> None:
    asked = selected(("balanced/sign-digits/*",), ("supcon",))
    assert [(setting.per_class, [line.name for line in lines]) for setting, lines in asked] == [
        (5, ["supcon"]), (20, ["supcon"]),
    ]  # fmt: skip
    (cell,) = make_cells(asked[0][0], asked[0][1], digits)
    assert cell["cell"] == "balanced/sign-digits/5/supcon"
    assert min(cell["metrics"]["accuracy"]) > 0.6
    assert len(cell["tuned"]["lr"]) == SEEDS


def test_tables_of_detection_have_the_rows_that_have_sets_to_refuse(tmp_path) -> None:
    rows = {
        name: {row.cells[0].text for row in shown(name, Store(tmp_path))[0].rows}
        for name in ("transfer_balanced_near", "transfer_balanced_far", "transfer_balanced")
    }
    assert rows["transfer_balanced_near"] == {"CIFAR-10", "CLINC150"}
    assert rows["transfer_balanced_far"] == {"CIFAR-10"}
    assert len(rows["transfer_balanced"]) == 6


def test_long_tails_keep_the_accuracy_of_head_middle_and_tail(digits) -> None:
    names = ("ce", "resampled", "logit_adjusted", "class_weights")
    lines = [line for line in PARTS["tail"].all_lines if line.name in names]
    cells = make_cells(Setting(study="tail", source="sign-digits", rho=10, largest=50), lines, digits)
    found = {cell["cell"].rpartition("/")[2]: cell["metrics"] for cell in cells}
    assert sum(found["ce"]["head_accuracy"]) > sum(found["ce"]["tail_accuracy"])
    for remedy in ("resampled", "logit_adjusted", "class_weights"):
        assert sum(found[remedy]["tail_accuracy"]) > sum(found["ce"]["tail_accuracy"])


def test_the_full_batch_agrees_with_logistic_regression_of_scikit_learn(digits) -> None:
    """The same problem solved twice."""
    setting = Setting(study="batch", source="sign-digits", per_class=20, batch=0)
    index = draw(setting, digits, 0)
    problem = HeadProblem(digits.train, digits.train_labels[index], 10, index)
    recipe = recipe_for(setting, len(problem)).replace(weight_decay=1e-4)
    ours = train_heads([problem], [HeadRun(loss=LossSpec(name="ce"), recipe=recipe, full_batch=True)])[0].head
    theirs = fit_references(problem, problem.labels, ("logistic",), chosen={"weight_decay": 1e-4})[0]
    kept, drawn = problem.rows(torch.arange(len(problem))), problem.labels.bincount()
    mine, other = (
        judge(head.logits(digits.test), digits.test_labels, head.logits(kept), problem.prior, drawn, {})
        for head in (ours, theirs)
    )
    assert mine["accuracy"] == pytest.approx(other["accuracy"], abs=0.003)
    assert mine["nll"] == pytest.approx(other["nll"], abs=0.003)


def _cell(setting: Setting, line: str, accuracy: list[float]) -> dict:
    metrics = {"accuracy": accuracy, "nll": [1.0] * SEEDS}
    return {"cell": f"{setting.name}/{line}", "labels": 20, "tuned": {}, "metrics": metrics, "cpu_s": 1.0}


def test_a_loss_that_is_better_in_all_pairs_is_in_the_table_and_missing_cells_are_counted(tmp_path) -> None:
    store = Store(tmp_path)
    groups: dict[str, list[Setting]] = {}
    for setting in PARTS["balanced"].settings:
        if setting.source in ("cifar10", "sign-digits") and setting.per_class in (5, 10):
            groups.setdefault("few", []).append(setting)
    for place, setting in enumerate(groups["few"]):
        base = [0.5 + 0.01 * seed for seed in range(SEEDS)]
        better = [value + 0.02 + 0.001 * (seed + place) for seed, value in enumerate(base)]
        Records.beside(store).add(
            [_cell(setting, "ce", base), _cell(setting, "brier", better), _cell(setting, "mae", base)]
        )
    found = evidence(Records.beside(store).read(), groups, MAIN, "accuracy")
    assert found["few", "brier"].verdict == 1
    assert found["few", "brier"].mean == pytest.approx(2.35)
    assert found["few", "mae"].verdict == 0
    table, _ = winners_view(Asked(store))
    assert [[cell.text for cell in row.cells][1:4] for row in table.rows] == [["Accuracy", "Brier", "+2.4"]]
    assert "12 of " in table.caption
    table, _ = part_view(Asked(store, rows=("balanced/cifar10/5",)), "balanced")
    texts = [cell.text for cell in table.rows[0].cells]
    assert texts[:2] == ["CIFAR-10", "5 per class"]
    assert texts.count("missing") == len(texts) - 5


def test_cells_become_rows_of_the_decision_guide_and_of_the_summaries(tmp_path) -> None:
    store, made = Store(tmp_path), []
    for part, lines in (("balanced", ("ce", "anchored", "ce_full", "logistic")), ("tail", ("ce", "anchor_uniform"))):
        for setting in PARTS[part].settings[:2]:
            made += [_cell(setting, line, [0.5 + 0.01 * i + 0.001 * seed for seed in range(SEEDS)])
                     for i, line in enumerate(lines)]  # fmt: skip
    Records.beside(store).add(made)
    guide, front = decision_guide(store), does_it_help_table(store)
    for classes, link in (("balanced", "transfer.md"), ("long tail", "transfer.md#what-to-do-under-imbalance")):
        (row,) = [line for line in guide.splitlines() if f"]({link})" in line]
        assert "frozen pretrained encoder" in row
        assert classes in row
        assert "+1.0 points" in row
        assert "better in 10 of 10 pairs" in row
    assert "A head on a frozen pretrained encoder, tuned" in front
    assert "Anchored GenCE +1.0 points" in front
    known = renderers(store, tmp_path)
    assert "| GenCE, anchor 0.1 | **+1.0** |" in known["transfer_summary"]()
    assert "| GenCE, anchor 0.1 to the uniform prior | +1.0 |" in known["transfer_tail_summary"]()
    assert "| CIFAR-10, 1 | 50.2 | 52.2 | 53.2 | -1.00 | -3.00 |" in known["transfer_logistic"]()
    assert "0 of 2 differences are 0.3 points or less; the largest is 1.00" in known["transfer_logistic"]()
    assert "Nothing is measured yet" in known["transfer_detection"]()


def test_commands_list_what_is_missing_and_show_what_there_is(tmp_path) -> None:
    place = ("--store", tmp_path)
    assert "2 of 2 cells are missing" in invoke(
        "run", "transfer", "--dry-run", "--rows", "tail/clinc150/*", "--losses", "ce", *place
    )
    tmp_path.mkdir(exist_ok=True)
    assert "0 of " in invoke("show", "transfer_tail", *place)


def test_a_damaged_line_is_an_error_that_names_it(tmp_path) -> None:
    records = Records(tmp_path)
    records.add([_cell(TWO, "ce", [0.5] * SEEDS)])
    records.path.write_text(records.path.read_text() + json.dumps({"no": "cell"}) + "\n")
    with pytest.raises(StoreError, match="line 2"):
        records.read()


def test_every_table_of_the_study_can_be_shown(tmp_path) -> None:
    for name in ("transfer", "transfer_balanced_nll", "transfer_batch"):
        assert shown(name, Store(tmp_path))[0].columns
