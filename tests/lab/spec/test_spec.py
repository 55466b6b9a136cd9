from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gence.lab.spec.fields import SpecError, as_plain
from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES, Recipe
from gence.lab.spec.run import SCHEMA_VERSION, RunSpec, Subset, canonical_json


def make(**changes) -> RunSpec:
    base = RunSpec(
        data="digits", subset=Subset(n=200), model="small_cnn", loss=LossSpec(name="ce"), recipe=Recipe(), seed=0
    )
    return base.replace(**changes)


def test_canonical_json_is_sorted_compact_and_exact():
    text = make().to_json()
    assert " " not in text
    assert text == canonical_json(json.loads(text))
    assert '"lr":0.1,' in text
    assert f'"schema":{SCHEMA_VERSION}' in text
    assert RunSpec.from_json(text) == make()


def test_the_key_is_the_one_this_version_has_always_had():
    # Changing how a key is made renames every record there is; raise SCHEMA_VERSION if that is meant.
    text = (
        '{"data":"digits","evaluate_on":"test","image_size":null,"loss":{"name":"ce","params":{}},"model":"small_cnn",'
        '"ood":[],"recipe":{"anchor_warmup":0.0,"batch_size":100,"crop_padding":4,"cutmix_alpha":0.0,"decay":0.1,'
        '"drop_last":true,"ema":0.0,"epochs":200,"flip":true,"head_bias":true,"init":"kaiming_fan_out","lr":0.1,'
        '"milestones":[0.5,0.75],"mix_probability":0.0,"mixup_alpha":0.0,"momentum":0.9,"nesterov":false,'
        '"optimizer":"sgd","precision":"auto","randaugment_magnitude":9,"randaugment_ops":2,"schedule":"step",'
        '"stem":"auto","warmup_epochs":0.0,"weight_decay":0.0005},"schema":1,"seed":0,'
        '"subset":{"n":200,"rho":null,"val_fraction":0.0}}'
    )
    assert make().to_json() == text
    assert make().key == hashlib.sha256(text.encode()).hexdigest()[:16] == "5f6bd16482071b4f"


def test_equal_meaning_has_an_equal_key():
    assert make(**{"recipe.lr": 1}).key == make(**{"recipe.lr": 1.0}).key == make(**{"recipe.lr": np.float64(1)}).key
    assert make(seed=np.int64(3)).key == make(seed=3.0).key == make(seed=3).key
    assert make(loss="gence(anchor=1)").key == make(loss={"name": "gence", "anchor": 1.0}).key
    assert make(loss="gence( prior=train,anchor=0.1 )").key == make(loss="gence(anchor=0.10, prior='train')").key
    assert make(recipe={"base": "paper", "warmup_epochs": 1}).key == make(recipe="paper").key
    assert make(subset=2000).key == make(subset={"n": 2000}).key


def test_each_field_is_part_of_the_key():
    specs = [
        make(), make(seed=1), make(loss="gence"), make(loss="ce(label_smoothing=0.1)"), make(model="resnet18"),
        make(data="cifar10"),
        make(**{"subset.n": 100}), make(**{"subset.rho": 10}), make(ood=["svhn"]), make(image_size=32),
        make(**{"subset.val_fraction": 0.2}), make(**{"subset.val_fraction": 0.2}, evaluate_on="val"),
        *(make(**{f"recipe.{name}": value}) for name, value in [("lr", 0.2), ("epochs", 3), ("flip", False)]),
    ]  # fmt: skip
    assert len({s.key for s in specs}) == len(specs)


def test_a_cohort_shares_what_must_be_equal_and_nothing_else():
    same = [make(), make(seed=1), make(loss="gence"), make(**{"recipe.lr": 0.3}), make(**{"recipe.weight_decay": 0.1})]
    assert len({s.cohort_key for s in same}) == 1
    other = [make(**{"recipe.batch_size": 50}), make(**{"subset.n": 300}), make(model="vgg19"), make(image_size=16)]
    assert len({s.cohort_key for s in [make(), *other]}) == 1 + len(other)


@given(
    lr=st.floats(0, 1e3),
    seed=st.integers(0, 2**63),
    anchor=st.floats(-1e6, 1e6) | st.booleans() | st.sampled_from(["train", "uniform"]),
    n=st.none() | st.integers(1, 10**6),
)
def test_json_and_pickle_round_trips_are_exact(lr, seed, anchor, n):
    made = make(loss=LossSpec(name="gence", params={"x": anchor}), seed=seed, subset={"n": n}, **{"recipe.lr": lr})
    for copy in (RunSpec.from_json(made.to_json()), pickle.loads(pickle.dumps(made))):
        assert copy == made
        assert copy.key == made.key
        assert LossSpec.parse(str(copy.loss)) == made.loss


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RunSpec.from_dict({"dta": "digits"}), "RunSpec has no field 'dta'; did you mean 'data'"),
        (lambda: RunSpec.from_dict({"data": "digits"}), "RunSpec needs the field 'model'"),
        (lambda: make(**{"recipe.lrr": 1}), "Recipe has no field 'lrr'; did you mean 'lr'"),
        (lambda: make(recipe="moderm"), "did you mean 'modern'"),
        (lambda: make(**{"subset.rhoo": 1}), "did you mean 'rho'"),
        (lambda: make(**{"seed.x": 1}), "has no fields inside"),
        (lambda: make(recipe={"base": "paper", "epoch": 3}), "did you mean 'epochs'"),
        (lambda: make(seed=-1), "seed must not be negative"),
        (lambda: make(seed=0.5), "must be an integer, got 0.5"),
        (lambda: make(seed=True), "must be an integer, got True"),
        (lambda: make(**{"recipe.lr": float("nan")}), "Recipe.lr must be finite"),
        (lambda: make(**{"recipe.flip": 1}), "Recipe.flip must be true or false"),
        (lambda: make(**{"recipe.milestones": 0.5}), "must be a list"),
        (lambda: make(**{"recipe.milestones": [0.7, 0.5]}), "rising fractions"),
        (lambda: make(**{"recipe.mix_probability": 0.5}), "nothing would be mixed"),
        (lambda: make(**{"recipe.ema": 2}), r"lie in \[0, 1\]"),
        (lambda: make(**{"recipe.epochs": 0}), "at least 1"),
        (lambda: make(evaluate_on="tets"), "did you mean 'test'"),
        (lambda: make(evaluate_on="val"), "nothing held out"),
        (lambda: make(subset=0), "Subset.n must be at least 1"),
        (lambda: make(subset={"rho": 0.5}), "Subset.rho must be at least 1"),
        (lambda: make(subset={"val_fraction": 1}), "val_fraction"),
        (lambda: make(loss="gence(anchor)"), "expected param=value"),
        (lambda: make(loss="gence(a=1,a=2)"), "twice"),
        (lambda: make(loss="gen ce"), "expected name or name"),
        (lambda: make(loss=3), "expected a name"),
        (lambda: LossSpec(name="ce", params={"a": [1]}), "must be a number"),
        (lambda: LossSpec(name="ce", params={"a b": 1}), "expected a Python name"),
        (lambda: LossSpec(name=""), "name of a loss"),
        (lambda: RunSpec.from_json("[]"), "a spec is a JSON object"),
        (lambda: RunSpec.from_dict({"schema": "x"}), "whole number"),
        (
            lambda: make(ood=["d/plain", "svhn", "o2/plain.zip"]),
            "d/plain and o2/plain.zip would share the name 'plain'",
        ),
        (lambda: RunSpec(data="d", model="m", loss="ce", recipe=Recipe(), seed=0), "must be a LossSpec"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(SpecError, match=message):
        call()


def test_a_source_from_elsewhere_may_be_named_twice_as_in_old_records():
    assert make(ood=["svhn", "svhn"]).ood == ("svhn", "svhn")


def test_a_spec_of_a_newer_version_says_so():
    values = {**make().to_dict(), "schema": SCHEMA_VERSION + 1, "unheard_of": 1}
    with pytest.raises(SpecError, match=r"newer version.*update gence"):
        RunSpec.from_dict(values)


def test_a_field_added_later_leaves_old_keys_alone():
    @dataclasses.dataclass(frozen=True)
    class Later:
        a: int = 1
        b: int = dataclasses.field(default=2, metadata={"added_later": True})

    assert as_plain(Later()) == {"a": 1}
    assert as_plain(Later(b=3)) == {"a": 1, "b": 3}


def test_specs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().seed = 3
    loss = LossSpec(name="gence", params={"anchor": 0.1})
    loss.params["anchor"] = 2
    assert loss.params == {"anchor": 0.1}


def test_the_papers_recipe_is_as_printed():
    paper = RECIPES["paper"]
    assert (paper.optimizer, paper.momentum, paper.weight_decay, paper.epochs) == ("sgd", 0.9, 5e-4, 200)
    assert (paper.batch_size, paper.lr, paper.decay, paper.schedule) == (100, 0.1, 0.1, "step")
    assert [fraction * paper.epochs for fraction in paper.milestones] == [100, 150]
    assert (paper.crop_padding, paper.flip, paper.nesterov) == (4, True, False)
