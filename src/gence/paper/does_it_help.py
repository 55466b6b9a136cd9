"""Whether it helps, from the records: the front page's table and figure, and the decision guide of the docs.

A cell is one choice of data, number of labels, network and recipe; a pair is two runs of a cell that share a seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gence.lab.report import figure_style, markdown_table, marks_for
from gence.lab.store import Store
from gence.paper.exhibit import DATA_TITLES, MODEL_TITLES
from gence.paper.records import Measured
from gence.paper.studies import TUNED_LOSSES, help_rows, measured_tuned

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

CE, PLAIN, ANCHORED = "ce", "gence", "gence(anchor=0.1)"
LEAST_SEEDS = 3
HARSH, MILD = "paper", "modern"
"""The two recipes that all cells of the figure have: the paper's, and one with a longer warm-up and a lower rate."""

_CELL = ["recipe", "subset.n", "data", "model"]


@dataclass(frozen=True)
class HelpCell:
    """The paired differences to cross-entropy in one cell.

    Attributes:
        data: data set, as records name it.
        n: number of labels.
        model: network, as records name it.
        recipe: `HARSH` or `MILD`.
        accuracy: of plain and anchored GenCE, the differences in percentage points, one per seed.
        ece: the same of the calibration error.
    """

    data: str
    n: int
    model: str
    recipe: str
    accuracy: dict[str, tuple[float, ...]]
    ece: dict[str, tuple[float, ...]]

    @property
    def title(self) -> str:
        """As figures and tables name it."""
        network = MODEL_TITLES.get(self.model, self.model)
        return f"{DATA_TITLES.get(self.data, self.data)}, {self.n} labels, {network}, {self.recipe} recipe"


def help_cells(store: Store) -> list[HelpCell]:
    """Return the cells in which cross-entropy, plain and anchored GenCE have at least three common seeds."""
    frame = store.frame()
    if frame.empty:
        return []
    balanced = frame["subset.rho"].isna() if "subset.rho" in frame else True
    frame = frame[(frame["evaluate_on"] == "test") & frame["recipe"].isin([HARSH, MILD]) & balanced]
    found = []
    for (recipe, n, data, model), runs in frame.groupby(_CELL):
        accuracy, ece = (_differences(runs, metric) for metric in ("accuracy", "ece"))
        if all(len(accuracy[loss]) >= LEAST_SEEDS for loss in (PLAIN, ANCHORED)):
            found.append(HelpCell(str(data), int(str(n).removesuffix(".0")), str(model), str(recipe), accuracy, ece))
    return sorted(found, key=lambda cell: ((HARSH, MILD).index(cell.recipe), cell.n, cell.model, cell.data))


def _differences(runs: pd.DataFrame, metric: str) -> dict[str, tuple[float, ...]]:
    by_loss = {loss: runs[runs["loss"] == loss].set_index("seed")[metric] for loss in (CE, PLAIN, ANCHORED)}
    return {
        loss: tuple((100 * (by_loss[loss] - by_loss[CE]).dropna().sort_index()).tolist()) for loss in (PLAIN, ANCHORED)
    }


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One row of the evidence: a situation, what was measured there, and what to do.

    Attributes:
        situation: in a few words, for the front page.
        measured: what the records say.
        use: what to do.
        labels: how many labels, for the decision guide; empty where the row is about something else.
        training: the network and where its weights come from.
        classes: balanced or not.
        recipe: how it was trained.
        evidence: the page that has every cell, from the folder of the documentation.
    """

    situation: str
    measured: str
    use: str
    labels: str = ""
    training: str = ""
    classes: str = "balanced"
    recipe: str = ""
    evidence: str = ""


def advice(store: Store) -> list[Advice]:
    """Return every row that the records support, the decision guide's first."""
    cells = help_cells(store)
    return [*_from_scratch(cells), *_tuned(store), *_frozen(store), *_in_general(cells)]


def does_it_help_table(store: Store) -> str:
    """Return the front page's Markdown table *Does it help?*: situation, what was measured, what to do."""
    by_situation: dict[str, list[Advice]] = {}
    for one in advice(store):
        by_situation.setdefault(one.situation, []).append(one)
    lines = [[situation, _joined(rows, "measured"), _joined(rows, "use")] for situation, rows in by_situation.items()]
    if not lines:
        return "Nothing is measured yet.\n"
    return f"{markdown_table(['Your situation', 'What we measured', 'What to do'], lines, 'lll')}\n\n{_NOTE}\n"


def decision_guide(store: Store) -> str:
    """Return the Markdown tables of the decision guide: which loss for which labels, network, classes and recipe."""
    found = advice(store)
    rows = [one for one in found if one.labels]
    known = {(one.training, one.classes) for one in rows}
    missing = [one for one in _NOT_YET if (one.training, one.classes) not in known]
    lines = [
        [f"{one.labels}, {one.classes}", one.training, one.recipe, one.use, _linked(one)] for one in (*rows, *missing)
    ]
    parts = [markdown_table(["Labels, classes", "Network", "Recipe", "Use", "Measured"], lines, "lllll"), _NOTE]
    always = [[one.situation, one.use, _linked(one)] for one in found if not one.labels]
    if always:
        parts += ["In all of these situations:", markdown_table(["About", "What to do", "Measured"], always, "lll")]
    return "\n\n".join(parts) + "\n"


_NOTE = (
    "Differences are from cross-entropy, in percentage points, over pairs of runs that share data, network, recipe and "
    "seed; recipes are equal for all losses, and nothing is tuned but where the row says so."
)
_SCRATCH, _FROZEN, _TAIL = "from scratch", "head on a frozen pretrained encoder", "long tail"
_EVERY_CELL = "#every-cell"
_NOT_YET = tuple(
    Advice(
        situation="", measured="not measured yet", use="compare on your data", labels="any number", training=training,
        classes=classes, recipe="any",
    )
    for training, classes in ((_FROZEN, "balanced"), (_FROZEN, _TAIL), (_SCRATCH, _TAIL))
)  # fmt: skip


def _joined(rows: Sequence[Advice], field: str) -> str:
    """A cell of the front page: rows of one situation differ in the network."""
    if len(rows) == 1:
        return str(getattr(rows[0], field))
    end = "." if field == "use" else ""
    return "; ".join(f"{one.training.partition(',')[0]}: {getattr(one, field).rstrip('.')}" for one in rows) + end


def _linked(one: Advice) -> str:
    measured = one.measured.replace(" points of accuracy, better", " points, better")
    return f"[{measured}]({one.evidence})" if one.evidence else measured


def _from_scratch(cells: Sequence[HelpCell]) -> list[Advice]:
    few = [cell for cell in cells if cell.recipe == HARSH and cell.n <= 2000]
    more = [cell for cell in cells if cell.recipe == HARSH and cell.n > 2000]
    found = []
    if few:
        found.append(
            Advice(
                situation="From scratch, 2000 labels, a harsh recipe (high rate, hardly any warm-up: the paper's)",
                measured=_gains(few, ANCHORED),
                use=f"Use `GenCELoss(anchor=0.1)`; a milder recipe (`{MILD}`) gains even more.",
                labels="2000 labels",
                training=_SCRATCH,
                recipe=f"harsh: high rate, hardly any warm-up (`{HARSH}`)",
                evidence=_EVERY_CELL,
            )
        )
    if more:
        labels = " or ".join(map(str, sorted({cell.n for cell in more})))
        found.append(
            Advice(
                situation=f"The same with {labels} labels",
                measured=_gains(more, ANCHORED),
                use="Use the anchor where classes are many; expect little where each has hundreds of labels.",
                labels=f"{labels} labels",
                training=_SCRATCH,
                recipe=f"harsh (`{HARSH}`)",
                evidence=_EVERY_CELL,
            )
        )
    mild = [cell for cell in cells if cell.recipe == MILD]
    for model in sorted({cell.model for cell in mild}, reverse=True):
        here = [cell for cell in mild if cell.model == model]
        network = MODEL_TITLES.get(model, model)
        found.append(
            Advice(
                situation="From scratch, 2000 labels, a mild recipe",
                measured=_gains(here, ANCHORED),
                use="Try `GenCELoss(anchor=0.1)` beside cross-entropy."
                if _mean(cell.accuracy[ANCHORED] for cell in here) > 1
                else "Keep cross-entropy.",
                labels="2000 labels",
                training=f"{network}, {_SCRATCH}",
                recipe=f"mild: lower rate, warm-up, mixed images (`{MILD}`)",
                evidence=_EVERY_CELL,
            )
        )
    return found


def _tuned(store: Store) -> list[Advice]:
    """Every loss tuned alike: the best of all losses, and GenCE with a tuned anchor, against cross-entropy."""
    found: list[str] = []
    exhibit, measured = measured_tuned(store)
    titles = {column.name: column.title for column in exhibit.columns}
    for one in measured:
        ce, anchored = one.cells.get(CE), one.cells.get(TUNED_LOSSES[-1])
        if ce is None or ce.summary is None or anchored is None or anchored.summary is None:
            continue
        best = max((name for name in one.cells if one.cells[name].summary), key=lambda name: _mean_of(one.cells[name]))
        text = f"{one.row.labels[0]}: anchored GenCE {anchored.summary.mean - ce.summary.mean:+.1f}"
        if best not in (CE, TUNED_LOSSES[-1]):
            text += f", {titles[best]} {_mean_of(one.cells[best]) - ce.summary.mean:+.1f}"
        found.append(text)
    if not found:
        return []
    return [
        Advice(
            situation="From scratch, 2000 labels, VGG-19, every loss tuned alike",
            measured="; ".join(sorted(found)),
            use="Tune every loss alike before you believe a gain: `gence compare --tune 16`.",
            labels="2000 labels",
            training=f"VGG-19, {_SCRATCH}",
            recipe="tuned for each loss",
            evidence="paper.md#every-loss-tuned",
        )
    ]


def _frozen(store: Store) -> list[Advice]:
    return [
        Advice(
            situation=situation,
            measured=measured,
            use=use,
            labels="any number",
            training=_FROZEN,
            classes=_TAIL if "long tail" in situation else "balanced",
            recipe="tuned for each loss",
            evidence="transfer.md" + ("#what-to-do-under-imbalance" if "long tail" in situation else ""),
        )
        for situation, measured, use in help_rows(store)
    ]


def _in_general(cells: Sequence[HelpCell]) -> list[Advice]:
    if not cells:
        return []
    means = [statistics.fmean(cell.ece[ANCHORED]) for cell in cells]
    lower = sum(mean < 0 for mean in means)
    return [
        Advice(
            situation="Plain GenCE, without an anchor",
            measured=_gains(cells, PLAIN),
            use="Always set the anchor: without it some networks put every image into one class.",
            evidence="theory.md#when-the-class-marginal-drifts",
        ),
        Advice(
            situation="You need probabilities",
            measured=f"Calibration error of anchored GenCE lower in {lower} of {len(means)} cells "
            f"(changes from {min(means):+.1f} to {max(means):+.1f} points)",
            use="Do not choose a loss for its calibration; calibrate the model afterwards: `--calibrated`.",
            evidence="paper.md#calibration",
        ),
    ]


def _gains(cells: Sequence[HelpCell], loss: str) -> str:
    pairs = [one for cell in cells for one in cell.accuracy[loss]]
    up = sum(one > 0 for one in pairs)
    called = "Plain" if loss == PLAIN else "Anchored"
    return f"{called} GenCE {statistics.fmean(pairs):+.1f} points of accuracy, better in {up} of {len(pairs)} pairs"


def _mean(groups: Iterable[Sequence[float]]) -> float:
    return statistics.fmean(one for group in groups for one in group)


def _mean_of(cell: Measured) -> float:
    return cell.summary.mean if cell.summary else float("-inf")


def differences_figure(store: Store) -> tuple[Figure, str]:
    """Draw the paired accuracy differences to cross-entropy, a line per cell, and put their means into words."""
    import matplotlib
    from matplotlib.figure import Figure

    cells = help_cells(store)
    marks = marks_for((CE, PLAIN, ANCHORED))
    with matplotlib.rc_context(figure_style()):
        figure = Figure(figsize=(8.0, 0.42 * len(cells) + 1.3), layout="constrained")
        axes = figure.subplots()
        axes.axvline(0, color=marks[CE].light, lw=1.2, label="cross-entropy")
        for loss, title, shift in ((PLAIN, "plain GenCE", 0.16), (ANCHORED, "GenCE with an anchor of 0.1", -0.16)):
            mark = marks[loss]
            places = [len(cells) - 1 - row + shift for row in range(len(cells))]
            for place, cell in zip(places, cells, strict=True):
                seeds = cell.accuracy[loss]
                axes.scatter(seeds, [place] * len(seeds), color=mark.light, s=10, alpha=0.45, linewidths=0)
            means = [statistics.fmean(cell.accuracy[loss]) for cell in cells]
            axes.plot(means, places, color=mark.light, marker=mark.marker, ms=6, ls="", label=title)
        axes.set_yticks(range(len(cells)), [cell.title for cell in reversed(cells)])
        axes.set_xlabel("accuracy minus cross-entropy's, percentage points; dots are seeds")
        axes.grid(axis="x")
        axes.legend(loc="lower left", frameon=True)
    return figure, differences_in_words(cells)


def differences_in_words(cells: Sequence[HelpCell]) -> str:
    """Return the means that the figure shows, one sentence per cell."""
    return " ".join(
        f"{cell.title}: plain {statistics.fmean(cell.accuracy[PLAIN]):+.1f}, "
        f"anchored {statistics.fmean(cell.accuracy[ANCHORED]):+.1f}."
        for cell in cells
    )
