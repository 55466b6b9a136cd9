"""The remedies for a drifting class marginal, compared on real data (N = 2000); not in the paper.

Plain GenCE leaves the predicted marginal almost free. What holds it, or puts it back: an anchor of some strength to the
batch's labels or to the training set's, an anchor that rises during training, offsets fitted after training, a last
layer without a bias, larger batches. Cross-entropy stands beside them as the reference.

This file is the study as a whole, and so longer than most: its grid, its tables, the headline of the front page, its
figure and its findings.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gence.lab.report import PAPER, Cell, Row, Table, marks_for
from gence.lab.spec import RECIPES, LossSpec, Recipe
from gence.lab.store import Store
from gence.metrics import summarize
from gence.paper.exhibit import ANCHORED, DATA_TITLES, MODEL_TITLES, OFFSET, Column, Exhibit, RunRow, cell
from gence.paper.exhibit_registry import Asked, Entry, View, assumed
from gence.paper.exhibit_table import ABSENT, Drawing, best_column, measured_cell, panels_drawing, text_cell
from gence.paper.records import Measured, MeasuredRow, Reader, measure
from gence.paper.studies.evidence import HOW_JUDGED, Evidence, against, mean_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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

START = anchor_column(0.1, "batch")
"""What the documentation tells a reader to begin with."""

# Name, unit, whether more is better, scale
_METRICS = {
    "accuracy": ("remedies", "accuracy, %", True, 100.0),
    "ece": ("remedies_ece", "ECE, % (15 bins)", False, 100.0),
    "marginal_kl": ("remedies_drift", "drift KL(prior ‖ predicted marginal) on the training images, nats", None, 1.0),
}
_DIGITS = {"accuracy": 2, "ece": 2, "marginal_kl": 3}


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
    called, unit, higher_is_better, scale = _METRICS[metric]
    under = {name: RECIPES[name] for name in UNDER} if recipe is None else {_name(recipe): recipe}
    return Exhibit(
        name=called,
        title=f"Remedies for a drifting marginal, N = {N}",
        unit=unit,
        label_names=("Data", "Network", "Recipe"),
        # The drift of what the offset has repaired is 0 by the way it is fitted: no measurement.
        columns=tuple(column for column in COLUMNS if metric != "marginal_kl" or not column.prefix),
        rows=tuple(
            RunRow(
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


@dataclass(frozen=True)
class RemediesRecords:
    """The comparison as far as it is recorded, rows in the same order in each.

    Attributes:
        exhibit: its rows and columns.
        accuracy: the cells in per cent.
        ece: calibration errors in per cent.
        drift: KL(prior || predicted marginal) in nats; without the offset's column.
    """

    exhibit: Exhibit
    accuracy: list[MeasuredRow]
    ece: list[MeasuredRow]
    drift: list[MeasuredRow]

    def complete_rows(self) -> list[MeasuredRow]:
        """Return the rows, in accuracy, of which every run is recorded."""
        return [one for one in self.accuracy if all(found.recorded == found.wanted for found in one.cells.values())]


def read_remedies(asked: Asked) -> RemediesRecords:
    """Read all that is recorded of the comparison."""
    reader = Reader(asked.store)
    accuracy, ece, drift = (
        measure(remedies(asked.recipe, metric), reader, rows=asked.rows, seeds=asked.seeds) for metric in _METRICS
    )
    return RemediesRecords(remedies(asked.recipe), with_all_offsets(accuracy), with_all_offsets(ece), drift)


def with_all_offsets(measured: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows with plain GenCE's own number where no offset could be fitted: that is what its user has.

    Predictions too sharp for any offset are those that drifted furthest; leaving them out would flatter the offset.
    """
    return [
        dataclasses.replace(one, cells={**one.cells, OFFSET.name: _or_else(one.cells[OFFSET.name], one.cells[PLAIN])})
        for one in measured
    ]


def _or_else(found: Measured, other: Measured) -> Measured:
    numbers = {**other.by_seed, **found.by_seed}
    return dataclasses.replace(found, summary=summarize(numbers) if numbers else None, by_seed=numbers)


def remedies_view(asked: Asked, metric: str) -> View:
    """Return a table of the comparison; that of accuracy has what the statistics say, too, and the assumptions."""
    found = read_remedies(asked)
    measured = {"accuracy": found.accuracy, "ece": found.ece, "marginal_kl": found.drift}[metric]
    table = _table(remedies(asked.recipe, metric), metric, measured, asked.seeds)
    if metric != "accuracy":
        return table, []
    return _with_evidence(table, found) if table.rows else table, assumed(found.exhibit)


def _table(exhibit: Exhibit, metric: str, measured: Sequence[MeasuredRow], seeds: int | None) -> Table:
    seeds = exhibit.seeds if seeds is None else seeds
    found = [cell for one in measured for cell in one.cells.values()]
    # Settings as columns: seventeen columns of losses would fit no page. One without any record is named, not shown.
    begun = [one for one in measured if any(cell.recorded for cell in one.cells.values())]
    absent = "; ".join(", ".join(one.row.labels) for one in measured if one not in begun)
    best = [best_column(exhibit, one) for one in begun]
    lines = []
    for column in exhibit.columns:
        cells = (
            measured_cell(one.cells[column.name], column.name == winner, _DIGITS[metric])
            for one, winner in zip(begun, best, strict=True)
        )
        lines.append(Row(cells=(text_cell(column.title), *cells)))
    marked = " The best of a setting is marked once all of it is complete." if exhibit.higher_is_better else ""
    return Table(
        name=exhibit.name.replace("_", "-"),
        caption=f"{exhibit.title} ({exhibit.where}): {exhibit.unit}, mean ± sample standard deviation over {seeds} "
        f"seeds. {sum(cell.recorded == cell.wanted for cell in found)} of {len(found)} cells are recorded in full."
        + marked
        + (f" No record yet: {absent}." if absent else ""),
        columns=("Remedy", *(", ".join(one.row.labels) for one in begun)),
        rows=tuple(lines) if begun else (),
    )


def _with_evidence(table: Table, recorded: RemediesRecords) -> Table:
    """Return the table with what the sentences rest on before the settings: differences to plain GenCE, mean ranks."""
    complete = recorded.complete_rows()
    compared = against(recorded.accuracy, PLAIN, [column.name for column in recorded.exhibit.columns])
    ranks = mean_ranks(complete)
    absent = Cell(text=ABSENT, value="")
    lines = []
    for column, row in zip(recorded.exhibit.columns, table.rows, strict=True):
        minus, p, rank = absent, absent, absent
        if (found := compared.get(column.name)) is not None:
            pairs = f"{found.up} of {len(found.differences)} up"
            minus = Cell(text=f"{found.mean:+.2f} ({pairs}, {_settings(found.settings)})", value=found.mean)
            p = Cell(text=f"{found.p:.3f}" if found.p >= 0.001 else "< 0.001", value=found.p)
        if column.name in ranks:
            rank = Cell(text=f"{ranks[column.name]:.1f}", value=ranks[column.name])
        lines.append(Row(cells=(row.cells[0], minus, p, rank, *row.cells[1:])))
    return Table(
        name=table.name,
        caption=f"{table.caption} Minus GenCE: mean difference over the pairs of runs that share a setting and a seed, "
        "and in how many of them the line is ahead; lines with other settings are not to be compared by it. p: "
        "signed-rank test over these pairs, after Holm's correction over all lines. Mean rank: over the "
        f"{len(complete)} settings that have all their runs, 1 is the most accurate.",
        columns=(table.columns[0], "minus GenCE", "p", "mean rank", *table.columns[1:]),
        rows=tuple(lines),
    )


def _settings(number: int) -> str:
    return f"{number} setting" if number == 1 else f"{number} settings"


def headline(store: Store) -> str:
    """Return the generated block: what the documented start and plain GenCE make against cross-entropy."""
    recorded = read_remedies(Asked(store))
    lines = {START: "GenCE with an anchor of 0.1", PLAIN: "plain GenCE"}
    overall = against(recorded.accuracy, CE, lines)
    under = {
        recipe: against([one for one in recorded.accuracy if one.row.labels[-1] == recipe], CE, lines)
        for recipe in UNDER
    }
    rows = [
        Row(
            cells=(
                text_cell(title),
                Cell(text=f"{found.mean:+.1f}", value=found.mean),
                Cell(text=f"{found.up} of {len(found.differences)}", value=found.up),
                *(_difference(by_recipe.get(name)) for by_recipe in under.values()),
            )
        )
        for name, title in lines.items()
        if (found := overall.get(name)) is not None
    ]
    pairs = max((len(found.differences) for found in overall.values()), default=0)
    table = Table(
        name="headline",
        caption=f"Accuracy difference from cross-entropy in percentage points, over {pairs} pairs of runs that share "
        f"a seed ({len(recorded.accuracy)} settings of data, network and recipe with {N} labels, {SEEDS} seeds). "
        "Every loss has the same recipe; nothing is tuned.",
        columns=("", "mean difference", "better in", *(f"recipe {recipe}" for recipe in UNDER)),
        rows=tuple(rows),
    )
    return table.markdown()


def _difference(found: Evidence | None) -> Cell:
    return Cell(text=ABSENT, value="") if found is None else Cell(text=f"{found.mean:+.1f}", value=found.mean)


_CURVES = {prior: f"anchor ({title})" for prior, title in PRIORS.items()}
_LEVELS = {PLAIN: "plain GenCE", "offset": "plain GenCE, offset after training", CE: "CE"}
_DRAWN = (*(anchor_column(strength, prior) for prior in _CURVES for strength in STRENGTHS), *_LEVELS)
_ANCHORED = "gence(anchor=0.1)"
_LEVEL_PLACES = (STRENGTHS[0] / 2.6, STRENGTHS[0] / 2.1, STRENGTHS[0] / 1.7)  # left of the weakest anchor
_TRAINING_PRIOR = ("#a03d86", "^", "--")  # colour, marker and line; the other curve has the anchored loss's own


def anchor_drawings(asked: Asked) -> list[Drawing]:
    """Return accuracy against the anchor, one panel per setting; plain GenCE, its offset and CE are levels."""
    measured = with_all_offsets(measure(remedies(asked.recipe), asked.store))
    return panels_drawing(
        [one for one in measured if any(one.cells[name].summary is not None for name in _DRAWN)],
        _draw,
        (*_CURVES.values(), *_LEVELS.values()),
        name="remedies-anchor",
        title="Accuracy against the strength of the anchor",
        reading="Lines and large marks are means, small dots are seeds (at the left those of the three levels), and a "
        "hollow mark is a mean that lacks seeds.",
        description="The means are in the table of this section; the seeds, a dot each, are in the records.",
    )


def _draw(axes: Axes, one: MeasuredRow) -> None:
    marks = marks_for((PLAIN, CE, _ANCHORED))
    styles = {"batch": (marks[_ANCHORED].light, marks[_ANCHORED].marker, "-"), "train": _TRAINING_PRIOR}
    for prior, label in _CURVES.items():
        cells = [(strength, one.cells[anchor_column(strength, prior)]) for strength in STRENGTHS]
        points = [(strength, found, found.summary.mean) for strength, found in cells if found.summary is not None]
        if points:
            colour, marker, dash = styles[prior]
            # A little apart, so that the marks of the two priors do not cover each other.
            places = [strength * (1.06 if prior == "train" else 1 / 1.06) for strength, _, _ in points]
            axes.plot(
                places, [mean for *_, mean in points], label=label, color=colour, ls=dash, lw=1.2, marker=marker, ms=4
            )
            for place, (_, found, mean) in zip(places, points, strict=True):
                _dots(axes, place, found, colour)
                if found.recorded < found.wanted:
                    axes.plot([place], [mean], color=colour, marker=marker, ms=4, mfc=PAPER)
    levels = zip(_LEVELS.items(), (PLAIN, PLAIN, CE), ("-", ":", "-."), _LEVEL_PLACES, strict=True)
    for (name, label), loss, dash, place in levels:
        found = one.cells[name]
        if found.summary is not None:
            axes.axhline(found.summary.mean, color=marks[loss].light, ls=dash, lw=1.2, label=label)
            _dots(axes, place, found, marks[loss].light)
    axes.set_xscale("log")
    axes.set_xlim(_LEVEL_PLACES[0] / 1.4, STRENGTHS[-1] * 1.5)
    axes.set_xticks(STRENGTHS, [f"{strength:g}" for strength in STRENGTHS])
    axes.minorticks_off()
    axes.set(xlabel="anchor", ylabel="accuracy, %", title=", ".join(one.row.labels))
    axes.grid(axis="y")


def _dots(axes: Axes, place: float, found: Measured, colour: str) -> None:
    seeds = list(found.by_seed.values())
    axes.scatter([place] * len(seeds), seeds, color=colour, s=9, alpha=0.6, linewidths=0, zorder=3)


ENTRIES = (
    Entry(
        name="remedies",
        place=13,
        heading="Remedies for a drifting marginal: accuracy",
        exhibit=remedies,
        view=functools.partial(remedies_view, metric="accuracy"),
        drawings=anchor_drawings,
        blocks={"headline": headline},
        findings=(
            "Collapsed, to less than half the accuracy that the offset makes of the same network: 4 of 24 networks "
            "with plain GenCE, 16 of 48 in larger batches, 1 of 24 without a bias, none of 240 with an anchor and none "
            "of 24 with cross-entropy.",
            "Significantly more accurate than plain GenCE, by 6.4 to 15.3 points, are every anchor, the offset and a "
            "last layer without a bias; significantly less accurate, by 13.0 and 18.0 points, are larger batches. "
            "Cross-entropy is 11.6 points ahead of plain GenCE.",
            "An anchor of 0.03 to the training prior has the best mean rank, 4.6 of 17 (plain GenCE 13.4, "
            "cross-entropy 9.6). An anchor of 0.1 to the batch's labels is not significantly different from it, and is "
            "what we recommend to begin with: 15.3 points ahead of plain GenCE and 3.7 ahead of cross-entropy, which "
            "is significant. Its calibration error is 17.7 % on average (plain GenCE 30.3 %, cross-entropy 15.5 %), "
            "its drift 0.002 nats (6.810 and 0.005). The argument's default stays 0, the paper's loss.",
            HOW_JUDGED,
        ),
    ),
    *(
        Entry(
            name=name, place=place, heading=heading, of="remedies", view=functools.partial(remedies_view, metric=metric)
        )
        for name, place, heading, metric in (
            ("remedies_ece", 14, "Remedies: calibration", "ece"),
            ("remedies_drift", 15, "Remedies: the drift itself", "marginal_kl"),
        )
    ),
)
