"""An exhibit as a table: ours, the paper's and the difference below each other, in every form a table has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gence.lab.report import Cell, Row, Table
from gence.lab.spec import PER_RUN_FIELDS, RunSpec, canonical_json
from gence.lab.store import Store
from gence.paper.exhibit import SEEDS, Exhibit
from gence.paper.exhibits.table1 import table1
from gence.paper.measure import Measured, MeasuredRow
from gence.paper.studies.open_choices import CANDIDATES, CELLS, GO_ON, chosen, judge

# (data, balanced size, network), most informative first; what is not listed comes after, in its own order.
_FIRST = (
    ("cifar100", 2000, "vgg19"),  # the paper's largest gap
    ("cifar10", 2000, "vgg19"),
    ("cifar10", 2000, "resnet50"),
    ("cifar100", 2000, "resnet50"),
    ("cifar100", 5000, "vgg19"),
    ("cifar10", 5000, "vgg19"),
)
_LAST = (
    ("cifar10", 5000, "resnet50"),
    ("cifar100", 5000, "resnet50"),
    ("mini-imagenet", 2000, "vgg19"),
    ("mini-imagenet", 2000, "resnet50"),
    ("mini-imagenet", 5000, "vgg19"),
    ("mini-imagenet", 5000, "resnet50"),
)
_PAPER_BATCH = 100
# A study of the last layer's bias compares it within a cell.
_WITHIN_A_CELL = PER_RUN_FIELDS | {"head_bias"}


def by_priority(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """Return the runs, each once, in the order in which to do them.

    Table 1 at N = 2000 and VGG-19 at N = 5000 come first, then other batch sizes, ResNet-50 at N = 5000,
    Mini-ImageNet, and the long tails. Within a cell the given order stays.
    """
    runs = list({spec.key: spec for spec in specs}.values())
    return sorted(runs, key=_rank)


def cells(specs: Sequence[RunSpec]) -> dict[str, list[RunSpec]]:
    """Return the runs by the cell they belong to, in order: they differ in loss, seed and what tuning changes."""
    found: dict[str, list[RunSpec]] = {}
    for spec in specs:
        recipe = {name: value for name, value in spec.recipe.to_dict().items() if name not in _WITHIN_A_CELL}
        found.setdefault(spec.cohort_key + canonical_json(recipe), []).append(spec)
    return found


def cell_name(spec: RunSpec) -> str:
    """Return a short name for a run's cell.

    >>> from gence.paper.exhibit import cell
    >>> cell_name(cell("cifar10", "vgg19", n=2000))
    'cifar10-2000-vgg19'
    """
    size = f"rho{spec.subset.rho:g}" if spec.subset.rho is not None else str(spec.subset.n or "all")
    batch = "" if spec.recipe.batch_size == _PAPER_BATCH else f"-b{spec.recipe.batch_size}"
    return f"{spec.data}-{size}-{spec.model}{batch}"


def _rank(spec: RunSpec) -> int:
    place = (spec.data, spec.subset.n, spec.model)
    if spec.subset.rho is not None:
        return len(_FIRST) + len(_LAST) + 2
    if spec.recipe.batch_size != _PAPER_BATCH:
        return len(_FIRST) + (spec.model != "vgg19")
    if place in _FIRST:
        return _FIRST.index(place)
    return len(_FIRST) + 2 + (_LAST.index(place) if place in _LAST else len(_LAST) + 1)


_ABSENT = "–"


def exhibit_table(exhibit: Exhibit, measured: Sequence[MeasuredRow], seeds: int = SEEDS) -> Table:
    """Return some rows of an exhibit beside the paper, up to three lines each: ours, the paper's, the difference.

    An exhibit without printed values has a line a row, and no column that says whose it is.

    Args:
        exhibit: what to show.
        measured: its rows, as far as there are records.
        seeds: how many seeds a cell should have.
    """
    whose = ("",) if _has_print(exhibit) else ()
    return Table(
        name=exhibit.name.replace("_", "-"),
        caption=_caption(exhibit, measured, seeds),
        columns=(", ".join(exhibit.label_names), *whose, *(column.title for column in exhibit.columns)),
        rows=tuple(line for one in measured for line in _lines(exhibit, one)),
    )


def search_table(store: Store) -> Table:
    """Return the search for the recipe's open choices: cross-entropy's accuracy under each candidate, closest first."""
    printed = [table1().selected([name])[0].printed["ce"].mean for name in CELLS]
    head = ("the paper's cross-entropy", *(f"{mean:.2f}" for mean in printed), _ABSENT, _ABSENT)
    lines = [Row(cells=tuple(_text(text) for text in head))]
    found = chosen(store)
    for one in judge(store):
        best, lacking = found is not None and one.name == found.name, "out" if one.out else "missing"
        texts = [
            lacking if mean is None else f"{mean:.2f} (n = {n})" for mean, n in zip(one.means, one.counts, strict=True)
        ]
        lines.append(
            Row(
                cells=(
                    _text(one.name, best=best),
                    *map(_text, texts),
                    _distance_cell(one.first_distance, lacking),
                    _distance_cell(one.distance, lacking, best),
                )
            )
        )
    return Table(
        name="open-choices",
        caption="Accuracy of cross-entropy in %, mean over n seeds, under each candidate for what the paper's recipe "
        "leaves open. Distance: root mean square difference from the printed values, percentage points. "
        f"All {len(CANDIDATES)} candidates are tried at N = 2000; the {GO_ON} closest there go on to N = 5000, the "
        "others are out; of those that went on, the closest over all four cells is marked once each has them.",
        columns=("Candidate", *CELLS, "Distance, N = 2000", "Distance, all four"),
        rows=tuple(lines),
    )


def cost_table(exhibits: Sequence[Exhibit], store: Store, seeds: int = SEEDS) -> Table:
    """Return what each cell of the exhibits took: runs recorded of those wanted, device minutes, seconds a run."""
    present = store.keys()
    wanted = [spec for exhibit in exhibits for spec in exhibit.specs(seeds=seeds)]
    unique = list({spec.key: spec for spec in wanted}.values())
    lines, done_cells, minutes = [], 0, 0.0
    by_cell = cells(unique)
    for runs in by_cell.values():
        records = [store.read(spec.key) for spec in runs if spec.key in present]
        took = sum(record.result.wall_s for record in records)
        devices = sorted({str(record.environment.get("device")) for record in records})
        done_cells += len(records) == len(runs)
        minutes += took / 60
        lines.append(
            Row(
                cells=(
                    _text(cell_name(runs[0])),
                    Cell(text=f"{len(records)} of {len(runs)}", value=len(records)),
                    _number(took / 60 if records else None),
                    _number(took / len(records) if records else None),
                    _text(", ".join(devices) or _ABSENT),
                )
            )
        )
    return Table(
        name="costs",
        caption=f"{done_cells} of {len(by_cell)} cells are complete; {minutes:.1f} device minutes. All other runs of "
        f"the store (tuning, remedies, the search for the recipe) took {_minutes(store) - minutes:.1f}. A run's time "
        "is its share of the cohort it was trained in, evaluation included.",
        columns=("Cell", "Runs", "Minutes", "Seconds a run", "Device"),
        rows=tuple(lines),
    )


def _minutes(store: Store) -> float:
    return sum(record.result.wall_s for record in store.records()) / 60


def _number(value: float | None) -> Cell:
    return Cell(text="missing", value="") if value is None else Cell(text=f"{value:.1f}", value=value)


def _has_print(exhibit: Exhibit) -> bool:
    return any(row.printed for row in exhibit.rows)


def _lines(exhibit: Exhibit, one: MeasuredRow) -> list[Row]:
    label = ", ".join(one.row.labels)
    measured = [one.cells[column.name] for column in exhibit.columns]
    best = best_column(exhibit, one)
    ours = Row(
        cells=(
            _text(label),
            *((_text("ours"),) if _has_print(exhibit) else ()),
            *(
                measured_cell(found, column.name == best)
                for found, column in zip(measured, exhibit.columns, strict=True)
            ),
        )
    )
    if not one.row.printed:
        return [ours]
    below = Cell(text="", value=label)
    paper = Row(
        cells=(
            below,
            _text("paper"),
            *(
                _text(_ABSENT)
                if found.printed is None
                else Cell(
                    text=f"{found.printed.mean:.2f} ± {found.printed.std:.2f}",
                    value=found.printed.mean,
                    best=column.name == one.row.bold,
                )
                for found, column in zip(measured, exhibit.columns, strict=True)
            ),
        )
    )
    if all(found.difference is None for found in measured):
        return [ours, paper]
    return [ours, paper, Row(cells=(below, _text("difference"), *map(_difference_cell, measured)))]


def best_column(exhibit: Exhibit, one: MeasuredRow) -> str | None:
    """Return the best column of ours, once every column of the row is complete: a part would not be a fair contest.

    There is none where less is better: the smallest calibration error may be that of a network that learnt nothing.
    """
    means = {name: found.summary.mean for name, found in one.cells.items() if found.complete and found.summary}
    if not exhibit.higher_is_better or len(means) < len(one.cells):
        return None
    return max(means, key=lambda name: means[name])


def measured_cell(found: Measured, best: bool, digits: int = 2) -> Cell:
    """Return what was measured as a cell: mean, standard deviation, and how many runs of how many if some lack it."""
    if found.summary is None:
        note = "no number" if found.recorded else "missing"
        return Cell(text=f"{note} ({found.recorded} of {found.wanted})", value="")
    text = f"{found.summary.mean:.{digits}f}"
    if found.summary.n > 1:
        text += f" ± {found.summary.std:.{digits}f}"
    if not found.complete:
        # Nothing more will come where all runs are there: the others diverged, or are not confident, or the like.
        others = ", the others have none" if found.recorded == found.wanted else ""
        text += f" ({found.summary.n} of {found.wanted}{others})"
    return Cell(text=text, value=found.summary.mean, best=best)


def _difference_cell(found: Measured) -> Cell:
    if found.difference is None:
        return _text(_ABSENT)
    errors = found.standard_errors
    return Cell(
        text=f"{found.difference:+.2f}" + ("" if errors is None else f" ({errors:+.1f} SE)"), value=found.difference
    )


def _distance_cell(distance: float, lacking: str, best: bool = False) -> Cell:
    if math.isnan(distance):
        return Cell(text=lacking, value="")
    return Cell(text=f"{distance:.2f}", value=distance, best=best)


def _text(text: str, *, best: bool = False) -> Cell:
    return Cell(text=text, value=text, best=best)


def _caption(exhibit: Exhibit, measured: Sequence[MeasuredRow], seeds: int) -> str:
    found = [one for row in measured for one in row.cells.values()]
    complete = sum(one.complete for one in found)
    started = sum(one.recorded > 0 and not one.complete for one in found)
    begun = f", {started} more have some" if started else ""
    words = [
        f"{exhibit.title} ({exhibit.where}): {exhibit.unit}, mean ± sample standard deviation over {seeds} seeds.",
        f"{complete} of {len(found)} cells are complete{begun}.",
    ]
    if any(one.row.printed for one in measured):
        words.append("Difference: ours less the paper's, in brackets in standard errors from both standard deviations.")
    return " ".join(words)
