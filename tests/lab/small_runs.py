"""Runs that take a fraction of a second, and what tests compare of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gence.lab.compare.options import CompareOptions
from gence.lab.compare.plan import ComparePlan, plan_comparison
from gence.lab.spec.loss import LossSpec
from gence.lab.spec.recipe import RECIPES, Recipe
from gence.lab.spec.run import RunSpec, Subset
from gence.lab.store.record import RunResult
from gence.lab.train.task import Problem, ProblemLoader

CPU = torch.device("cpu")


def small_recipe(**changes: Any) -> Recipe:
    return RECIPES["tiny"].replace(**{"epochs": 3, "batch_size": 20, "warmup_epochs": 0, **changes})


def small_spec(loss: str = "ce", *, n: int = 40, seed: int = 0, model: str = "small_cnn", **changes: Any) -> RunSpec:
    recipe = {name.removeprefix("recipe."): changes.pop(name) for name in list(changes) if name.startswith("recipe.")}
    spec = RunSpec(
        data="digits",
        subset=Subset(n=n),
        model=model,
        loss=LossSpec.parse(loss),
        recipe=small_recipe(**recipe),
        seed=seed,
    )
    return spec.replace(**changes)


def problem_of(spec: RunSpec) -> Problem:
    return ProblemLoader(CPU).load(spec)


def same_outcome(one: RunResult | None, other: RunResult | None) -> None:
    """All that a run computed is equal to the last bit; only its time may differ."""
    assert one is not None
    assert other is not None
    assert one.status == other.status
    np.testing.assert_equal(one.metrics, other.metrics)
    np.testing.assert_equal(one.curves, other.curves)
    np.testing.assert_equal(one.tables, other.tables)
    np.testing.assert_equal(one.predictions, other.predictions)


def write_images(folder: Path, classes: dict[str, int], *, mode: str = "RGB", size: int = 8, seed: int = 0) -> Path:
    """A folder a class of random PNGs; ``classes`` gives their numbers."""
    random = np.random.default_rng(seed)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            shape = (size, size) if mode == "L" else (size, size, 3)
            Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(folder / name / f"{i:03d}.png")
    return folder


def planned(data: str | Path = "digits", **options: Any) -> ComparePlan:
    """The plan of a comparison with these options."""
    return plan_comparison(CompareOptions(data=data, **options))
