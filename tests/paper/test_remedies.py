"""The study of remedies: its grid, what is read from records, and a tiny version of it trained for real."""

from __future__ import annotations

import pytest

from gence.lab.report.figures.svg import as_svg
from gence.lab.spec.grid import check_losses, parse_grid
from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES
from gence.lab.spec.run import RunSpec
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep.queue import CohortQueue
from gence.lab.sweep.search import cell_name
from gence.paper.blocks import filled, renderers
from gence.paper.exhibit_registry import Asked, grid_specs, load_exhibit, shown
from gence.paper.exhibits.table1 import table1
from gence.paper.records import default_results
from gence.paper.studies import remedies as study
from gence.paper.studies.remedies import anchor_drawings, remedies
from tests.paper.commands import invoke
from tests.paper.remedies_records import ROW, record, run_of

# The grid


def test_the_grid_is_what_it_says() -> None:
    specs = remedies().specs()
    assert len(specs) == len({spec.key for spec in specs}) == 8 * 16 * 3
    check_losses(specs)
    assert {spec.subset.n for spec in specs} == {2000}
    assert {spec.seed for spec in specs} == {0, 1, 2}
    assert [row.name for row in remedies().rows[:3]] == [ROW, "cifar100-vgg19-modern", "cifar10-vgg19-paper"]


def test_every_column_changes_one_thing() -> None:
    plain = run_of("gence")
    assert run_of("offset") == plain  # no run of its own
    expected = {
        "ce": {"loss": "ce"},
        "anchor-0.03": {"loss": "gence(anchor=0.03)"},
        "anchor-1": {"loss": "gence(anchor=1)"},
        "train-anchor-0.3": {"loss": "gence(anchor=0.3,prior=train)"},
        "annealed": {"loss": "gence(anchor=0.1)", "recipe.anchor_warmup": 0.5},
        "no-bias": {"recipe.head_bias": False},
        "batch-200": {"recipe.batch_size": 200},
        "batch-400": {"recipe.batch_size": 400},
    }
    for name, changes in expected.items():
        assert run_of(name) == plain.replace(**changes), name
    assert len(remedies().columns) == 3 + 2 * 5 + 4


def test_a_training_prior_keeps_its_key_in_every_form() -> None:
    spec = run_of("train-anchor-0.1")
    assert RunSpec.from_json(spec.to_json()).key == spec.key
    assert LossSpec.parse(str(spec.loss)) == spec.loss
    table = {"data": "cifar100", "model": "vgg19", "recipe": "paper", "subset": 2000, "seed": 0}
    (read,) = parse_grid({"base": {**table, "loss": {"name": "gence", "anchor": 0.1, "prior": "train"}}})
    assert read.key == spec.key


def test_shared_cells_are_found_and_not_trained_again() -> None:
    row = table1().selected(["cifar100-2000-vgg19"])[0]
    by_name = {column.name: column for column in table1().columns}
    for ours, theirs in (("ce", "ce"), ("gence", "gence"), ("offset", "offset"), ("anchor-0.1", "anchored")):
        assert run_of(ours, seed=1) == row.specs(by_name[theirs])[1]
    batch = load_exhibit("batch_size").selected(["cifar10-2000-resnet50-b200"])[0]
    assert run_of("batch-200", "cifar10-resnet50-paper") == batch.specs(by_name["gence"])[0]
    specs = remedies().specs(rows=["cifar100-vgg19-*"])
    assert len(specs) - len(Store(default_results()).missing(specs)) >= 14  # cells that Table 1 shares


def test_the_order_is_row_by_row_and_seed_by_seed(tmp_path) -> None:
    specs = grid_specs(["remedies"], Store(tmp_path))
    assert specs == remedies().specs()
    order = list(dict.fromkeys((spec.data, spec.model) for spec in specs))
    assert order == [("cifar100", "vgg19"), ("cifar10", "vgg19"), ("cifar100", "resnet50"), ("cifar10", "resnet50")]
    row = specs[:48]
    assert [spec.seed for spec in row] == sorted(spec.seed for spec in row)
    assert grid_specs(["remedies"], Store(tmp_path), rows=[ROW], seeds=1) == row[:16]
    # Beside an exhibit of the paper the study comes last, and what both have comes once.
    both = grid_specs(["remedies", "table1"], Store(tmp_path))
    assert both[:420] == grid_specs(["table1"], Store(tmp_path))
    assert len(both) == len({spec.key for spec in both}) < 420 + 384


def test_a_row_is_one_cohort_for_each_batch_size(tmp_path) -> None:
    specs = remedies().specs(rows=[ROW])
    plan = CohortQueue(specs, cohort_size=100, max_attempts=1, failures=None, peers={s.cohort_key: () for s in specs})
    cohorts = []
    while (task := plan.take()) is not None:
        cohorts.append((cell_name(task.specs[0]), len(task.specs)))
    assert cohorts == [
        ("cifar100-2000-vgg19", 42),
        ("cifar100-2000-vgg19-b200", 3),
        ("cifar100-2000-vgg19-b400", 3),
    ]


def test_one_recipe_instead_of_two() -> None:
    assert [row.name for row in remedies(RECIPES["tiny"]).rows][:2] == ["cifar100-vgg19-tiny", "cifar10-vgg19-tiny"]
    assert remedies(RECIPES["tiny"].replace(lr=0.2)).rows[0].labels[2] == "custom"


# What is read from records


def test_nothing_is_claimed_without_records(writer) -> None:
    table, notes = shown("remedies", writer.store)
    assert all(note.startswith("Assumed: ") for note in notes)
    assert table.rows == ()
    assert "No record yet: CIFAR-100, VGG-19, paper; " in table.caption
    assert anchor_drawings(Asked(writer.store)) == []
    assert "there is no figure" in renderers(writer.store, writer.store.root)["remedies_figure"]()


def test_cells_have_accuracy_calibration_and_drift(writer) -> None:
    record(writer.store, ROW, "gence", [20.0, 21.0])
    cells = {}
    for name in ("remedies", "remedies_ece", "remedies_drift"):
        table, _ = shown(name, writer.store)
        assert table.columns[-1] == "CIFAR-100, VGG-19, paper"
        cells[name] = {row.cells[0].text: row.cells[-1].text for row in table.rows}
    assert cells["remedies"]["GenCE"] == "20.50 ± 0.71 (2 of 3)"
    assert cells["remedies"]["offset after training"] == "22.50 ± 0.71 (2 of 3)"
    assert cells["remedies"]["batch 400"] == "missing (0 of 3)"
    assert cells["remedies_ece"]["offset after training"] == "5.00 ± 0.00 (2 of 3)"
    assert cells["remedies_drift"]["GenCE"] == "0.013 ± 0.000 (2 of 3)"
    assert "offset after training" not in cells["remedies_drift"]


def test_one_seed_is_shown_and_not_judged(writer) -> None:
    record(writer.store, ROW, "gence", [20.0])
    record(writer.store, ROW, "ce", [30.0])
    table, _ = shown("remedies", writer.store, seeds=1)
    assert table.rows[0].cells[-1].text == "30.00"
    assert [cell.text for cell in table.rows[0].cells[1:4]] == ["+10.00 (1 of 1 up, 1 setting)", "1.000", "–"]


def test_a_cell_without_all_its_numbers_says_whether_more_will_come(writer) -> None:
    record(writer.store, ROW, "gence", [20.0, 21.0])
    writer.store.write(run_of("gence", ROW, 2), RunResult(metrics={"accuracy": 0.01}, status="diverged"))
    table, _ = shown("remedies_drift", writer.store)
    assert table.rows[1].cells[1].text == "0.013 ± 0.000 (2 of 3, the others have none)"


def test_the_figure_draws_what_is_there(writer) -> None:
    for row, more in ((ROW, 0.0), ("cifar10-vgg19-paper", 50.0)):
        record(writer.store, row, "gence", [20.0 + more, 21.0 + more])
        for strength in study.STRENGTHS:
            record(writer.store, row, study.anchor_column(strength, "train"), [22.0 + more + strength])
    record(writer.store, ROW, "anchor-0.1", [23.0])
    (drawing,) = anchor_drawings(Asked(writer.store))
    figure = drawing.figure()
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == ["CIFAR-100, VGG-19, paper", "CIFAR-10, VGG-19, paper"]
    curves = {line.get_label(): list(line.get_ydata()) for line in panels[0].lines}
    assert curves["anchor (training prior)"] == pytest.approx([22.01, 22.03, 22.1, 22.3, 23.0])
    assert curves["anchor (batch labels)"] == [23.0]
    levels = {line.get_label(): line.get_ydata()[0] for line in panels[0].lines if len(line.get_ydata()) == 2}
    assert levels["plain GenCE"] == pytest.approx(20.5)
    assert levels["plain GenCE, offset after training"] == pytest.approx(22.5)
    assert "CE" not in levels
    svg = as_svg(figure, "one")
    assert svg == as_svg(drawing.figure(), "one")  # the same records, the same bytes
    block = renderers(writer.store, writer.store.root)["remedies_figure"]()
    assert "](figures/remedies-anchor.svg)\n\nLines and large marks are means" in block


# A tiny version of the study, trained


def test_a_tiny_study_from_its_runs_to_its_page(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(study, "SETTINGS", (("digits", "small_cnn"),))
    monkeypatch.setattr(study, "N", 400)
    monkeypatch.setitem(RECIPES, "tiny", RECIPES["tiny"].replace(epochs=3, warmup_epochs=0.0))
    store = tmp_path / "store"
    options = ("remedies", "--recipe", "tiny", "--seeds", 2, "--store", store)
    assert "32 of 32 runs are missing" in invoke("run", *options, "--dry-run")
    invoke("run", *options, "--device", "cpu", "--no-predictions", "--losses", "ce,gence,anchor-0.1")
    assert "26 of 32 runs are missing" in invoke("run", *options, "--dry-run")
    invoke("run", *options, "--device", "cpu", "--no-predictions")
    text = invoke("show", *options)
    assert "17 of 17 cells are recorded in full." in " ".join(text.split())
    assert "missing" not in text
    for name in ("remedies_ece", "remedies_drift"):
        assert "missing" not in invoke("show", name, *options[1:])

    records = {(str(r.spec.loss), r.spec.recipe): r.result.metrics for r in Store(store).records() if r.spec.seed == 0}
    tiny = RECIPES["tiny"]
    likelihoods = {
        name: records[(loss, tiny.replace(**changes))]["nll"]
        for name, loss, changes in (
            ("gence", "gence", {}),
            ("train-anchor-1", "gence(anchor=1,prior=train)", {}),
            ("anchor-0.1", "gence(anchor=0.1)", {}),
            ("annealed", "gence(anchor=0.1)", {"anchor_warmup": 0.5}),
            ("no-bias", "gence", {"head_bias": False}),
            ("batch-200", "gence", {"batch_size": 200}),
            ("batch-400", "gence", {"batch_size": 400}),
        )
    }
    assert len(set(likelihoods.values())) == len(likelihoods)  # every remedy did something
    # The end of the scale: an anchor of 1 to the batch's labels trains as cross-entropy does.
    assert records[("gence(anchor=1)", tiny)]["nll"] == pytest.approx(records[("ce", tiny)]["nll"], rel=1e-3)
    drift = {strength: records[(f"gence(anchor={strength})", tiny)]["marginal_kl"] for strength in ("0.1", "1")}
    assert max(drift.values()) < records[("gence", tiny)]["marginal_kl"]

    monkeypatch.setattr(study, "UNDER", ("tiny",))
    page = "<!-- generated: remedies -->\n<!-- end -->\n<!-- generated: remedies_figure -->\n<!-- end -->\n"
    written = filled(page, renderers(Store(store), tmp_path))
    assert "| offset after training | " in written
    assert "](figures/remedies-anchor.svg)" in written
    (drawing,) = anchor_drawings(Asked(Store(store)))
    figure = drawing.figure()
    assert [axes.get_title() for axes in figure.axes] == ["digits, small_cnn, tiny"]
    anchors = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("anchor")]
    assert [len(line.get_ydata()) for line in anchors] == [5, 5]
    assert "<svg" in as_svg(figure, "tiny")
