"""What tuning found is kept in the store, one small file per cell, merged, and made into final runs."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES
from gence.lab.spec.run import RunSpec
from gence.lab.store.files import StoreError
from gence.lab.store.store import Store
from gence.lab.sweep.search import cells_to_tune
from gence.lab.sweep.tuning import load_tuned, merge_tuned, save_tuned, tuned_specs
from tests.lab.tuned_report import tuned_report


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


def test_a_cell_is_tuned_once_whatever_rates_its_grid_has() -> None:
    run = RunSpec.from_dict(
        {"data": "digits", "model": "mlp", "recipe": "tiny", "subset": 100, "loss": "ce", "seed": 0}
    )
    rates = [run.replace(**{"recipe.lr": lr, "recipe.weight_decay": wd}) for lr in (0.1, 0.01) for wd in (0.0, 1e-3)]
    runs = [one.replace(loss=loss, seed=seed) for one in rates for loss in ("focal(gamma=1)", "ce") for seed in (0, 3)]
    assert cells_to_tune(runs) == [rates[0].replace(loss="ce", seed=0)]
    more = [*runs, run.replace(**{"recipe.batch_size": 20})]
    assert len(cells_to_tune(more)) == 2


def test_what_was_tuned_is_kept_and_read_back(store) -> None:
    made = tuned_report(store)
    found = load_tuned(store, made.base.replace(loss="focal", seed=3))
    assert (found.base, found.seeds, found.trials, found.complete) == (made.base, (1000,), 4, True)
    assert found.best[1].changes["loss"] == "gence(anchor=0.3)"
    assert load_tuned(store, made.base.replace(model="resnet50")) is None


def test_tuning_one_more_loss_keeps_what_was_tuned_before(store) -> None:
    made = tuned_report(store)
    focal = dataclasses.replace(
        made.best[0], asked=LossSpec.parse("focal"), metric="nll", budget=2, trials=1, complete=False
    )
    save_tuned(store, dataclasses.replace(made, best=(focal,), seeds=(1001,), trials=2, complete=False))
    found = load_tuned(store, made.base)
    assert [str(one.asked) for one in found.best] == ["ce", "gence(anchor=tune)", "focal"]
    assert [(one.metric, one.budget, one.complete) for one in found.best] == [
        ("accuracy", 4, True),
        ("accuracy", 4, True),
        ("nll", 2, False),
    ]
    assert (found.seeds, found.complete) == ((1000, 1001), False)
    better = dataclasses.replace(focal, value=0.4, trials=2, complete=True)
    save_tuned(store, dataclasses.replace(made, best=(better,), trials=2))
    found = load_tuned(store, made.base)
    assert ([one.value for one in found.best], found.complete) == ([0.2, 0.25, 0.4], True)
    save_tuned(store, dataclasses.replace(made, best=()))  # stopped before the first trial was over
    assert len(load_tuned(store, made.base).best) == 3


def test_merging_takes_over_what_was_tuned_with_more_trials(store, tmp_path) -> None:
    other = Store(tmp_path / "other")
    made = tuned_report(other)
    assert merge_tuned(store, other) == 2
    assert load_tuned(store, made.base) == load_tuned(other, made.base)
    assert merge_tuned(store, other) == 0
    more = dataclasses.replace(made.best[0], trials=8, budget=8, value=0.3)
    less = dataclasses.replace(made.best[1], trials=2, value=0.9)
    save_tuned(other, dataclasses.replace(made, best=(more, less), seeds=(1001,)))
    assert merge_tuned(store, other) == 1
    found = load_tuned(store, made.base)
    assert ([one.value for one in found.best], found.seeds) == ([0.3, 0.25], (1000, 1001))


def test_files_of_older_versions_are_read(store) -> None:
    made = tuned_report(store)
    (path,) = (store.root / "tuned").iterdir()
    content = json.loads(path.read_text())
    for one in content["best"]:
        del one["metric"], one["budget"], one["complete"]
    path.write_text(json.dumps(content))
    assert load_tuned(store, made.base).best[0] == made.best[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": ["cifar10-*"]}, r"for the row cifar10-\*; what was: cifar100-2000-vgg19"),
        ({"rows": ["cifar100-*", "typo"]}, "for the row typo; what was: cifar100-2000-vgg19"),
        ({"recipe": RECIPES["tiny"]}, "from this recipe; do that first: gence tune"),
        ({"losses": ["focal"]}, "'focal' was not tuned"),
    ],
)
def test_what_was_not_tuned_is_said(store, options, message) -> None:
    tuned_report(store)
    with pytest.raises(ValueError, match=message):
        tuned_specs(store, **{"seeds": 1, **options})


def test_a_damaged_file_is_named(store) -> None:
    made = tuned_report(store)
    (path,) = (store.root / "tuned").iterdir()
    path.write_text('{"best": []}')
    with pytest.raises(StoreError, match=r"cannot be read .*run gence tune again"):
        load_tuned(store, made.base)
