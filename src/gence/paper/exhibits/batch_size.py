"""Figure 2: accuracy against batch size on CIFAR-10, N = 2000; the figure has no numbers, only a profile."""

from __future__ import annotations

from gence.lab.spec import RECIPES, Recipe
from gence.paper.exhibit import COLUMNS, MODEL_TITLES, Exhibit, Row, cell

BATCH_SIZES = (25, 50, 100, 200)


def batch_size(recipe: Recipe | None = None) -> Exhibit:
    """Return the exhibit, under the paper's recipe unless another is given; everything but the batch stays as it is."""
    recipe = RECIPES["paper"] if recipe is None else recipe
    return Exhibit(
        name="batch_size",
        title="Accuracy against batch size (CIFAR-10, N = 2000)",
        where="Figure 2",
        unit="accuracy, %",
        label_names=("Network", "B"),
        columns=COLUMNS,
        rows=tuple(
            Row(
                name=f"cifar10-2000-{model}-b{size}",
                labels=(MODEL_TITLES[model], str(size)),
                base=cell("cifar10", model, n=2000, recipe=recipe.replace(batch_size=size)),
                metric="accuracy",
            )
            for model in ("vgg19", "resnet50")
            for size in BATCH_SIZES
        ),
        assumptions=(
            "The network is not printed; both are measured. B = 100 are the runs of Table 1. The learning rate is "
            'not scaled with the batch ("everything else held fixed").',
        ),
    )
