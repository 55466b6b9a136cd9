from __future__ import annotations

import pytest

from gence.experiment.grid import check_losses
from gence.experiment.recipe import RECIPES
from gence.experiment.result import RunResult
from gence.experiment.store import Store
from gence.paper import EXHIBITS, load_exhibit
from gence.paper.exhibit import Exhibit
from gence.paper.grids import GRIDS, grid_specs
from gence.paper.open_choices import CANDIDATES, CELLS, chosen, judge, open_choice_specs
from gence.paper.priority import by_priority, cell_name, cells
from gence.paper.results import default_results
from gence.paper.table1 import table1

ALL = {name: load_exhibit(name) for name in EXHIBITS}


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
    joined = grid_specs(EXHIBITS, Store("unused"))
    assert len(joined) == len(set.union(*map(keys, EXHIBITS))) == 830


def test_a_part_is_a_fair_comparison() -> None:
    """Every loss of a seed comes before the next seed, and fewer seeds are the beginning of more."""
    specs = ALL["table1"].specs(rows=["cifar100-2000-vgg19"])
    assert [spec.seed for spec in specs] == sorted(spec.seed for spec in specs)
    assert len({spec.loss for spec in specs[:7]}) == 7
    assert ALL["table1"].specs(rows=["cifar100-2000-vgg19"], seeds=2) == specs[:14]


def test_the_most_informative_cells_come_first() -> None:
    names = list(dict.fromkeys(cell_name(spec) for spec in grid_specs(EXHIBITS, Store("unused"))))
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
    with pytest.raises(ValueError, match=r"rows: nothing-\* matches no row of table1"):
        ALL["table1"].specs(rows=["nothing-*"])
    with pytest.raises(ValueError, match=r"losses: 'gce' is not a column of table1; its columns are gence, ce"):
        ALL["table1"].specs(losses=["gce"])


def test_grids_by_name(tmp_path) -> None:
    store = Store(tmp_path / "store")
    assert "open_choices" in GRIDS
    with pytest.raises(ValueError, match="did you mean 'table1'"):
        grid_specs(["tabel1"], store)
    with pytest.raises(ValueError, match="seeds is 0"):
        grid_specs(["table1"], store, seeds=0)
    with pytest.raises(ValueError, match="nothing was tuned"):
        grid_specs(["tuned"], store)
    other = grid_specs(["table1"], store, recipe="modern", seeds=1)
    assert {spec.recipe for spec in other} == {RECIPES["modern"]}
    grid = tmp_path / "mine.toml"
    grid.write_text('[base]\ndata="digits"\nmodel="small_cnn"\nrecipe="tiny"\nsubset=100\nseed=0\nloss="ce"\n')
    assert len(grid_specs([str(grid), "table1"], store)) == 421
    with pytest.raises(ValueError, match=r"mine\.toml is a file and says itself what it runs"):
        grid_specs([str(grid)], store, seeds=2)


def test_the_search_trains_cross_entropy_alone() -> None:
    specs = open_choice_specs()
    assert {str(spec.loss) for spec in specs} == {"ce"}
    assert len({spec.key for spec in specs}) == len(specs) == len(CELLS) * len(CANDIDATES) * 2
    assert len(set(CANDIDATES.values())) == len(CANDIDATES)


def test_the_printed_part_of_the_recipe_is_in_every_candidate() -> None:
    for recipe in (*CANDIDATES.values(), RECIPES["paper"]):
        assert (recipe.optimizer, recipe.momentum, recipe.weight_decay) == ("sgd", 0.9, 5e-4)
        assert (recipe.epochs, recipe.batch_size, recipe.lr, recipe.decay) == (200, 100, 0.1, 0.1)
        assert [fraction * recipe.epochs for fraction in recipe.milestones] == [100, 150]
        assert (recipe.schedule, recipe.crop_padding, recipe.flip) == ("step", 4, True)
        assert recipe.randaugment_ops > 0
        assert recipe.warmup_epochs == 0


def test_the_recipe_is_a_candidate_and_its_runs_are_part_of_table_1() -> None:
    assert RECIPES["paper"] in CANDIDATES.values()
    own = {spec.key for spec in open_choice_specs() if spec.recipe == RECIPES["paper"]}
    assert len(own) == 8
    assert own < keys("table1")


def test_the_closest_candidate_is_chosen(writer) -> None:
    rows = [table1().selected([name])[0] for name in CELLS]
    for place, (name, recipe) in enumerate(CANDIDATES.items()):
        if name == "not mixed":
            assert chosen(writer.store) is None  # the search is not over
        for row in rows:
            off = 1.0 if name == "tenth mixed" else 3.0 + place
            value = (row.printed["ce"].mean + off) / 100
            for seed in range(2):
                spec = row.base.replace(recipe=recipe, loss="ce", seed=seed)
                writer.store.write(spec, RunResult(metrics={"accuracy": value}))
    found = chosen(writer.store)
    assert found is not None
    assert (found.name, round(found.distance, 9)) == ("tenth mixed", 1.0)
    assert [one.distance for one in judge(writer.store)] == sorted(one.distance for one in judge(writer.store))


def test_the_recipe_is_what_the_repository_s_records_say() -> None:
    found = chosen(Store(default_results()))
    assert found is None or found.recipe == RECIPES["paper"]
