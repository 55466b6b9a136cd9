from __future__ import annotations

import itertools

import pytest

from gence.lab.spec.fields import SpecError
from gence.lab.spec.grid import Grid, parse_grid, read_grid

BASE = {"data": "digits", "model": "small_cnn", "recipe": "tiny", "subset": 200}

TOML = """
[base]
data = "digits"
model = "small_cnn"
recipe = "short"
subset = "small"

[product]
loss = ["ce", "gence(anchor=0.1)", "mine"]
seed = [0, 1]
"recipe.lr" = [0.05, 0.1]

[[include]]
loss = { name = "focal", gamma = 3 }
seed = 7

[losses]
mine = { name = "gence", anchor = 0.3 }

[subsets]
small = { n = 100 }

[recipes.short]
base = "tiny"
epochs = 3
"""


def test_a_product_is_every_combination_with_the_last_axis_fastest():
    specs = Grid(base=BASE, product={"loss": ["ce", "gence(anchor=0.1)"], "seed": range(3)}).specs()
    assert [(str(s.loss), s.seed) for s in specs] == [
        *(("ce", i) for i in range(3)),
        *(("gence(anchor=0.1)", i) for i in range(3)),
    ]


def test_a_list_beside_a_product_and_a_spec_as_base():
    grid = Grid(
        base={**BASE, "loss": "ce"}, product={"seed": [0, 1]}, include=[{"seed": 5, "recipe.lr": 0.2}, {"seed": 1}]
    )
    specs = grid.specs()
    assert [(s.seed, s.recipe.lr) for s in specs] == [(0, 0.05), (1, 0.05), (5, 0.2)]
    again = Grid(base=specs[0], product={"subset.n": [100, 200]}).specs()
    assert [s.subset.n for s in again] == [100, 200]
    assert [s.seed for s in Grid(base=specs[0], include=[{"seed": 9}]).specs()] == [9]
    assert Grid(base=specs[0]).specs() == [specs[0]]


def test_toml_means_the_same_as_python(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(TOML, encoding="utf-8-sig")  # as some editors on Windows write it
    base = {**BASE, "subset": 100, "recipe": {"base": "tiny", "epochs": 3}}
    expected = Grid(
        base=base,
        product={"loss": ["ce", "gence(anchor=0.1)", "gence(anchor=0.3)"], "seed": [0, 1], "recipe.lr": [0.05, 0.1]},
        include=[{"loss": "focal(gamma=3)", "seed": 7}],
    ).specs()
    assert read_grid(path) == expected
    assert len(expected) == 13


def test_several_grids_in_one_file():
    one = {"base": {**BASE, "loss": "ce"}, "product": {"seed": [0, 1]}}
    two = {"base": {**BASE, "loss": "gence"}, "product": {"seed": [0]}}
    assert [(s.loss.name, s.seed) for s in parse_grid({"grid": [one, two, one]})] == [
        ("ce", 0),
        ("ce", 1),
        ("gence", 0),
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"bsae": {}}, "the grid has no field 'bsae'; did you mean 'base'"),
        ({"base": {**BASE, "los": "ce", "seed": 0}}, "did you mean 'loss'"),
        ({"base": {**BASE, "loss": "gnce", "seed": 0}}, "loss is 'gnce'; did you mean 'gence'"),
        ({"base": {**BASE, "loss": "gence(ancor=1)", "seed": 0}}, "did you mean 'anchor'"),
        ({"base": {**BASE, "loss": "ce", "recipe": "tny"}}, "did you mean 'tiny'"),
        ({"base": {**BASE, "loss": "ce", "subset": "smal"}, "subsets": {"small": 9}}, "did you mean 'small'"),
        ({"base": {**BASE, "loss": "ce"}, "product": {"seed": 3}}, "must be a list"),
        ({"base": {**BASE, "loss": "ce"}, "product": {"seed": []}}, "is empty"),
        ({"base": {**BASE, "loss": "ce"}, "product": {"sead": [1]}}, "did you mean 'seed'"),
        ({"recipes": {"paper": {"lr": 1}}, "base": BASE}, "name of a built-in"),
        ({"losses": {"ce": {"name": "gence"}}, "base": BASE}, "the grid's loss 'ce' has the name of a built-in"),
        ({"losses": {"ce(label_smoothing=0.1)": "gence"}, "base": BASE}, "the grid's loss 'ce' has the name"),
        ({"subsets": {"all": 100}, "base": BASE}, "the grid's subset 'all' has the name of a built-in"),
        ({"grid": {}}, r"grid must be an array of tables, each written \[\[grid\]\]; got {}"),
        ({"grid": [1]}, r"grid must be an array of tables, each written \[\[grid\]\]; got \[1\]"),
        ({"base": BASE, "include": {"seed": 1}}, r"each written \[\[include\]\]; got {'seed': 1}"),
        ({"base": BASE, "include": [1]}, r"each written \[\[include\]\]; got \[1\]"),
        ({"base": BASE, "product": [{"seed": [1]}]}, r"product must be one table, written \[product\]"),
        ({"base": 3}, r"base must be one table, written \[base\] with its fields below; got 3"),
        ({"base": BASE, "recipes": 3}, r"recipes must be one table, written \[recipes\]"),
        ({"base": BASE, "recipes": {"x": 3}}, r"recipes\.x must be one table, written \[recipes\.x\]"),
        ({"base": BASE, "recipes": {"x": {"base": ["tiny"]}}}, r"recipes\.x\.base is \['tiny'\]"),
        (
            {"base": BASE, "recipes": {"x": {"base": "y"}}},
            r"recipes\.x\.base is 'y'; known: finetune, head",
        ),
        (
            {"base": BASE, "recipes": {"x": {"base": "y"}, "y": {"base": "x"}}},
            r"recipes\.x is based on itself: x on y on x",
        ),
        (
            {"base": {**BASE, "loss": "ce", "subset": "50"}},
            "subset is '50'; expected a whole number, \"all\", or a table",
        ),
        ({"base": BASE, "product": {"recipe": {"lr": [0.1]}}}, r'quote the whole name: "recipe\.lr" = \[\.\.\.\]'),
        ({"base": BASE, "losses": 3}, r"losses must be one table, written \[losses\]"),
        ({"base": BASE, "losses": {"x": {"name": "ce", "params": 3}}}, "the params of loss 'ce' are 3; expected a"),
        ({"base": BASE, "subsets": 3}, r"subsets must be one table, written \[subsets\]"),
        ({}, "nothing to run"),
    ],
)
def test_mistakes_are_named(document, message):
    with pytest.raises(SpecError, match=message):
        parse_grid(document)


def test_a_recipe_may_be_based_on_one_below_it():
    names = {"longer": {"base": "slower", "epochs": 9}, "slower": {"base": "tiny", "lr": 0.01}}
    (run,) = parse_grid({"base": {**BASE, "loss": "ce", "seed": 0, "recipe": "longer"}, "recipes": names})
    assert (run.recipe.epochs, run.recipe.lr, run.recipe.batch_size) == (9, 0.01, 50)


def test_a_file_that_is_no_grid_is_named(tmp_path):
    with pytest.raises(SpecError, match="no grid file"):
        read_grid(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("[base\n")
    with pytest.raises(SpecError, match=r"bad.toml is not TOML"):
        read_grid(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'[base]\ndata = "Stra\xdfe"\n')
    with pytest.raises(SpecError, match=r"latin.toml is not TOML, which is text in UTF-8"):
        read_grid(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("base", "product"),
    [
        ({"loss": "ce"}, {"recipe": ["tiny", "modern"], "seed": [0, 1]}),
        ({"loss": "ce", "recipe": "tiny", "recipe.lr": 0.03}, {"recipe": ["tiny", "modern"], "subset.n": [50, 60]}),
        (
            {"recipe": "tiny", "subset": 50, "subset.rho": 10.0},
            {"loss": ["ce", "gence(anchor=0.5)"], "subset": [50, 90]},
        ),
        ({"recipe": "tiny", "loss": "gence"}, {"loss.anchor": [0.1, 0.2], "recipe.lr": [0.1, 0.2]}),
    ],
)
def test_each_run_of_a_product_is_the_base_with_its_own_changes(base, product):
    base = {"data": "digits", "model": "mlp", "seed": 0, **base}
    found = Grid(base=base, product=product).specs()
    points = [dict(zip(product, values, strict=True)) for values in itertools.product(*product.values())]
    assert found == [Grid(base={**base, **point}).specs()[0] for point in points]
    assert len({spec.key for spec in found}) == len(points)
