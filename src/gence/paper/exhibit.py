"""The rows and columns of an exhibit, whose cells are runs, and the values that were printed."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gence.lab.spec import RECIPES, LossSpec, Recipe, RunSpec, Subset

if TYPE_CHECKING:
    from gence.lab.store import Record

SEEDS = 5
"""Seeds of every configuration of the paper."""

DATA_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mini-imagenet": "Mini-ImageNet"}
MODEL_TITLES = {"resnet50": "ResNet-50", "vgg19": "VGG-19"}
OOD_TITLES = {"cifar100": "near (CIFAR-100)", "svhn": "far (SVHN)"}
"""The sets that CIFAR-10 models are judged on besides."""


@dataclass(frozen=True)
class Printed:
    """A printed value: mean and standard deviation over `n` seeds, in the exhibit's unit."""

    mean: float
    std: float
    n: int = SEEDS


@dataclass(frozen=True, kw_only=True)
class Column:
    """A loss of an exhibit.

    Attributes:
        name: short name, by which printed values are found.
        title: as the table prints it.
        loss: what the column's runs are trained with.
        ours: whether the paper does not have it.
        prefix: read the metric under this prefix ("offset/" is the same runs after the marginal offset).
        changes: what else of a run the column changes, by dotted name, such as {"recipe.batch_size": 200}.
    """

    name: str
    title: str
    loss: LossSpec
    ours: bool = False
    prefix: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


SIX_LOSSES = tuple(
    Column(name=name, title=title, loss=LossSpec(name=name))
    for name, title in (
        ("gence", "GenCE"),
        ("ce", "CE"),
        ("generalized_ce", "Generalised CE"),
        ("focal", "Focal"),
        ("mae", "MAE"),
        ("brier", "Brier"),
    )
)
"""The losses of the paper's tables, in their order; generalised CE is what the paper calls GCE."""

ANCHORED = Column(name="anchored", title="GenCE, anchor 0.1", loss=LossSpec.parse("gence(anchor=0.1)"), ours=True)
OFFSET = Column(name="offset", title="GenCE, offset", loss=LossSpec(name="gence"), ours=True, prefix="offset/")
"""The very same GenCE runs after the marginal offset that is fitted on their training logits: no run of its own."""

COLUMNS = (*SIX_LOSSES, ANCHORED, OFFSET)
"""The columns of most exhibits: the paper's six and ours."""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A row of an exhibit: its cells are runs.

    Attributes:
        name: what `--rows` selects.
        labels: the leading cells of the row.
        base: the run of the row, whose loss and seed the columns and seeds replace.
        metric: the name of the number in the records.
        printed: printed values by column name; empty for a figure.
        bold: the column whose value is printed in bold.
    """

    name: str
    labels: tuple[str, ...]
    base: RunSpec
    metric: str = "accuracy"
    printed: Mapping[str, Printed] = field(default_factory=dict)
    bold: str = "gence"

    def specs(self, column: Column, seeds: int = SEEDS) -> list[RunSpec]:
        """Return the runs of one cell, one per seed from 0."""
        return [self.base.replace(**column.changes, loss=column.loss, seed=seed) for seed in range(seeds)]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """The rows and columns of a table or figure.

    Attributes:
        name: what its table is called.
        title: what it is.
        where: where it stands in the paper.
        unit: what the numbers are.
        label_names: titles of the rows' leading cells.
        rows: the lines.
        columns: the losses, the paper's first.
        higher_is_better: whether the best of a row is the largest; None where no value is better.
        scale: what a recorded number is multiplied with to be in the unit.
        number: reads the number of a record; by default it is the row's metric.
        assumptions: what the paper does not say and was decided here, one sentence each.
        seeds: how many seeds a cell should have by default.
    """

    name: str
    title: str
    where: str = "not in the paper"
    unit: str = "accuracy, %"
    label_names: tuple[str, ...]
    rows: tuple[RunRow, ...]
    columns: tuple[Column, ...] = COLUMNS
    higher_is_better: bool | None = True
    scale: float = 100.0
    number: Callable[[Record], float | None] | None = None
    assumptions: tuple[str, ...] = ()
    seeds: int = SEEDS

    def has_row(self, pattern: str) -> bool:
        """Return whether a pattern (`cifar100-*-vgg19`) matches the name of a row."""
        return any(fnmatch.fnmatchcase(row.name, pattern) for row in self.rows)

    def selected(self, patterns: Sequence[str] = ()) -> tuple[RunRow, ...]:
        """Return the rows whose name matches one of the patterns (`cifar100-*-vgg19`); all without a pattern."""
        for pattern in patterns:
            if not self.has_row(pattern):
                names = ", ".join(dict.fromkeys(row.name for row in self.rows))
                raise ValueError(f"rows: {pattern} matches no row of {self.name}; its rows are {names}")
        return tuple(
            row for row in self.rows if not patterns or any(fnmatch.fnmatchcase(row.name, p) for p in patterns)
        )

    def specs(self, *, rows: Sequence[str] = (), losses: Sequence[str] = (), seeds: int | None = None) -> list[RunSpec]:
        """Return the runs, each once: row by row, within a row seed by seed, so that a part is a fair comparison.

        Args:
            rows: patterns of row names; all rows by default.
            losses: column names; all columns by default.
            seeds: how many seeds, from 0; the exhibit's own number by default.
        """
        seeds = self.seeds if seeds is None else seeds
        known = [column.name for column in self.columns]
        for name in losses:
            if name not in known:
                raise ValueError(f"losses: {name!r} is not a column of {self.name}; its columns are {', '.join(known)}")
        columns = [column for column in self.columns if not losses or column.name in losses]
        runs = (
            run
            for row in self.selected(rows)
            for run in sorted((run for column in columns for run in row.specs(column, seeds)), key=lambda run: run.seed)
        )
        return list({run.key: run for run in runs}.values())


def cell(
    data: str,
    model: str,
    *,
    n: int | None = None,
    rho: float | None = None,
    recipe: Recipe | None = None,
) -> RunSpec:
    """Return the run of a cell; one cell is one spec in every exhibit that shows it, so it trains once.

    CIFAR-10 runs are always judged on both OOD sets too, whichever exhibit asks for them; all others never.
    """
    return RunSpec(
        data=data,
        subset=Subset(n=n, rho=rho),
        model=model,
        loss=LossSpec(name="ce"),
        recipe=RECIPES["paper"] if recipe is None else recipe,
        seed=0,
        ood=tuple(OOD_TITLES) if data == "cifar10" else (),
    )


def printed(columns: Iterable[Column], text: str) -> dict[str, Printed]:
    """Read a printed line, `mean std` for each of the paper's columns in order, separated by bars.

    >>> printed(SIX_LOSSES[:2], "85.20 0.35 | 84.05 0.53")["ce"]
    Printed(mean=84.05, std=0.53, n=5)
    """
    names = [column.name for column in columns if not column.ours]
    pairs = [part.split() for part in text.split("|")]
    if len(pairs) != len(names) or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"text: {text!r} has not {len(names)} values of mean and standard deviation")
    return {name: Printed(float(mean), float(std)) for name, (mean, std) in zip(names, pairs, strict=True)}
