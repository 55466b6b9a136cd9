"""Figure 1: reliability diagrams on CIFAR-10; the figure has no numbers, so what is claimed of it is measured."""

from __future__ import annotations

from gence.lab.spec import Recipe
from gence.paper.exhibit import COLUMNS, MODEL_TITLES, Exhibit, Row, cell

OVERCONFIDENCE = "reliability/overconfidence"
"""Confidence less accuracy over the predictions in the five most confident of 15 bins; made from a record's bins."""


def reliability(recipe: Recipe | None = None) -> Exhibit:
    """Return the exhibit, under the paper's recipe unless another is given."""
    return Exhibit(
        name="reliability",
        title="Over-confidence in the five most confident of 15 bins",
        where="Figure 1",
        unit="confidence less accuracy, % points (0 is calibrated, above 0 over-confident)",
        label_names=("N", "Network"),
        columns=tuple(column for column in COLUMNS if not column.prefix),
        rows=tuple(
            Row(
                name=f"cifar10-{n}-{model}",
                labels=(str(n), MODEL_TITLES[model]),
                base=cell("cifar10", model, n=n, recipe=recipe),
                metric=OVERCONFIDENCE,
            )
            for model in ("resnet50", "vgg19")
            for n in (5000, 2000)
        ),
        higher_is_better=None,
        assumptions=(
            "The figure names CIFAR-10 and 15 bins, but neither the size of the training set nor the network; the "
            "CIFAR-10 models of Table 1 are shown. The text claims that the pointwise losses lie below the diagonal "
            "in the high-confidence bins (here: above 0) and GenCE on it (here: 0).",
            "A model with fewer than 100 predictions in these bins has no number: it is not confident.",
        ),
    )
