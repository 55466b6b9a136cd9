from __future__ import annotations

from collections.abc import Sequence

import pytest

from gence.lab.spec.grid import check_losses
from gence.lab.spec.recipe import RECIPES
from gence.lab.store.record import RunResult
from gence.lab.store.store import Store
from gence.lab.sweep.search import cell_name, cells
from gence.paper.exhibit import Exhibit
from gence.paper.exhibit_registry import by_priority, grid_specs, paper_exhibits
from gence.paper.exhibits.table1 import table1
from gence.paper.records import default_results
from gence.paper.studies.open_choices import (
    CANDIDATES,
    CELLS,
    FIRST,
    GO_ON,
    chosen,
    judge,
    open_choice_specs,
    search_outlook,
    search_table,
)

ALL = {exhibit.name: exhibit for exhibit in paper_exhibits()}


@pytest.mark.parametrize("exhibit", ALL.values(), ids=lambda exhibit: exhibit.name)
def test_specs_are_unique_and_known(exhibit: Exhibit) -> None:
    specs = exhibit.specs()
    assert len({spec.key for spec in specs}) == len(specs)
    check_losses(specs)
    assert {spec.seed for spec in specs} == set(range(5))
    for spec in specs:
        assert spec.ood == (("cifar100", "svhn") if spec.data == "cifar10" else ())
        assert spec.evaluate_on == "test"
        assert spec.subset.val_fraction == 0


@pytest.mark.parametrize("exhibit", ALL.values(), ids=lambda exhibit: exhibit.name)
def test_names_of_rows_and_columns_are_unique(exhibit: Exhibit) -> None:
    assert len({row.name for row in exhibit.rows}) == len(exhibit.rows)
    assert len({column.name for column in exhibit.columns}) == len(exhibit.columns)
    for row in exhibit.rows:
        assert set(row.printed) <= {column.name for column in exhibit.columns if not column.ours}


def keys(name: str) -> set[str]:
    return {spec.key for spec in ALL[name].specs()}


def test_cells_shared_between_exhibits_train_once() -> None:
    assert keys("ece") == keys("table1")
    assert keys("ood") < keys("table1")
    assert keys("reliability") == keys("ood")
    assert len(keys("batch_size") & keys("table1")) == 2 * 7 * 5  # B = 100 on both networks
    assert len(keys("smoothing") & keys("table1")) == 3 * 3 * 5  # GenCE, CE and anchored
    assert not keys("imbalanced") & keys("table1")
    joined = grid_specs(list(ALL), Store("unused"))
    assert len(joined) == len(set.union(*map(keys, list(ALL)))) == 830


def test_a_part_is_a_fair_comparison() -> None:
    """Every loss of a seed comes before the next seed, and fewer seeds are the beginning of more."""
    specs = ALL["table1"].specs(rows=["cifar100-2000-vgg19"])
    assert [spec.seed for spec in specs] == sorted(spec.seed for spec in specs)
    assert len({spec.loss for spec in specs[:7]}) == 7
    assert ALL["table1"].specs(rows=["cifar100-2000-vgg19"], seeds=2) == specs[:14]


def test_the_most_informative_cells_come_first() -> None:
    names = list(dict.fromkeys(cell_name(spec) for spec in grid_specs(list(ALL), Store("unused"))))
    assert names[:6] == [
        "cifar100-2000-vgg19",
        "cifar10-2000-vgg19",
        "cifar10-2000-resnet50",
        "cifar100-2000-resnet50",
        "cifar100-5000-vgg19",
        "cifar10-5000-vgg19",
    ]
    place = {name: names.index(name) for name in names}
    assert (
        place["cifar10-2000-vgg19-b25"]
        < place["cifar10-2000-resnet50-b25"]
        < place["cifar10-5000-resnet50"]
        < place["mini-imagenet-5000-resnet50"]
        < place["cifar10-rho10-resnet50"]
    )
    assert all(name.startswith("cifar") and "rho" in name for name in names[-4:])


def test_runs_of_a_cell_can_train_side_by_side() -> None:
    for runs in cells(by_priority(ALL["table1"].specs())).values():
        assert len({cell_name(spec) for spec in runs}) == 1
        assert len(runs) == 35


def test_rows_and_losses_are_selected() -> None:
    assert len(ALL["table1"].specs(rows=["cifar100-*-vgg19"], losses=["ce", "gence"], seeds=3)) == 2 * 2 * 3
    for rows in (["nothing-*"], ["cifar100-*", "nothing-*"]):
        with pytest.raises(ValueError, match=r"rows: nothing-\* matches no row of table1"):
            ALL["table1"].specs(rows=rows)
    with pytest.raises(ValueError, match=r"losses: 'gce' is not a column of table1; its columns are gence, ce"):
        ALL["table1"].specs(losses=["gce"])


def test_grids_by_name(tmp_path) -> None:
    store = Store(tmp_path / "store")
    with pytest.raises(ValueError, match="did you mean 'table1'"):
        grid_specs(["tabel1"], store)
    with pytest.raises(ValueError, match="seeds is 0"):
        grid_specs(["table1"], store, seeds=0)
    with pytest.raises(ValueError, match="nothing was tuned"):
        grid_specs(["tuned"], store)
    other = grid_specs(["table1"], store, recipe="modern", seeds=1)
    assert {spec.recipe for spec in other} == {RECIPES["modern"]}


def test_a_row_of_one_of_several_grids_is_enough(tmp_path) -> None:
    store, row = Store(tmp_path / "store"), "cifar10-5000-vgg19"
    both = grid_specs(["table1", "smoothing"], store, rows=[row])
    assert both == grid_specs(["table1"], store, rows=[row])
    with pytest.raises(ValueError, match="rows: typo matches no row of table1, smoothing"):
        grid_specs(["table1", "smoothing"], store, rows=[row, "typo"])
    with pytest.raises(ValueError, match="matches no cell of the search; its cells are cifar100-2000-vgg19"):
        grid_specs(["open_choices"], store, rows=["mini-imagenet-2000-vgg19"])
    with pytest.raises(ValueError, match="epoch_time is not a grid"):
        grid_specs(["epoch_time"], store)


def record_search(store: Store, off: dict[str, float], cells: Sequence[str], seeds: int = 1) -> None:
    """Write cross-entropy under candidates, so many percentage points above the printed values."""
    for row in table1().selected(cells):
        for name, points in off.items():
            for seed in range(seeds):
                spec = row.base.replace(recipe=CANDIDATES[name], loss="ce", seed=seed)
                store.write(spec, RunResult(metrics={"accuracy": (row.printed["ce"].mean + points) / 100}))


def test_the_search_trains_cross_entropy_alone(writer) -> None:
    specs = open_choice_specs(writer.store)
    assert {str(spec.loss) for spec in specs} == {"ce"}
    assert len({spec.key for spec in specs}) == len(specs) == len(FIRST) * len(CANDIDATES) * 2
    assert len(set(CANDIDATES.values())) == len(CANDIDATES)


def test_the_printed_part_of_the_recipe_is_in_every_candidate() -> None:
    for recipe in (*CANDIDATES.values(), RECIPES["paper"]):
        assert (recipe.optimizer, recipe.momentum, recipe.weight_decay) == ("sgd", 0.9, 5e-4)
        assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.decay) == (200, 100, 0.1, 0.1)
        assert [fraction * recipe.epochs for fraction in recipe.milestones] == [100, 150]
        assert (recipe.schedule, recipe.crop_padding, recipe.flip) == ("step", 4, True)
        assert recipe.randaugment_ops > 0


def test_the_recipe_is_a_candidate_and_its_runs_are_part_of_table_1(writer) -> None:
    assert RECIPES["paper"] in CANDIDATES.values()
    own = [spec for spec in open_choice_specs(writer.store) if spec.recipe == RECIPES["paper"]]
    assert len(own) == 4
    assert {spec.key for spec in own} < keys("table1")


OFF = {name: 3.0 + place for place, name in enumerate(CANDIDATES)} | {"tenth mixed": 1.0, "not mixed": -2.0}
CLOSEST = sorted(OFF, key=lambda name: abs(OFF[name]))[:GO_ON]


def test_only_the_closest_go_on(writer) -> None:
    store = writer.store
    record_search(store, OFF, FIRST[:1])
    record_search(store, {name: OFF[name] for name in list(OFF)[1:]}, FIRST[1:])
    assert all(one.out is None for one in judge(store))  # one cell lacks one candidate
    assert {spec.subset.n for spec in open_choice_specs(store)} == {2000}
    assert "gence run open_choices, and again for the 4 closest" in search_outlook(store)
    assert "out" not in search_table(store).markdown().split("\n\n")[0]
    record_search(store, OFF, FIRST)
    assert [one.name for one in judge(store) if not one.out] == CLOSEST
    later = [spec for spec in open_choice_specs(store, seeds=1) if spec.subset.n == 5000]
    assert sorted(map(str, later)) == sorted(
        str(row.base.replace(recipe=CANDIDATES[name], loss="ce", seed=0))
        for row in table1().selected(CELLS[2:])
        for name in CLOSEST
    )
    assert search_outlook(store).endswith("both cells of N = 5000. Next: gence run open_choices.")
    lines = search_table(store).markdown().splitlines()
    assert sum(line.count("| out") for line in lines) == 3 * (len(CANDIDATES) - GO_ON)
    assert sum(line.count("| missing") for line in lines) == 3 * GO_ON


def test_the_closest_candidate_is_chosen(writer) -> None:
    store = writer.store
    record_search(store, OFF, FIRST)
    # Out is out: what comes closest where it need not have run is not asked.
    record_search(store, {name: 0.0 for name in OFF if name not in CLOSEST}, CELLS[2:], seeds=2)
    for cell in CELLS[2:]:
        assert chosen(store) is None  # the search is not over
        record_search(store, {name: -5 * OFF[name] for name in CLOSEST}, [cell])
    found = chosen(store)
    assert found is not None
    assert (found.name, round(found.distance, 9)) == ("tenth mixed", round(13**0.5, 9))
    assert f"Chosen, on cross-entropy alone and 1 of 2 seeds: {found.name} (distance 3.61)." == search_outlook(store)
    assert "| **tenth mixed** |" in search_table(store).markdown()
    judged = judge(store)
    assert [one.name for one in judged[:GO_ON]] == CLOSEST
    assert all(one.out for one in judged[GO_ON:])


def test_all_are_judged_on_the_same_seeds(writer) -> None:
    store = writer.store
    record_search(store, OFF, FIRST)
    before = judge(store)
    record_search(store, {"tenth mixed": 40.0}, FIRST, seeds=3)  # as Table 1 adds seeds for the candidate in use
    record_search(store, {"tenth mixed": OFF["tenth mixed"]}, FIRST, seeds=1)
    assert judge(store) == before
    record_search(store, OFF, FIRST, seeds=2)
    assert {one.counts[:2] for one in judge(store)} == {(2, 2)}


def test_all_of_equals_go_on(writer) -> None:
    record_search(writer.store, dict.fromkeys(CANDIDATES, 1.0), FIRST)
    assert [one.name for one in judge(writer.store) if not one.out] == list(CANDIDATES)


def test_the_recipe_is_what_the_repository_s_records_say() -> None:
    found = chosen(Store(default_results()))
    if found is None:
        pytest.skip("the search for the recipe is not over")
    assert found.recipe == RECIPES["paper"], f"recipe.py: RECIPES['paper'] should be {found.name!r}"
