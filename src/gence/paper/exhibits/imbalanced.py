"""Table 2: accuracy under class imbalance, long-tailed CIFAR-10 and CIFAR-100 with ResNet-50."""

from __future__ import annotations

from gence.lab.spec import Recipe
from gence.paper.exhibit import COLUMNS, DATA_TITLES, Exhibit, RunRow, cell, printed
from gence.paper.exhibit_registry import Entry

# Accuracy in per cent: GenCE | CE | generalised CE | focal | MAE | Brier
PRINTED = {
    ("cifar10", 10): "87.00 0.23 | 86.31 0.23 | 86.67 0.19 | 86.44 0.32 | 86.46 0.34 | 86.37 0.30",
    ("cifar10", 100): "70.84 0.55 | 69.12 0.52 | 68.38 0.11 | 68.35 0.56 | 68.70 0.20 | 68.34 0.41",
    ("cifar100", 10): "59.13 0.28 | 57.69 0.30 | 56.65 0.77 | 57.64 0.25 | 58.10 0.42 | 57.96 0.53",
    ("cifar100", 100): "40.31 0.36 | 38.42 0.05 | 37.36 0.51 | 37.94 0.20 | 37.98 0.18 | 38.42 0.52",
}


def imbalanced(recipe: Recipe | None = None) -> Exhibit:
    """Return the exhibit, under the paper's recipe unless another is given."""
    return Exhibit(
        name="imbalanced",
        title="Accuracy under class imbalance",
        where="Table 2",
        label_names=("Data", "Imbalance"),
        rows=tuple(
            RunRow(
                name=f"{data}-rho{rho}-resnet50",
                labels=(DATA_TITLES[data], str(rho)),
                base=cell(data, "resnet50", rho=rho, recipe=recipe),
                printed=printed(COLUMNS, line),
            )
            for (data, rho), line in PRINTED.items()
        ),
        assumptions=(
            "The largest class has all its training images (5000 of CIFAR-10, 500 of CIFAR-100), and class k has "
            "n_max * rho^(-k/(K-1)) of them; the test set is balanced.",
        ),
    )


ENTRIES = (
    Entry(
        name="imbalanced",
        place=2,
        exhibit=imbalanced,
        in_paper=True,
    ),
)
