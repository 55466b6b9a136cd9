from __future__ import annotations

import dataclasses
import json

import pytest
from gence.paper.tables import cell_name

from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES
from gence.lab.store.files import StoreError
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep.study import TunedLoss
from gence.lab.sweep.tuning import TuneReport
from gence.paper.exhibits.table1 import table1
from gence.paper.registry import shown
from gence.paper.studies.tuned import (
    LOSSES,
    cells_to_tune,
    load_tuned,
    losses_to_tune,
    merge_tuned,
    save_tuned,
    tuned,
    tuned_specs,
)

ROW = "cifar100-2000-vgg19"


def report(store) -> TuneReport:
    base = table1().selected([ROW])[0].base
    changes = {"recipe.lr": 0.05, "recipe.weight_decay": 0.001, "recipe.warmup_epochs": 5.0}
    best = [
        TunedLoss(
            asked=LossSpec.parse("ce"), changes={**changes, "loss": "ce"}, value=0.2, trials=4, pruned=1, budget=4
        ),
        TunedLoss(
            asked=LossSpec.parse("gence(anchor=tune)"),
            changes={**changes, "loss": LossSpec.parse("gence(anchor=0.3)")},
            value=0.25,
            trials=4,
            pruned=0,
            budget=4,
        ),
    ]
    made = TuneReport(base=base, seeds=(1000,), best=tuple(best), trials=4, complete=True)
    save_tuned(store, made)
    return made


def test_a_cell_is_tuned_once_whatever_rates_its_grid_has() -> None:
    run = table1().specs(rows=["cifar10-2000-vgg19"])[0]
    rates = [run.replace(**{"recipe.lr": lr, "recipe.weight_decay": wd}) for lr in (0.1, 0.01) for wd in (0.0, 1e-3)]
    runs = [one.replace(loss=loss, seed=seed) for one in rates for loss in ("focal(gamma=1)", "ce") for seed in (0, 3)]
    assert cells_to_tune(runs) == [rates[0].replace(loss="ce", seed=0)]
    more = [*runs, run.replace(**{"recipe.batch_size": 50})]
    assert len(cells_to_tune(more)) == 2
    assert losses_to_tune(["grid.toml"], runs) == ["focal(gamma=1)", "ce"]
    assert losses_to_tune(["table1", "grid.toml"], runs) == list(LOSSES)


def test_what_was_tuned_is_kept_and_read_back(writer) -> None:
    made = report(writer.store)
    found = load_tuned(writer.store, made.base.replace(loss="focal", seed=3))
    assert (found.base, found.seeds, found.trials, found.complete) == (made.base, (1000,), 4, True)
    assert found.best[1].changes["loss"] == "gence(anchor=0.3)"
    assert load_tuned(writer.store, made.base.replace(model="resnet50")) is None


def test_tuning_one_more_loss_keeps_what_was_tuned_before(writer) -> None:
    made = report(writer.store)
    focal = dataclasses.replace(
        made.best[0], asked=LossSpec.parse("focal"), metric="nll", budget=2, trials=1, complete=False
    )
    save_tuned(writer.store, dataclasses.replace(made, best=(focal,), seeds=(1001,), trials=2, complete=False))
    found = load_tuned(writer.store, made.base)
    assert [str(one.asked) for one in found.best] == ["ce", "gence(anchor=tune)", "focal"]
    assert [(one.metric, one.budget, one.complete) for one in found.best] == [
        ("accuracy", 4, True),
        ("accuracy", 4, True),
        ("nll", 2, False),
    ]
    assert (found.seeds, found.complete) == ((1000, 1001), False)
    better = dataclasses.replace(focal, value=0.4, trials=2, complete=True)
    save_tuned(writer.store, dataclasses.replace(made, best=(better,), trials=2))
    found = load_tuned(writer.store, made.base)
    assert ([one.value for one in found.best], found.complete) == ([0.2, 0.25, 0.4], True)
    save_tuned(writer.store, dataclasses.replace(made, best=()))  # stopped before the first trial was over
    assert len(load_tuned(writer.store, made.base).best) == 3


def test_merging_takes_over_what_was_tuned_with_more_trials(writer, tmp_path) -> None:
    other = Store(tmp_path / "other")
    made = report(other)
    assert merge_tuned(writer.store, other) == 2
    assert load_tuned(writer.store, made.base) == load_tuned(other, made.base)
    assert merge_tuned(writer.store, other) == 0
    more = dataclasses.replace(made.best[0], trials=8, budget=8, value=0.3)
    less = dataclasses.replace(made.best[1], trials=2, value=0.9)
    save_tuned(other, dataclasses.replace(made, best=(more, less), seeds=(1001,)))
    assert merge_tuned(writer.store, other) == 1
    found = load_tuned(writer.store, made.base)
    assert ([one.value for one in found.best], found.seeds) == ([0.3, 0.25], (1000, 1001))


def test_losses_that_were_not_tuned_alike_are_said_and_not_merged(writer, tmp_path) -> None:
    made = report(writer.store)
    other = Store(tmp_path / "other")
    by_nll = dataclasses.replace(made.best[0], metric="nll", trials=9, budget=9)
    gamma = dataclasses.replace(made.best[0], asked=LossSpec.parse("focal(gamma=2)"), complete=False)
    save_tuned(other, dataclasses.replace(made, best=(by_nll, gamma), complete=False))
    assert merge_tuned(writer.store, other) == 1, "another metric is another tuning"
    found = load_tuned(writer.store, made.base)
    assert (found.best[0].metric, found.complete) == ("accuracy", False)
    exhibit = tuned(writer.store)
    assert exhibit.columns[-1].title == "focal(gamma=2)"
    assert len(exhibit.assumptions) == 1
    save_tuned(writer.store, dataclasses.replace(made, best=(by_nll,)))
    unequal = tuned(writer.store).assumptions[-1]
    assert unequal.startswith(f"NOT so for {ROW}: ce 9 trials for nll; ")
    assert "with as many trials" in exhibit.title
    assert "with as many trials" not in shown("tuned", writer.store)[0].markdown()


def test_files_of_older_versions_are_read(writer) -> None:
    made = report(writer.store)
    (path,) = (writer.store.root / "tuned").iterdir()
    content = json.loads(path.read_text())
    for one in content["best"]:
        del one["metric"], one["budget"], one["complete"]
    path.write_text(json.dumps(content))
    assert load_tuned(writer.store, made.base).best[0] == made.best[0]


def test_the_final_runs_are_the_table_s(writer) -> None:
    report(writer.store)
    final = tuned_specs(writer.store, seeds=2)
    assert [str(spec.loss) for spec in final] == ["ce", "gence(anchor=0.3)"] * 2
    assert {(spec.recipe.lr, spec.recipe.warmup_epochs, spec.evaluate_on) for spec in final} == {(0.05, 5.0, "test")}
    exhibit = tuned(writer.store)
    (row,) = exhibit.rows
    shown_keys = {spec.key for column in exhibit.columns for spec in row.specs(column, 2)}
    assert shown_keys == {spec.key for spec in final}


def test_every_cell_that_was_tuned_has_final_runs(writer) -> None:
    made = report(writer.store)
    modern = made.base.replace(recipe="modern")
    ours = modern.replace(data="digits", model="mlp", **{"subset.n": 100, "recipe.batch_size": 20})
    for base in (modern, ours):
        save_tuned(writer.store, dataclasses.replace(made, base=base))

    def cells_of(**options) -> set[str]:
        return {f"{cell_name(run)} {run.recipe.nesterov}" for run in tuned_specs(writer.store, seeds=1, **options)}

    paper_cell, modern_cell, our_cell = f"{ROW} False", f"{ROW} True", "digits-100-mlp-b20 True"
    assert cells_of() == {paper_cell, modern_cell, our_cell}
    assert cells_of(recipe=RECIPES["paper"]) == {paper_cell}
    assert cells_of(recipe=RECIPES["modern"]) == {modern_cell, our_cell}
    assert cells_of(rows=["digits-*"]) == {our_cell}
    assert cells_of(rows=["cifar100-*"]) == {paper_cell, modern_cell}
    assert {str(run.loss) for run in tuned_specs(writer.store, losses=["gence(anchor=tune)"])} == {"gence(anchor=0.3)"}
    assert [row.name for row in tuned(writer.store).rows] == [ROW, "digits-100-mlp-b20"]
    assert [row.base for row in tuned(writer.store, RECIPES["modern"]).rows] == [modern, ours]
    assert "digits" in shown("tuned", writer.store)[0].csv()


def test_detection_by_tuned_networks_has_a_line_a_set_and_score(writer) -> None:
    made = report(writer.store)
    base = made.base.replace(data="cifar10", ood=("cifar100", "svhn"))
    save_tuned(writer.store, dataclasses.replace(made, base=base))
    exhibit = tuned(writer.store, metric="auroc")
    assert [row.labels[3:] for row in exhibit.rows] == [
        (name, score) for name in ("near (CIFAR-100)", "far (SVHN)") for score in ("entropy", "confidence")
    ]
    (spec,) = exhibit.rows[2].specs(exhibit.columns[1], 1)
    writer.store.write(spec, RunResult(metrics={"accuracy": 0.5, "ood/svhn/auroc_entropy": 0.75}))
    table, _ = shown("tuned_ood", writer.store, seeds=1)
    assert table.rows[2].cells[2].text == "75.00"


def test_what_is_tuned_without_ood_sets_is_not_called_untuned(writer) -> None:
    assert "Nothing is tuned yet" in shown("tuned_ood", writer.store)[1][0]
    report(writer.store)
    assert shown("tuned_ood", writer.store)[1] == ["Nothing that was tuned is judged on OOD sets."]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ["cifar10-*"]}, rf"for the row cifar10-\*; what was: {ROW}"),
        ({"rows": ["cifar100-*", "typo"]}, f"for the row typo; what was: {ROW}"),
        ({"recipe": RECIPES["tiny"]}, "from this recipe; do that first: gence tune"),
        ({"losses": ["focal"]}, "'focal' was not tuned"),
    ],
)
def test_what_was_not_tuned_is_said(writer, options, message) -> None:
    report(writer.store)
    with pytest.raises(ValueError, match=message):
        tuned_specs(writer.store, **options)


def test_losses_that_were_not_tuned_are_missing(writer) -> None:
    report(writer.store)
    for spec in tuned_specs(writer.store):
        writer.store.write(spec, RunResult(metrics={"accuracy": 0.3}))
    table, _ = shown("tuned", writer.store)
    texts = [cell.text for cell in table.rows[0].cells]
    assert texts[1 + LOSSES.index("ce")] == "30.00 ± 0.00"
    assert texts[1 + LOSSES.index("gence(anchor=tune)")] == "30.00 ± 0.00"
    assert texts[1 + LOSSES.index("focal")] == "missing (0 of 5)"


def test_a_damaged_file_is_named(writer) -> None:
    report(writer.store)
    (path,) = (writer.store.root / "tuned").iterdir()
    path.write_text('{"best": []}')
    with pytest.raises(StoreError, match=r"cannot be read .*run gence tune again"):
        tuned(writer.store)
