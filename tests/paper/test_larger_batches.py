"""Plain and anchored GenCE in larger batches: the grid, what is read from records, and what the documents say of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gence.lab.spec.recipe import RECIPES
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.paper.exhibit_registry import Asked, grid_specs, load_exhibit, shown
from gence.paper.records import Measured, default_results, measure
from gence.paper.studies.evidence import Course, read_courses
from gence.paper.studies.larger_batches import SIZES, batches_drawings, column_name, larger_batches
from tests.paper.remedies_records import ROW, run_of

# The grid


def test_what_the_remedies_have_is_not_trained_again(tmp_path) -> None:
    exhibit = load_exhibit("larger_batches")
    (row,) = exhibit.selected([ROW])
    runs = {column.name: row.specs(column)[0] for column in exhibit.columns}
    theirs = {"plain-100": "gence", "plain-200": "batch-200", "plain-400": "batch-400", "anchored-100": "anchor-0.1"}
    for ours, name in theirs.items():
        assert runs[ours] == run_of(name)
    for size in (200, 400):
        changed = {"recipe.batch_size": size, "loss": "gence(anchor=0.1)"}
        assert runs[f"anchored-{size}"] == runs["plain-100"].replace(**changed)
    both = grid_specs(["remedies", "larger_batches"], Store(tmp_path))
    assert len(both) == len(grid_specs(["remedies"], Store(tmp_path))) + 8 * 2 * 3


def test_one_recipe_instead_of_two() -> None:
    assert [row.name for row in larger_batches(RECIPES["tiny"]).rows][:1] == ["cifar100-vgg19-tiny"]


# What is read from records


def write(store: Store, name: str, accuracies: list[float], drift: list[float], row: str = ROW) -> None:
    """Write a cell's runs, one a seed, all with the same drift in each epoch; the offset makes 60 % of any of them."""
    exhibit = larger_batches()
    column = next(column for column in exhibit.columns if column.name == name)
    specs = exhibit.selected([row])[0].specs(column, len(accuracies))
    for spec, accuracy in zip(specs, accuracies, strict=True):
        metrics = {"accuracy": accuracy / 100, "offset/accuracy": 0.6}
        store.write(spec, RunResult(metrics=metrics, curves={"marginal_kl": drift}))


def test_the_table_has_both_losses_at_every_size(writer) -> None:
    write(writer.store, "plain-100", [50.0, 51.0, 52.0], [2.0, 0.1])
    write(writer.store, "plain-200", [10.0, 10.5, 50.0], [2.0, 2.0])
    write(writer.store, "anchored-100", [55.0, 56.0, 57.0], [0.1, 0.1])
    table, notes = shown("larger_batches", writer.store)
    assert [cell.text for cell in table.rows[0].cells[1:5]] == [
        "51.00 ± 1.00",
        "23.50 ± 22.95",
        "missing (0 of 3)",
        "56.00 ± 1.00",
    ]
    assert all(note.startswith("Assumed: ") for note in notes)


def test_the_figure_has_a_panel_per_setting(writer) -> None:
    assert batches_drawings(Asked(writer.store)) == []
    write(writer.store, "plain-100", [50.0, 52.0], [0.1])
    write(writer.store, "plain-400", [10.0], [2.0])
    write(writer.store, "anchored-400", [48.0], [0.1])
    (drawing,) = batches_drawings(Asked(writer.store))
    assert drawing.wide
    (axes,) = (axes for axes in drawing.figure().axes if axes.get_visible())
    assert axes.get_title() == "CIFAR-100, VGG-19, paper"
    lines = {str(line.get_label()): line.get_xydata().tolist() for line in axes.lines}
    assert lines["plain GenCE"] == [[100, 51], [400, 10]]
    assert lines["anchor 0.1 (batch labels)"] == [[400, 48]]
    assert [len(dots.get_offsets()) for dots in axes.collections] == [2, 0, 1, 0, 0, 1]


# What the documents say, held to the records

Cells = dict[str, dict[str, Measured]]
Courses = dict[str, dict[str, list[Course]]]


@pytest.fixture(scope="module")
def cells() -> Cells:
    exhibit = larger_batches()
    return {one.row.name: one.cells for one in measure(exhibit, Store(default_results()), seeds=exhibit.seeds)}


@pytest.fixture(scope="module")
def courses() -> Courses:
    return {one.setting.name: one.by_column for one in read_courses(larger_batches(), Store(default_results()))}


def mean(cell: Measured) -> float:
    assert cell.complete
    assert cell.summary is not None
    return cell.summary.mean


def test_the_marginal_leaves_more_often_and_is_back_before_the_rate_falls(courses: Courses) -> None:
    anchored = [[course for one in courses.values() for course in one[f"anchored-{size}"]] for size in SIZES]
    left = [sum(bool(course.epochs_out) for course in found) for found in anchored]
    assert left == sorted(left)
    assert left[0] < left[1]
    epochs = [epoch for found in anchored for course in found for epoch in course.epochs_out]
    assert max(epochs) < 100  # of 200; under both recipes the rate falls after half of them


def test_level_where_plain_marginals_are_in_place_and_ahead_everywhere_else(cells: Cells, courses: Courses) -> None:
    ahead = []
    for setting, of in cells.items():
        for size in SIZES[1:]:
            difference = mean(of[column_name("anchored", size)]) - mean(of[column_name("plain", size)])
            if any(course.out_at_end for course in courses[setting][column_name("plain", size)]):
                ahead.append(difference)
            else:
                assert abs(difference) < 1
    assert (round(min(ahead)), round(max(ahead))) == (5, 59)
    assert len(ahead) == 12


def test_larger_batches_cost_accuracy_except_in_one_setting(cells: Cells) -> None:
    for setting, of in cells.items():
        means = [mean(of[column_name("anchored", size)]) for size in SIZES]
        if setting == "cifar100-vgg19-paper":
            assert min(means[1:]) > means[0]
        else:
            assert max(means[1:]) < means[0] - 1
    plain = [mean(cells["cifar100-vgg19-modern"][column_name("plain", size)]) for size in SIZES]
    assert all(larger < smaller - 1 for smaller, larger in pairwise(plain))
    losses = {setting: mean(of["anchored-100"]) - mean(of["anchored-400"]) for setting, of in cells.items()}
    assert sorted(losses, key=losses.__getitem__)[-2:] == ["cifar10-resnet50-modern", "cifar10-resnet50-paper"]


def test_resnets_on_cifar10_do_not_learn_their_training_images() -> None:
    exhibit, store = larger_batches(), Store(default_results())
    columns = {column.name: column for column in exhibit.columns}

    def learnt(row: str, name: str) -> list[float]:
        specs = exhibit.selected([row])[0].specs(columns[name], exhibit.seeds)
        return [store.read(spec.key).result.metrics["train_accuracy"] for spec in specs]

    paper, mild = "cifar10-resnet50-paper", "cifar10-resnet50-modern"
    assert min(learnt(paper, "anchored-100")) > 0.95
    assert max(learnt(paper, "anchored-200") + learnt(paper, "anchored-400")) < 0.85
    assert sum(share < 0.5 for share in learnt(mild, "anchored-200")) == 1
    assert min(learnt(mild, "anchored-400")) > 0.95


def test_batches_of_200_under_the_paper_s_recipe_cost_vgg_little_and_resnet_much_on_cifar10(cells: Cells) -> None:
    lost = {
        model: mean(cells[f"cifar10-{model}-paper"]["anchored-100"])
        - mean(cells[f"cifar10-{model}-paper"]["anchored-200"])
        for model in ("vgg19", "resnet50")
    }
    assert lost["vgg19"] < 2
    assert lost["resnet50"] > 10
