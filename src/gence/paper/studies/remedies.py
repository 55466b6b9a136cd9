"""The remedies for a drifting class marginal, compared on real data (N = 2000); not in the paper.

Plain GenCE leaves the predicted marginal almost free. What holds it, or puts it back: an anchor of some strength to the
batch's labels or to the training set's, an anchor that rises during training, offsets fitted after training, a last
layer without a bias, larger batches. Cross-entropy stands beside them as the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gence.lab.spec import RECIPES, LossSpec, Recipe
from gence.paper.exhibit import ANCHORED, DATA_TITLES, MODEL_TITLES, OFFSET, Column, Exhibit, Row, cell

N = 2000
SEEDS = 3
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)
BATCH_SIZES = (200, 400)

SETTINGS = (("cifar100", "vgg19"), ("cifar10", "vgg19"), ("cifar100", "resnet50"), ("cifar10", "resnet50"))
"""Data and network, the cheap ones and those with more to say first."""

UNDER = ("paper", "modern")
"""The recipes every setting is measured under."""

PRIORS = {"batch": "batch labels", "train": "training prior"}
"""What an anchor holds the marginal to."""

CE, PLAIN = "ce", "gence"
"""The two columns that are no remedies: the reference, and what is to be repaired."""


def anchor_column(strength: float, prior: str) -> str:
    """Return the name of the column of an anchor; `prior` is a key of `PRIORS`.

    >>> anchor_column(0.1, "train")
    'train-anchor-0.1'
    """
    return f"{'train-' if prior == 'train' else ''}anchor-{strength:g}"


OURS: Mapping[str, Any] = {"ood": ()}
"""For runs that no other exhibit has: nothing looks at their OOD scores, most of what their evaluation would cost."""


def _anchored(strength: float, prior: str) -> Column:
    anchored = LossSpec(name="gence", params={"anchor": strength})
    in_table1 = anchored == ANCHORED.loss and prior == "batch"
    return Column(
        name=anchor_column(strength, prior),
        title=f"anchor {strength:g} ({PRIORS[prior]})",
        # Without a prior of its own the anchor holds the marginal to the batch's labels.
        loss=anchored.replace(prior="train") if prior == "train" else anchored,
        ours=True,
        changes={} if in_table1 else OURS,
    )


COLUMNS = (
    Column(name=CE, title="CE", loss=LossSpec(name="ce")),
    Column(name=PLAIN, title="GenCE", loss=LossSpec(name="gence")),
    Column(name="offset", title="offset after training", loss=OFFSET.loss, ours=True, prefix=OFFSET.prefix),
    *(_anchored(strength, prior) for prior in PRIORS for strength in STRENGTHS),
    Column(
        name="annealed",
        title="anchor rising to 0.1",
        loss=LossSpec.parse("gence(anchor=0.1)"),
        ours=True,
        changes={**OURS, "recipe.anchor_warmup": 0.5},
    ),
    Column(
        name="no-bias",
        title="no bias in the last layer",
        loss=LossSpec(name="gence"),
        ours=True,
        changes={**OURS, "recipe.head_bias": False},
    ),
    *(
        Column(
            name=f"batch-{size}",
            title=f"batch {size}",
            loss=LossSpec(name="gence"),
            ours=True,
            changes={"recipe.batch_size": size},
        )
        for size in BATCH_SIZES
    ),
)
"""Cross-entropy, plain GenCE, and fifteen remedies; the offset has no run of its own."""

_UNITS = {
    "accuracy": ("accuracy, %", True, 100.0),
    "ece": ("ECE, % (15 bins)", False, 100.0),
    "marginal_kl": ("drift KL(prior ‖ predicted marginal) on the training images, nats", None, 1.0),
}


def remedies(recipe: Recipe | None = None, metric: str = "accuracy") -> Exhibit:
    """Return the exhibit, under both recipes unless one is given.

    Args:
        recipe: one recipe instead of the two.
        metric: "accuracy", "ece" or "marginal_kl"; all come from the same runs.

    >>> exhibit = remedies()
    >>> len(exhibit.rows), len(exhibit.columns), exhibit.rows[0].name
    (8, 17, 'cifar100-vgg19-paper')
    >>> len(exhibit.specs(rows=["cifar100-vgg19-paper"]))
    48
    """
    unit, higher_is_better, scale = _UNITS[metric]
    under = {name: RECIPES[name] for name in UNDER} if recipe is None else {_name(recipe): recipe}
    return Exhibit(
        name="remedies",
        title=f"Remedies for a drifting marginal, N = {N}",
        where="not in the paper",
        unit=unit,
        label_names=("Data", "Network", "Recipe"),
        # The drift of what the offset has repaired is 0 by the way it is fitted: no measurement.
        columns=tuple(column for column in COLUMNS if metric != "marginal_kl" or not column.prefix),
        rows=tuple(
            Row(
                name=f"{data}-{model}-{name}",
                labels=(DATA_TITLES.get(data, data), MODEL_TITLES.get(model, model), name),
                base=cell(data, model, n=N, recipe=used),
                metric=metric,
            )
            for data, model in SETTINGS
            for name, used in under.items()
        ),
        higher_is_better=higher_is_better,
        scale=scale,
        seeds=SEEDS,
        assumptions=(
            "Larger batches have the same epochs and the same learning rate, so they make fewer steps.",
            "The rising anchor starts at 0 and grows linearly to 0.1 over the first half of the epochs; its prior is "
            "the batch's labels.",
            "The training prior is the class distribution of the subset, which is uniform: subsets are balanced.",
            "An anchor of 1 to the batch's labels has cross-entropy's gradient and is there as the scale's other end.",
        ),
    )


def _name(recipe: Recipe) -> str:
    return next((name for name, known in RECIPES.items() if known == recipe), "custom")
