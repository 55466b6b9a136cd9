from __future__ import annotations

import dataclasses

from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep.search import cell_name
from gence.lab.sweep.tuning import load_tuned, merge_tuned, save_tuned, tuned_specs
from gence.paper.exhibit_registry import shown
from gence.paper.studies.tuned import TUNED_LOSSES, tuned
from tests.lab.tuned_report import tuned_report

ROW = "cifar100-2000-vgg19"


def test_losses_that_were_not_tuned_alike_are_said_and_not_merged(writer, tmp_path) -> None:
    made = tuned_report(writer.store)
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


def test_the_final_runs_are_the_table_s(writer) -> None:
    tuned_report(writer.store)
    final = tuned_specs(writer.store, seeds=2)
    assert [str(spec.loss) for spec in final] == ["ce", "gence(anchor=0.3)"] * 2
    assert {(spec.recipe.lr, spec.recipe.warmup_epochs, spec.evaluate_on) for spec in final} == {(0.05, 5.0, "test")}
    exhibit = tuned(writer.store)
    (row,) = exhibit.rows
    shown_keys = {spec.key for column in exhibit.columns for spec in row.specs(column, 2)}
    assert shown_keys == {spec.key for spec in final}


def test_every_cell_that_was_tuned_has_final_runs(writer) -> None:
    made = tuned_report(writer.store)
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
    assert {str(run.loss) for run in tuned_specs(writer.store, losses=["gence(anchor=tune)"], seeds=1)} == {
        "gence(anchor=0.3)"
    }
    assert [row.name for row in tuned(writer.store).rows] == [ROW, "digits-100-mlp-b20"]
    assert [row.base for row in tuned(writer.store, RECIPES["modern"]).rows] == [modern, ours]
    assert "digits" in shown("tuned", writer.store)[0].csv()


def test_detection_by_tuned_networks_has_a_line_a_set_and_score(writer) -> None:
    made = tuned_report(writer.store)
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
    tuned_report(writer.store)
    assert shown("tuned_ood", writer.store)[1] == ["Nothing that was tuned is judged on OOD sets."]


def test_losses_that_were_not_tuned_are_missing(writer) -> None:
    tuned_report(writer.store)
    for spec in tuned_specs(writer.store, seeds=5):
        writer.store.write(spec, RunResult(metrics={"accuracy": 0.3}))
    table, _ = shown("tuned", writer.store)
    texts = [cell.text for cell in table.rows[0].cells]
    assert texts[1 + TUNED_LOSSES.index("ce")] == "30.00 ± 0.00"
    assert texts[1 + TUNED_LOSSES.index("gence(anchor=tune)")] == "30.00 ± 0.00"
    assert texts[1 + TUNED_LOSSES.index("focal")] == "missing (0 of 5)"
