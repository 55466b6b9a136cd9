"""Heads on frozen pretrained features: the paper's protocol where users work, every loss tuned alike.

Its tables: where a loss is significantly better than cross-entropy, and every cell of each part.
"""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gence.lab.report import Cell, Row, Table, markdown_table
from gence.lab.store import Store
from gence.metrics import holm, wilcoxon_signed_rank
from gence.paper.exhibit_registry import Apart, Asked, Entry, View
from gence.paper.studies.evidence import Evidence
from gence.paper.studies.transfer_grid import PARTS, SEEDS, SOURCES, Line, Part, Records, Setting, selected


def _run(
    store: Store, rows: Sequence[str], losses: Sequence[str], time_limit: float | None, echo: Callable[[str], None]
) -> None:
    from gence.paper.studies.transfer_runs import run_cells

    run_cells(Records.beside(store), selected(rows, losses), time_limit, echo)


def _list(store: Store, rows: Sequence[str], losses: Sequence[str], echo: Callable[[str], None]) -> None:
    done = Records.beside(store).read()
    asked = missing = 0
    for _, setting, lines in selected(rows, losses):
        lacking = [line.name for line in lines if f"{setting.name}/{line.name}" not in done]
        asked, missing = asked + len(lines), missing + len(lacking)
        if lacking:
            echo(f"{setting.name} ({setting.labels} labels): {', '.join(lacking)}")
    echo(f"{missing} of {asked} cells are missing")


METRICS = {
    "accuracy": ("Accuracy", 1, 100.0, "points"),
    "nll": ("NLL", -1, 1.0, "nats"),
    "ece": ("ECE", -1, 100.0, "points"),
    "auroc": ("AUROC", 1, 100.0, "points"),
}
"""Name -> title, direction, scale and unit. AUROC is by entropy, the mean over a source's out-of-distribution sets."""

_NEEDS_SETS = {"auroc": 1, "auroc_0": 1, "auroc_1": 2}
"""How many out-of-distribution sets a source must have to have the metric."""

_SHOWN = {
    **METRICS,
    "auroc_0": ("AUROC, nearest out-of-distribution set", 1, 100.0, "points"),
    "auroc_1": ("AUROC, farthest out-of-distribution set", 1, 100.0, "points"),
}

Cells = Mapping[str, Mapping[str, Any]]


def values(cell: Mapping[str, Any], metric: str) -> list[float]:
    """A metric's numbers, one per seed; empty where it was not measured."""
    found: list[float] = cell["metrics"].get(metric, [])
    return found


def differences(
    cells: Cells, settings: Iterable[Setting], line: str, metric: str, reference: str = "ce"
) -> list[list[float]]:
    """A line less the reference, in the metric's unit: one list per setting, one number per seed."""
    scale = METRICS[metric][2] if metric in METRICS else 100.0
    found = []
    for setting in settings:
        mine, other = (cells.get(f"{setting.name}/{name}") for name in (line, reference))
        if mine is not None and other is not None:
            pairs = zip(values(mine, metric), values(other, metric), strict=True)
            found.append([scale * (one - two) for one, two in pairs])
    return [one for one in found if one]


def evidence(
    cells: Cells, groups: Mapping[str, Sequence[Setting]], lines: Sequence[Line], metric: str, reference: str = "ce"
) -> dict[tuple[str, str], Evidence]:
    """Every line against the reference in each group of settings; one correction over all comparisons."""
    found = {
        (group, line.name): made
        for group, settings in groups.items()
        for line in lines
        if line.name != reference and (made := differences(cells, settings, line.name, metric, reference))
    }
    flat = {name: tuple(number for row in made for number in row) for name, made in found.items()}
    p = holm({name: wilcoxon_signed_rank(numbers, tolerance=1e-9) for name, numbers in flat.items()})
    return {name: Evidence(numbers, len(found[name]), p[name]) for name, numbers in flat.items()}


def _size(setting: Setting) -> str:
    size = setting.per_class or 0
    return "1 to 2" if size <= 2 else "5 to 10" if size <= 10 else "20 or more"


def regimes() -> dict[str, list[Setting]]:
    """The settings that tables of differences take together, by what they are called."""
    found: dict[str, list[Setting]] = {}
    for setting in PARTS["balanced"].settings:
        kind = "10 classes" if SOURCES[setting.source].classes == 10 else "77 to 150 classes"
        found.setdefault(f"Balanced, {kind}, {_size(setting)} labels per class", []).append(setting)
    for setting in PARTS["tail"].settings:
        found.setdefault(f"Long tail, rho {setting.rho}", []).append(setting)
    for setting in PARTS["mlp"].settings:
        found.setdefault("Balanced, hidden layer", []).append(setting)
    return found


def _counted(cells: Cells, parts: Iterable[Part]) -> str:
    asked = [f"{setting.name}/{line.name}" for part in parts for setting, line in part.cells]
    done = sum(name in cells for name in asked)
    seconds = sum(cells[name]["cpu_s"] for name in asked if name in cells)
    return f"{done} of {len(asked)} cells are measured, in {seconds / 60:.0f} minutes of CPU"


def winners_view(asked: Asked) -> View:
    """Where a loss other than cross-entropy is significantly better, by how much."""
    cells = Records.beside(asked.store).read()
    groups, lines = regimes(), _all_lines()
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
        f"share a setting and a seed, Holm's correction per metric). {_counted(cells, PARTS.values())}.",
        columns=("Regime", "Metric", "Loss", "Mean difference", "Unit", "Better in pairs", "Settings"),
        rows=tuple(rows),
    )
    return table, [HOW]


def summary(store: Store) -> str:
    """Every line's mean difference from cross-entropy in each regime that has cells, metric by metric, as Markdown."""
    cells, groups = Records.beside(store).read(), regimes()
    parts = []
    for metric, (title, sign, _, unit) in METRICS.items():
        found = evidence(cells, groups, _all_lines(), metric)
        shown = [group for group in groups if any(one == group for one, _ in found)]
        rows = []
        for line in _all_lines():
            texts = []
            for group in shown:
                one = found.get((group, line.name))
                number = "–" if one is None else f"{one.mean:+.3f}" if metric == "nll" else f"{one.mean:+.1f}"
                better = one is not None and one.verdict == sign
                texts.append(f"**{number}**" if better else f"{number} (worse)" if one and one.verdict else number)
            if set(texts) - {"–"}:
                rows.append([line.title, *texts])
        counted = [f"{group} ({max(found[key].settings for key in found if key[0] == group)})" for group in shown]
        if rows:
            parts += [f"{title}, {unit}:", markdown_table(["Loss", *counted], rows, "l" + "r" * len(shown))]
    if not parts:
        return "Nothing is measured yet."
    note = (
        "Mean difference from cross-entropy over pairs that share a setting and a seed; in brackets above, the number "
        "of settings. Bold: significantly better (signed-rank test, p < 0.05 after Holm's correction over the table); "
        "(worse): significantly worse; –: not measured."
    )
    return "\n\n".join([*parts, note])


def help_rows(store: Store) -> list[list[str]]:
    """Rows of the table *Does it help?* about frozen pretrained features: situation, what was measured, what to do."""
    cells, found = Records.beside(store).read(), []
    for situation, part, line, called, advice in (
        (
            "A head on a frozen pretrained encoder, tuned",
            "balanced",
            "anchored",
            "Anchored GenCE",
            "Keep cross-entropy.",
        ),
        (
            "The same with a long tail and a balanced test",
            "tail",
            "anchor_uniform_1",
            "GenCE with an anchor of 1 to the uniform prior",
            "Correct for the prior: that anchor, logit adjustment, or drawing all classes alike.",
        ),
    ):
        pairs = [one for each in differences(cells, PARTS[part].settings, line, "accuracy") for one in each]
        if pairs:
            words = f"{called} {statistics.fmean(pairs):+.1f} points of accuracy, better in "
            found.append([situation, f"{words}{sum(one > 0 for one in pairs)} of {len(pairs)} pairs", advice])
    return found


def _all_lines() -> list[Line]:
    found = {line.name: line for part in PARTS.values() for line in part.all_lines if not line.reference}
    return list(found.values())


def part_view(asked: Asked, part: str, metric: str = "accuracy") -> View:
    """A part's cells: a row per setting, a column per line; missing ones as missing."""
    cells, one = Records.beside(asked.store).read(), PARTS[part]
    title, sign, scale, unit = _SHOWN.get(metric, (metric.replace("_", " ").capitalize(), 1, 100.0, "%"))
    rows = []
    for setting in one.settings:
        if asked.rows and not any(fnmatch.fnmatchcase(setting.name, pattern) for pattern in asked.rows):
            continue
        if metric in _NEEDS_SETS and len(SOURCES[setting.source].outside) < _NEEDS_SETS[metric]:
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
        caption=f"{one.title}: {unit}, mean over {SEEDS} seeds. {_counted(cells, [one])}.",
        columns=("Data", "Labels", *(line.title for line in one.all_lines)),
        rows=tuple(rows),
    )
    return table, []


HOW = (
    "Every loss has the same 16 trials of learning rate and weight decay, by cross-validation on a draw of labels of "
    "its own, chosen by accuracy; own parameters stay at their defaults. Five fresh draws of labels are then trained "
    "with what was chosen, each with a tuning draw of its own below 300 labels and one for all five from there on, and "
    "judged on the whole test set. With one label per class the choice is that of two. The encoder of images has seen "
    "ImageNet, and so the classes of Mini-ImageNet."
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
        blocks={"transfer_summary": summary},
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
