"""Tables as data, and the same rows as Markdown, LaTeX, a terminal table and CSV. The page draws them itself."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gence.lab.report.frame import Setting, TunedBefore, best_losses, cells, is_uneven, losses_in, ood_sets
from gence.lab.report.style import MAIN, SHOWN, Quantity, auroc_of, loss_title, reference_title
from gence.lab.report.verdict import MetricVerdict, Verdict
from gence.lab.store import spreadsheet_text

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell: what is read, what it is sorted by, and whether it is the best of its column."""

    text: str
    value: float | str
    best: bool = False

    def plain(self) -> str:
        """Return the text for a program: a number with an ASCII minus, a name that no spreadsheet computes.

        >>> Cell(text="−0.1", value=-0.1).plain()
        '-0.1'
        """
        return spreadsheet_text(self.text) if isinstance(self.value, str) else self.text.replace("−", "-")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row; `loss` names the loss it belongs to, where it belongs to one."""

    cells: tuple[Cell, ...]
    loss: str | None = None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: the one structure from which every form is written.

    Attributes:
        name: a name for files: small letters, digits and hyphens.
        caption: what it shows, with n and the kind of spread.
        columns: the heads; the first column names the row.
        rows: the body.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def markdown(self) -> str:
        """Return the table in Markdown; the best of a column is bold."""
        rows = [[_markdown_cell(cell) for cell in row.cells] for row in self.rows]
        table = markdown_table([_markdown_text(column) for column in self.columns], rows)
        return f"{table}\n\n{_markdown_text(self.caption)}\n"

    def latex(self) -> str:
        """Return the table in LaTeX (needs the package booktabs); the best of a column is bold."""
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex_text(self.caption)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
            r"\toprule",
            " & ".join(map(_latex_text, self.columns)) + r" \\",
            r"\midrule",
        ]
        for row in self.rows:
            texts = [_latex_text(cell.text) for cell in row.cells]
            marked = (rf"\textbf{{{t}}}" if c.best else t for t, c in zip(texts, row.cells, strict=True))
            lines.append(" & ".join(marked) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])

    def csv(self) -> str:
        """Return the table as CSV, with the texts as they are shown, but for the minus, which is one that parses."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([cell.plain() for cell in row.cells] for row in self.rows)
        return buffer.getvalue()

    def rich(self, *, bold: bool = True) -> RichTable:
        """Return the table for a terminal.

        Args:
            bold: whether the best is bold; where nothing can be, as in a pipe, a * marks it, and the caption says so.
        """
        from rich.table import Table as RichTable
        from rich.text import Text

        starred = not bold and any(cell.best for row in self.rows for cell in row.cells)
        caption = f"{self.caption} A * marks the best." if starred else self.caption
        shown = RichTable(caption=Text(caption), caption_justify="left")
        body = [[_starred(cell, i) if starred else cell.text for i, cell in enumerate(row.cells)] for row in self.rows]
        for i, column in enumerate(self.columns):
            # Titles may be broken, and names between words; a number may not.
            texts = [line[i] for line in body]
            whole = texts if i else [word for text in (column, *texts) for word in text.split()]
            shown.add_column(
                Text(column), justify="right" if i else "left", min_width=max(map(len, whole), default=None)
            )
        for row, line in zip(self.rows, body, strict=True):
            # Text, not markup: a name in square brackets must stay what it is.
            styles = ("bold" if bold and cell.best else "" for cell in row.cells)
            shown.add_row(*map(Text, line, styles))
        return shown


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Return a table in Markdown, without a line break at its end; every such table is written here.

    Args:
        columns: the heads, already Markdown, like the cells.
        rows: the cells, row by row.
        align: one letter per column, "l" or "r"; by default all but the first column are at the right.

    >>> print(markdown_table(["loss", "n"], [["CE", "5"]]))
    | loss | n |
    | --- | ---: |
    | CE | 5 |
    """
    sides = ["---:" if side == "r" else "---" for side in align or "l" + "r" * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(texts)} |" for texts in (columns, sides, *rows))


def loss_table(setting: Setting, quantities: Sequence[Quantity] | None = None) -> Table:
    """Return a row per loss, a column per metric: mean ± standard deviation over seeds."""
    frame = setting.frame
    if quantities is None:
        quantities = (*MAIN, *(auroc_of(name) for name in ood_sets(frame)), *SHOWN[len(MAIN) :])
    losses = losses_in(frame)
    seeds = frame["seed"].nunique()
    columns = {q: cells(frame, ["loss"], q.metric) for q in quantities}
    best = {q: _best(frame, q) for q in quantities}
    rows = []
    for loss in losses:
        runs = int((frame["loss"] == loss).sum())
        head = (
            _word(loss_title(loss)),
            Cell(text=f"{runs} of {seeds}" if runs < seeds else str(runs), value=runs),
        )
        body = tuple(_mean_cell(columns[q], loss, q, loss in best[q]) for q in quantities)
        rows.append(Row(cells=(*head, *body), loss=loss))
    return Table(
        name="losses",
        caption=f"{setting.title}. Mean ± sample standard deviation over {_seeds_of(frame)}; "
        f"{_marked(frame, quantities)}. Where not all runs have a number, it says how many do.",
        columns=("Loss", "Runs", *(q.heading for q in quantities)),
        rows=tuple(rows),
    )


def reference_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row per reference other than a loss: what scikit-learn makes of the same features and labels."""
    rows = []
    for name in dict.fromkeys(one["name"] for one in found):
        mine = [one for one in found if one["name"] == name]
        body = []
        for q in MAIN:
            values = [one["metrics"][q.metric] for one in mine if math.isfinite(one["metrics"].get(q.metric, math.nan))]
            mean = statistics.fmean(values) if values else math.nan
            text = q.text(mean) + (f" ± {q.text(statistics.stdev(values))}" if len(values) > 1 else "")
            body.append(Cell(text=text, value=_sortable(q.scaled(mean))))
        runs = len({one["seed"] for one in mine})
        rows.append(Row(cells=(_word(reference_title(name, chosen=True)), Cell(text=str(runs), value=runs), *body)))
    return Table(
        name="references",
        caption="References without a network, on the same pixels or features and the same training labels "
        "(scikit-learn): mean ± sample standard deviation over seeds. If one is ahead "
        "of every loss, tune or train longer before comparing losses.",
        columns=("Reference", "Seeds", *(q.heading for q in MAIN)),
        rows=tuple(rows),
    )


def tuning_table(frame: pd.DataFrame, tuned: Mapping[str, TunedBefore]) -> Table | None:
    """Return a row per loss with what it was trained with and how that did on held-out labels; None if all are alike.

    Args:
        frame: rows of one setting.
        tuned: what is known of the tuning, by loss; empty where nothing is.
    """
    names = {"recipe.lr": "Learning rate", "recipe.weight_decay": "Weight decay", "recipe.warmup_epochs": "Warm-up"}
    there = [column for column in names if column in frame]
    shown = [column for column in there if frame[column].nunique() > 1 or (tuned and column != "recipe.warmup_epochs")]
    if not shown or not (tuned or any(frame[column].nunique() > 1 for column in shown)):
        return None
    quantity = {q.metric: q for q in MAIN}.get(next((one.metric for one in tuned.values()), ""), MAIN[0])
    rows = []
    for loss in losses_in(frame):
        own = frame.loc[frame["loss"] == loss].iloc[0]
        values = [Cell(text=f"{float(own[column]):.4g}", value=float(own[column])) for column in shown]
        if tuned:
            one = tuned.get(loss)
            values.append(
                Cell(text="missing", value="") if one is None else Cell(text=str(one.trials), value=one.trials)
            )
            values.append(Cell(text="missing", value="") if one is None else _plain(quantity, one.value))
        rows.append(Row(cells=(_word(loss_title(loss)), *values), loss=loss))
    hows = sorted({one.how for one in tuned.values()})
    return Table(
        name="tuning",
        caption="What each loss was given, chosen with equal budgets on training labels alone"
        + (f" ({' or '.join(hows)}; on labels of a separate seed)." if hows else "."),
        columns=(
            "Loss",
            *(names[column] for column in shown),
            *(("Trials", f"Held out: {quantity.heading}") * bool(tuned)),
        ),
        rows=tuple(rows),
    )


def difference_table(verdict: Verdict) -> Table:
    """Return a row per loss and metric: the paired difference to the reference, its interval and its p-values."""
    rows = [row for found in verdict.metrics for row in _difference_rows(found)]
    reference = loss_title(verdict.reference)
    return Table(
        name="differences",
        caption=f"Each loss minus {reference}, seed by seed. Intervals (Student's t, 95 %) and two-sided p-values are "
        "corrected by Holm over the losses of a metric: an interval excludes 0 where the t-test's p is below 0.05.",
        columns=("Loss", "Metric", f"Difference to {reference}", "95 % interval", "t-test p", "Signed-rank p", "n",
                 "Outcome"),
        rows=tuple(rows),
    )  # fmt: skip


def run_table(frame: pd.DataFrame) -> Table:
    """Return a row per run: loss, seed, main numbers, and where they were made."""
    rows = []
    order = {loss: i for i, loss in enumerate(losses_in(frame))}
    for record in sorted(frame.to_dict("records"), key=lambda r: (order[r["loss"]], r["seed"])):
        numbers = [_plain(q, float(record.get(q.metric, math.nan))) for q in SHOWN[:3]]
        commit = record["commit"] or ""
        words = [record["status"], str(record["device"]), commit[:10] + "+changes" * commit.endswith("+changes"),
                 record["created"][:16].replace("T", " "), record["key"]]  # fmt: skip
        rows.append(
            Row(
                cells=(
                    _word(loss_title(record["loss"])),
                    Cell(text=str(record["seed"]), value=int(record["seed"])),
                    *numbers,
                    *map(_word, words),
                ),
                loss=record["loss"],
            )
        )
    return Table(
        name="runs",
        caption="Every run. The key names its record in the store; commit and device say where the number was made.",
        columns=("Loss", "Seed", *(q.heading for q in SHOWN[:3]), "Status", "Device", "Commit", "Recorded", "Key"),
        rows=tuple(rows),
    )


def _difference_rows(found: MetricVerdict) -> list[Row]:
    q, rows = found.quantity, []
    for loss, c in found.comparisons.items():
        d = c.difference
        mean = math.nan if d is None else d.mean
        interval = "missing"
        if not math.isnan(c.low):
            interval = f"{q.text(c.low, sign=True)} to {q.text(c.high, sign=True)}"
        rows.append(
            Row(
                cells=(
                    _word(loss_title(loss)),
                    Cell(text=q.heading, value=q.title),
                    Cell(text=q.text(mean, sign=True), value=_sortable(q.scaled(mean))),
                    Cell(text=interval, value=_sortable(q.scaled(c.low))),
                    Cell(text=_p_text(c.t_p), value=_sortable(c.t_p)),
                    Cell(text=_p_text(c.wilcoxon_p), value=_sortable(c.wilcoxon_p)),
                    Cell(text=str(0 if d is None else d.n), value=0 if d is None else d.n),
                    _word(c.outcome),
                ),
                loss=loss,
            )
        )
    return rows


def _best(frame: pd.DataFrame, quantity: Quantity) -> tuple[str, ...]:
    """Return the losses to mark: none where all are alike."""
    best = best_losses(frame, quantity)
    return best if len(best) < frame["loss"].nunique() else ()


def _marked(frame: pd.DataFrame, quantities: Sequence[Quantity]) -> str:
    """Return which means are marked."""
    marked = "the best mean of each column is marked"
    uneven = any(is_uneven(frame, q.metric) for q in quantities)
    return f"{marked}, among losses that have a number for every seed" if uneven else marked


def _seeds_of(frame: pd.DataFrame) -> str:
    """Return over how many seeds the means of a frame are, as the losses have them."""
    each = frame.groupby("loss")["seed"].nunique()
    fewest, most = int(each.min()), int(each.max())
    if fewest < most:
        return f"{fewest} to {most} seeds (see the column Runs)"
    others = ", not the same for all losses" if most < frame["seed"].nunique() else ""
    return f"{most} {'seed' if most == 1 else 'seeds'}{others}"


def _mean_cell(found: pd.DataFrame, loss: str, quantity: Quantity, best: bool) -> Cell:
    n, runs = int(found["n"][loss]), int(found["runs"][loss])
    mean, std = float(found["mean"][loss]), float(found["std"][loss])
    text = quantity.text(mean)
    if n > 1:
        text += f" ± {quantity.text(std)}"
    if n < runs:
        text += f" ({n} of {runs})"
    return Cell(text=text, value=_sortable(quantity.scaled(mean)), best=best)


def _starred(cell: Cell, column: int) -> str:
    """Return the text with its mark on the side where it moves no digit: names stand left, numbers right."""
    if not cell.best:
        return cell.text
    return f"*{cell.text}" if column else f"{cell.text}*"


def _word(text: str) -> Cell:
    return Cell(text=text, value=text)


def _plain(quantity: Quantity, value: float) -> Cell:
    return Cell(text=quantity.text(value), value=_sortable(quantity.scaled(value)))


def _p_text(p: float) -> str:
    return "missing" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _sortable(value: float) -> float | str:
    """Return a number to sort by; what is missing sorts as an empty text, which the page puts last."""
    return value if math.isfinite(value) else ""


def _markdown_cell(cell: Cell) -> str:
    text = _markdown_text(cell.text)
    return f"**{text}**" if cell.best else text


def _markdown_text(text: str) -> str:
    """Return text that Markdown shows as it is: names come from folders, and may hold anything."""
    for character in "\\`*_[]|~#":
        text = text.replace(character, "\\" + character)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "−": "$-$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "“": "``", "”": "''", "\n": " ",
}  # fmt: skip


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
