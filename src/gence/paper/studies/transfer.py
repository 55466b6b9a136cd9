"""Heads on frozen pretrained features: the paper's protocol where users work, every loss tuned alike.

Its tables: where a loss is significantly better than cross-entropy, and every cell of each part.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Callable, Sequence

from gence.lab.report import Cell, Row, Table
from gence.lab.store import Store
from gence.paper.cells import SEEDS, Records, say_missing
from gence.paper.exhibit_registry import Apart, Asked, Entry, View
from gence.paper.studies.transfer_evidence import (
    METRICS,
    NEEDS_SETS,
    SHOWN,
    all_lines,
    answers,
    counted,
    detection_summary,
    differences,
    evidence,
    logistic_summary,
    regimes,
    summary,
    tail_summary,
    values,
)
from gence.paper.studies.transfer_grid import PARTS, SOURCES, selected


def _run(
    store: Store, rows: Sequence[str], losses: Sequence[str], time_limit: float | None, echo: Callable[[str], None]
) -> None:
    from gence.paper.studies.transfer_runs import run_cells

    run_cells(Records.beside(store), selected(rows, losses), time_limit, echo)


def _list(store: Store, rows: Sequence[str], losses: Sequence[str], echo: Callable[[str], None]) -> None:
    say_missing(Records.beside(store), selected(rows, losses), echo)


def winners_view(asked: Asked) -> View:
    """Where a loss other than cross-entropy is significantly better, by how much."""
    cells = Records.beside(asked.store).read()
    groups, lines = regimes(), all_lines()
    rows = []
    for metric, (title, sign, _, unit) in METRICS.items():
        for (group, name), one in evidence(cells, groups, lines, metric).items():
            if one.verdict == sign:
                line = next(line for line in lines if line.name == name)
                texts = (
                    group, title, line.title, f"{one.mean:+.3f}" if metric == "nll" else f"{one.mean:+.1f}", unit,
                    f"{sum(sign * d > 0 for d in one.differences)} of {len(one.differences)}", str(one.settings),
                )  # fmt: skip
                rows.append(Row(cells=tuple(Cell(text=text, value=text) for text in texts), loss=name))
    rows.sort(key=lambda row: list(groups).index(row.cells[0].text))
    table = Table(
        name="transfer",
        caption="Where a loss is significantly better than cross-entropy (p < 0.05, signed-rank test over pairs that "
        f"share a setting and a seed, Holm's correction per metric). {counted(cells, PARTS.values())}.",
        columns=("Regime", "Metric", "Loss", "Mean difference", "Unit", "Better in pairs", "Settings"),
        rows=tuple(rows),
    )
    return table, [HOW]


def help_rows(store: Store) -> list[list[str]]:
    """Rows of the table *Does it help?* about frozen pretrained features: situation, what was measured, what to do."""
    cells, found = Records.beside(store).read(), []
    for situation, part, lines, advice in (
        (
            "A head on a frozen pretrained encoder, tuned",
            "balanced",
            {"anchored": "Anchored GenCE"},
            "Keep cross-entropy.",
        ),
        (
            "The same with a long tail and a balanced test",
            "tail",
            {
                "logit_adjusted": "Logit adjustment",
                "anchor_uniform": "GenCE with an anchor of 0.1 to the uniform prior",
            },
            "Correct for the prior: `logit_adjusted(prior=train)`, or class weights.",
        ),
    ):
        words = []
        for line, called in lines.items():
            pairs = [one for each in differences(cells, PARTS[part].settings, line, "accuracy") for one in each]
            if pairs:
                up = sum(one > 0 for one in pairs)
                words.append(
                    f"{called} {statistics.fmean(pairs):+.1f} points of accuracy, better in {up} of {len(pairs)} pairs"
                )
        if words:
            found.append([situation, "; ".join(words), advice])
    return found


def part_view(asked: Asked, part: str, metric: str = "accuracy") -> View:
    """A part's cells: a row per setting, a column per line; missing ones as missing."""
    cells, one = Records.beside(asked.store).read(), PARTS[part]
    title, sign, scale, unit = SHOWN.get(metric, (metric.replace("_", " ").capitalize(), 1, 100.0, "%"))
    rows = []
    for setting in one.settings:
        if asked.rows and not any(fnmatch.fnmatchcase(setting.name, pattern) for pattern in asked.rows):
            continue
        if metric in NEEDS_SETS and len(SOURCES[setting.source].outside) < NEEDS_SETS[metric]:
            continue
        found = [cells.get(f"{setting.name}/{line.name}") for line in one.all_lines]
        means = [statistics.fmean(v) * scale if cell and (v := values(cell, metric)) else None for cell in found]
        known = [mean for mean in means if mean is not None]
        best = max(known, key=lambda mean: sign * mean) if known else None
        size = (
            f"{setting.per_class} per class"
            if setting.rho is None
            else f"rho {setting.rho}, first class {setting.largest}"
        )
        if setting.study == "batch":
            size += f", {'full batch' if setting.batch == 0 else f'batch {setting.batch}'}"
        begin = (Cell(text=SOURCES[setting.source].title, value=setting.source), Cell(text=size, value=size))
        words = ["missing" if line.is_in(setting) else "–" for line in one.all_lines]
        shown = (
            Cell(text=word, value=word)
            if mean is None
            else Cell(text=f"{mean:.3f}" if metric == "nll" else f"{mean:.1f}", value=mean, best=mean == best)
            for mean, word in zip(means, words, strict=True)
        )
        rows.append(Row(cells=(*begin, *shown)))
    unit = f"{title}, {'%' if unit == 'points' else unit}"
    table = Table(
        name=f"transfer-{part}-{metric.replace('_', '-')}",
        caption=f"{one.title}: {unit}, mean over {SEEDS} seeds. {counted(cells, [one])}.",
        columns=("Data", "Labels", *(line.title for line in one.all_lines)),
        rows=tuple(rows),
    )
    return table, []


HOW = (
    "Every loss has the same 16 trials of learning rate and weight decay, by cross-validation on a draw of labels of "
    "its own: of the trials within a standard error of the best accuracy, the one with the lowest NLL is chosen. Own "
    "parameters stay at their defaults. Five fresh draws of labels are then trained with what was chosen, each with a "
    "tuning draw of its own below 300 labels and one for all five from there on, and judged on the whole test set. "
    "With one label per class the choice is that of two. The encoder of images has seen ImageNet, and so the classes "
    "of Mini-ImageNet."
)


def _view(part: str, metric: str) -> Callable[[Asked], View]:
    return lambda asked: part_view(asked, part, metric)


ENTRIES = (
    Entry(
        name="transfer",
        place=40,
        heading="Frozen pretrained features: where a loss is better than cross-entropy",
        view=winners_view,
        options=(),
        blocks={
            "transfer_answers": answers,
            "transfer_summary": summary,
            "transfer_tail_summary": tail_summary,
            "transfer_detection": detection_summary,
            "transfer_logistic": logistic_summary,
        },
        apart=Apart(run=_run, list=_list),
    ),
    *(
        Entry(
            name=f"transfer_{part}{ending}",
            place=41 + place,
            heading=f"Frozen pretrained features: {PARTS[part].title.lower()}, {words}",
            view=_view(part, metric),
            options=("rows",),
            of="transfer",
        )
        for place, (part, metric, ending, words) in enumerate(
            (
                ("balanced", "accuracy", "", "accuracy"),
                ("balanced", "nll", "_nll", "NLL"),
                ("balanced", "ece", "_ece", "calibration error"),
                ("balanced", "auroc", "_auroc", "detection"),
                ("balanced", "auroc_0", "_near", "detection of the nearest out-of-distribution set"),
                ("balanced", "auroc_1", "_far", "detection of the farthest out-of-distribution set"),
                ("tail", "accuracy", "", "accuracy"),
                ("tail", "head_accuracy", "_head", "accuracy on the largest third of the classes"),
                ("tail", "middle_accuracy", "_middle", "accuracy on the middle third of the classes"),
                ("tail", "tail_accuracy", "_smallest", "accuracy on the smallest third of the classes"),
                ("batch", "accuracy", "", "accuracy"),
                ("mlp", "accuracy", "", "accuracy"),
            )
        )
    ),
)
