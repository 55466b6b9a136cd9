"""What the transfer study's cells say: differences from cross-entropy with their tests, and summaries of them.

The summaries are blocks of the documents: what a reader sees first.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gence.lab.report import markdown_table
from gence.lab.store import Store
from gence.metrics import holm, wilcoxon_signed_rank
from gence.paper.cells import SEEDS, Cells, Records
from gence.paper.studies.evidence import Evidence
from gence.paper.studies.transfer_grid import PARTS, SOURCES, Line, Part, Setting

METRICS = {
    "accuracy": ("Accuracy", 1, 100.0, "points"),
    "nll": ("NLL", -1, 1.0, "nats"),
    "ece": ("ECE", -1, 100.0, "points"),
    "auroc": ("AUROC", 1, 100.0, "points"),
}
"""Name -> title, direction, scale and unit. AUROC is by entropy, the mean over a source's out-of-distribution sets."""

NOTHING = "Nothing is measured yet."
NEEDS_SETS = {"auroc": 1, "auroc_0": 1, "auroc_1": 2}
"""How many out-of-distribution sets a source must have to have the metric."""

SHOWN = {
    **METRICS,
    "auroc_0": ("AUROC, nearest out-of-distribution set", 1, 100.0, "points"),
    "auroc_1": ("AUROC, farthest out-of-distribution set", 1, 100.0, "points"),
}


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


def counted(cells: Cells, parts: Iterable[Part]) -> str:
    """How many cells of some parts there are, and what they took."""
    asked = [f"{setting.name}/{line.name}" for part in parts for setting, line in part.cells]
    done = sum(name in cells for name in asked)
    seconds = sum(cells[name]["cpu_s"] for name in asked if name in cells)
    return f"{done} of {len(asked)} cells are measured, in {seconds / 60:.0f} minutes of CPU"


def all_lines() -> list[Line]:
    """Every loss of the study, once."""
    found = {line.name: line for part in PARTS.values() for line in part.all_lines if not line.reference}
    return list(found.values())


def summary(store: Store) -> str:
    """Every line's mean difference from cross-entropy in each regime that has cells, metric by metric, as Markdown."""
    cells, groups = Records.beside(store).read(), regimes()
    parts = []
    for metric, (title, sign, _, unit) in METRICS.items():
        found = evidence(cells, groups, all_lines(), metric)
        shown = [group for group in groups if any(one == group for one, _ in found)]
        rows = []
        for line in all_lines():
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
        return NOTHING
    note = (
        "Mean difference from cross-entropy over pairs that share a setting and a seed; in brackets above, the number "
        "of settings. Bold: significantly better (signed-rank test, p < 0.05 after Holm's correction over the table); "
        "(worse): significantly worse; –: not measured."
    )
    return "\n\n".join([*parts, note])


def _paired_table(
    store: Store, part: str, columns: Sequence[tuple[str, Callable[[Setting], bool], str]], reference: str = "ce"
) -> str:
    """A part as Markdown: the reference's own means, and of every other line its mean difference from them.

    Args:
        store: where the records are.
        part: name of the part.
        columns: title, whether a setting counts, and metric.
        reference: the line that others are compared with.
    """
    cells, one = Records.beside(store).read(), PARTS[part]
    lines = [line for line in one.all_lines if not line.reference]
    columns = [column for column in columns if any(_own(cells, one, column, reference))]
    if not columns:
        return NOTHING
    groups = {title: [setting for setting in one.settings if counts(setting)] for title, counts, _ in columns}
    found: dict[tuple[str, str], Evidence] = {}
    for title, _, metric in columns:
        found |= evidence(cells, {title: groups[title]}, lines, metric, reference)
    first = [f"{statistics.fmean(_own(cells, one, column, reference)):.1f}" for column in columns]
    rows = [[next(line.title for line in lines if line.name == reference), *first]]
    for line in lines:
        texts = []
        for title, _, metric in columns:
            have, sign = found.get((title, line.name)), SHOWN[metric][1] if metric in SHOWN else 1
            number = "–" if have is None else f"{have.mean:+.1f}"
            better, worse = (have is not None and have.verdict == side for side in (sign, -sign))
            texts.append(f"**{number}**" if better else f"{number} (worse)" if worse else number)
        if set(texts) - {"–"}:
            rows.append([line.title, *texts])
    return markdown_table(["Loss", *(title for title, _, _ in columns)], rows, "l" + "r" * len(columns))


def _own(cells: Cells, part: Part, column: tuple[str, Callable[[Setting], bool], str], line: str) -> list[float]:
    """The line's numbers in per cent, all seeds of all settings that count."""
    _, counts, metric = column
    found = (cells.get(f"{setting.name}/{line}") for setting in part.settings if counts(setting))
    return [100 * number for cell in found if cell is not None for number in values(cell, metric)]


_READING = (
    "First row: means in per cent. Others: mean difference from it, in points, over pairs that share a setting and a "
    "seed; bold where significantly better (p < 0.05, signed-rank test, Holm's correction per column)."
)


ENOUGH = {"balanced": 14, "tail": 4}
"""Settings of a part with the lines that its answer is about, from which on the answer is given."""

ANSWERS = {
    "balanced": "With a pretrained encoder GenCE brings no accuracy over cross-entropy: tuned alike, plain and "
    "anchored GenCE are within 0.3 points of it on average, and in no regime significantly better. Without an anchor "
    "it can still fail: in one of the 37 settings it loses 10 points. Where classes are many, MAE and Brier fall "
    "behind by 8 points and more, generalised cross-entropy by 3.",
    "tail": "Under imbalance correct for the prior: `logit_adjusted(prior=train)` gains most, drawing all classes "
    "alike and `ce(weight=balanced)` gain too, and so does GenCE with an anchor of 0.1 to the uniform prior. Without "
    "a correction GenCE gains about a point; an anchor of 1 to the uniform prior gains hardly more and costs "
    "calibration.",
}
"""The sentences that matter, by part; written by hand, and held to the records by a test."""

ANSWER_LINES = {
    "balanced": ("ce", "gence", "anchored", "mae", "brier", "generalized_ce"),
    "tail": ("ce", "gence", "logit_adjusted", "resampled", "class_weights", "anchor_uniform", "anchor_uniform_1"),
}


def settings_for(part: str, cells: Cells) -> list[Setting]:
    """The settings that have all lines that a part's answer is about."""
    lines = ANSWER_LINES[part]
    return [one for one in PARTS[part].settings if all(f"{one.name}/{line}" in cells for line in lines)]


def answers(store: Store) -> str:
    """The sentences that matter, as far as there are records for them."""
    cells = Records.beside(store).read()
    found = [text for part, text in ANSWERS.items() if len(settings_for(part, cells)) >= ENOUGH[part]]
    return "\n\n".join(found) or NOTHING


def tail_summary(store: Store) -> str:
    """Long tails: accuracy over all classes and by thirds, and calibration error, as Markdown."""
    metrics = (
        ("All classes", "accuracy"), ("Largest third", "head_accuracy"), ("Middle", "middle_accuracy"),
        ("Smallest third", "tail_accuracy"), ("ECE", "ece"),
    )  # fmt: skip
    parts = []
    for rho in (10, 100):
        counts = functools.partial(_has_rho, rho)
        table = _paired_table(store, "tail", [(title, counts, name) for title, name in metrics])
        parts += [f"rho = {rho}:", table] if table != NOTHING else []
    if not parts:
        return NOTHING
    return "\n\n".join([*parts, f"{_READING} {counted(Records.beside(store).read(), [PARTS['tail']])}."])


def _has_rho(rho: int, setting: Setting) -> bool:
    return setting.rho == rho


def detection_summary(store: Store) -> str:
    """AUROC of near and far out-of-distribution sets as Markdown: balanced subsets, by entropy."""
    table = _paired_table(
        store,
        "balanced",
        [
            ("CIFAR-10, near: CIFAR-100", lambda setting: setting.source == "cifar10", "auroc_0"),
            ("CIFAR-10, far: SVHN", lambda setting: setting.source == "cifar10", "auroc_1"),
            ("CLINC150: out of scope", lambda setting: setting.source == "clinc150", "auroc_0"),
        ],
    )
    return table if table == NOTHING else f"{table}\n\nAUROC by entropy, all numbers of labels. {_READING}"


AGREES = 0.3
"""Points of accuracy within which two solvers of one problem should agree."""


def logistic_summary(store: Store) -> str:
    """Cross-entropy's linear heads beside scikit-learn's logistic regression, setting by setting, as Markdown."""
    cells, rows = Records.beside(store).read(), []
    for setting in PARTS["balanced"].settings:
        found = [cells.get(f"{setting.name}/{name}") for name in ("ce", "ce_full", "logistic")]
        means = [100 * statistics.fmean(values(cell, "accuracy")) for cell in found if cell is not None]
        if len(means) == len(found):
            name = f"{SOURCES[setting.source].title}, {setting.per_class}"
            rows.append([name, *(f"{mean:.1f}" for mean in means), *(f"{m - means[2]:+.2f}" for m in means[1::-1])])
    if not rows:
        return NOTHING
    head = ["Data, labels per class", "CE, mini-batches", "CE, full batch", "Logistic regression",
            "Full batch minus logistic", "Mini-batches minus logistic"]  # fmt: skip
    apart = [[abs(float(row[column])) for row in rows] for column in (4, 5)]
    close = [sum(one <= AGREES for one in each) for each in apart]
    return markdown_table(head, rows, "lrrrrr") + (
        f"\n\nTest accuracy in per cent, mean over {SEEDS} seeds, all tuned on the same folds; the full batch and "
        "logistic regression try the same strengths. "
        f"Full batch: {close[0]} of {len(rows)} differences are {AGREES:g} points or less; the largest is "
        f"{max(apart[0]):.2f}. Mini-batches: {close[1]} of {len(rows)}; {max(apart[1]):.2f}."
    )
