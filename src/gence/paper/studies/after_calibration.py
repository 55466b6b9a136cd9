"""What remains of a loss's calibration after temperature scaling: heads on frozen features, 5 and 20 labels per class.

Every loss is tuned alike and judged raw, divided by a temperature that is fitted out of fold on the training labels,
and with the marginal offset; detectors of out-of-distribution inputs beside. Cells lie in a file of their own, in the
form of the transfer study's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gence.lab.report import Cell, Row, Table, marks_for
from gence.lab.store import environment_record
from gence.metrics import holm, wilcoxon_signed_rank
from gence.paper.cells import SEEDS, Cells, CellStudy, Records, cell_of
from gence.paper.exhibit_registry import Asked, Entry, View
from gence.paper.exhibit_table import Drawing, panels_drawing
from gence.paper.studies.evidence import Evidence
from gence.paper.studies.transfer_grid import MAIN, RIVALS, SMOOTHED, SOURCES, Line, Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from gence.paper.studies.transfer_runs import Features

STUDY = "after_calibration"
TRIALS = 8
LINES = (*MAIN, *SMOOTHED, *RIVALS)
SETTINGS = tuple(
    Setting(study=STUDY, source=source, per_class=size)
    for size in (5, 20)
    for source in ("sign-digits", "cifar10", "banking77", "cifar100", "clinc150")
)
VARIANTS = {"": "raw", "calibrated/": "temperature", "offset/": "offset"}
SCORES = ("accuracy", "nll", "ece", "debiased_ece", "brier")
SETS = ("coverage/lac90", "set_size/lac90", "coverage/lac95", "set_size/lac95")
OF_LOGITS = {"entropy": "Entropy", "confidence": "Max. probability", "energy": "Energy", "max_logit": "MaxLogit"}
OF_FEATURES = {"knn": "kNN", "mahalanobis": "Mahalanobis", "vim": "ViM"}


def _make(records: Records, setting: Setting, lines: Sequence[Line]) -> list[dict[str, Any]]:
    from gence.paper.studies.transfer_runs import read_features

    features = read_features(setting.source)
    records.note(setting.source, features.checksums, environment_record())
    return make_cells(setting, lines, features, outside_of(setting.source, features, read_features))


GRID = CellStudy(name=STUDY, settings=SETTINGS, lines=LINES, make=_make)


def outside_of(source: str, features: Features, read: Callable[[str], Features]) -> dict[str, Tensor]:
    """Features of out-of-distribution inputs: the source's own, or those of another source of its kind."""
    if features.outside:
        return dict(features.outside)
    other = read("clinc150" if SOURCES[source].text else "cifar10")
    found = {name: rows for name, rows in other.outside.items() if name != source}
    return found if SOURCES[source].text else {**found, "cifar10": other.test[::2]}


def make_cells(
    setting: Setting, lines: Sequence[Line], features: Features, outside: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """Tune all losses with the same trials, train them on five draws of labels, and judge each head."""
    from gence.lab.features import HeadProblem, HeadRun, cross_fit_heads, train_heads, tune_heads
    from gence.paper.studies.transfer_runs import TUNING_SEED, draw, folds_for, recipe_for

    began, losses, K = time.process_time(), [line.loss for line in lines], len(features.classes)
    recipe, folds = recipe_for(setting, setting.labels), folds_for(setting.labels)

    def problem(seed: int) -> HeadProblem:
        index = draw(setting, features, seed)
        return HeadProblem(features.train, features.train_labels[index], K, index)

    tuned = tune_heads(
        problem(TUNING_SEED), losses, recipe=recipe, trials=TRIALS, folds=folds, seed=TUNING_SEED
    )  # fmt: skip
    problems = [problem(seed) for seed in range(SEEDS)]
    runs = [
        HeadRun(problem=seed, loss=one.loss, seed=seed, recipe=one.recipe(recipe))
        for seed in range(SEEDS)
        for one in tuned
    ]
    heads, held = train_heads(problems, runs, curves=False), cross_fit_heads(problems, runs)
    table: list[list[dict[str, float]]] = [[] for _ in lines]
    for seed, own in enumerate(problems):
        part = slice(seed * len(lines), (seed + 1) * len(lines))
        for i, found in enumerate(_judged([one.head for one in heads[part]], held[part], own, features, outside)):
            table[i].append(found)
    share = (time.process_time() - began) / len(lines)
    return [
        cell_of(
            setting, line, setting.labels, {"lr": one.best.lr, "weight_decay": one.best.weight_decay}, seeds, share
        )
        for line, one, seeds in zip(lines, tuned, table, strict=True)
    ]  # fmt: skip


def _judged(
    heads: Sequence[Any], held: Sequence[Any], problem: Any, features: Features, outside: Mapping[str, Tensor]
) -> Iterable[dict[str, float]]:
    """The numbers of each head that was trained on a problem."""
    import torch

    from gence.calibrate import sets_metrics
    from gence.lab.features import logits_of
    from gence.lab.train import FeatureDetectors, Outputs, evaluate_outputs, of_training

    rows = problem.rows(torch.arange(len(problem)))
    detectors = FeatureDetectors(rows, problem.labels)
    shared = detectors.detected(features.test, outside)
    of_train, of_test = logits_of(heads, rows), logits_of(heads, features.test)
    far = {name: logits_of(heads, found) for name, found in outside.items()}
    for i, head in enumerate(heads):
        others = {name: values[i] for name, values in far.items()}
        pairs = {name: (outside[name], values) for name, values in others.items()}
        seen = evaluate_outputs(
            Outputs(
                logits=of_test[i], labels=features.test_labels, index=torch.arange(len(features.test_labels)),
                training=of_training(of_train[i], problem.labels, problem.prior), ood=others, prior=problem.prior,
                num_classes=problem.num_classes, held=held[i],
                detected=detectors.with_vim(shared, head, (features.test, of_test[i]), pairs),
            )
        )  # fmt: skip
        found = dict(seen.metrics)
        if seen.offset is not None and held[i] is not None:
            moved = [(z.double() + seen.offset).softmax(1) for z in (held[i].logits, of_test[i])]
            sets = sets_metrics(moved[0], held[i].labels, moved[1], features.test_labels)
            found |= {f"offset/{name}": value for name, value in sets.items()}
        fitted = {name: one for name, one in seen.tables.get("calibration", {}).items() if isinstance(one, float)}
        yield _kept(found, tuple(outside)) | fitted


def _kept(metrics: Mapping[str, float], outside: Sequence[str]) -> dict[str, float]:
    """What a cell keeps: scores and sets of each variant, AUROC as the mean over out-of-distribution sets."""
    found = {
        variant + name: metrics[variant + name]
        for variant in VARIANTS
        for name in (*SCORES, *SETS, "nll_calibration")
        if variant + name in metrics
    }
    for variant in VARIANTS:
        for detector in (*OF_LOGITS, *(OF_FEATURES if not variant else ())):
            each = [metrics.get(f"{variant}ood/{name}/auroc_{detector}") for name in outside]
            if each and None not in each:
                found[f"{variant}auroc_{detector}"] = statistics.fmean(value for value in each if value is not None)
    return found


def pairs(cells: Cells, metric: str, line: str, variant: str, reference: tuple[str, str] = ("ce", "")) -> list[float]:
    """A line less a reference, seed by seed over all settings that have both; the reference is a line and a variant."""
    found = []
    for setting in SETTINGS:
        mine, other = (
            cells.get(f"{setting.name}/{name}", {}).get("metrics", {}).get(kind + metric)
            for name, kind in ((line, variant), reference)
        )
        if mine and other:
            found += [one - two for one, two in zip(mine, other, strict=True)]
    return found


def against_ce(cells: Cells, metric: str, variant: str) -> dict[str, Evidence]:
    """Every loss minus cross-entropy, both in one variant; p-values are corrected over the losses."""
    found = {
        line.name: made
        for line in LINES
        if line.name != "ce" and (made := pairs(cells, metric, line.name, variant, ("ce", variant)))
    }
    p = holm({name: wilcoxon_signed_rank(made, tolerance=1e-9) for name, made in found.items()})
    return {name: Evidence(tuple(made), len(made) // SEEDS, p[name]) for name, made in found.items()}


def mean(cells: Cells, metric: str, line: str, per_class: int | None = None) -> float | None:
    """The mean over settings and seeds of those that have the metric; None without any."""
    each = [
        statistics.fmean(values)
        for setting in SETTINGS
        if per_class in (None, setting.per_class)
        and (values := cells.get(f"{setting.name}/{line}", {}).get("metrics", {}).get(metric))
    ]
    return statistics.fmean(each) if each else None


def scores_view(asked: Asked) -> View:
    """A row per loss: probabilities raw, divided by the temperature, and with the offset; means over all settings."""
    cells, columns = GRID.records(asked.store).read(), []
    for name, title, scale, digits in (
        ("accuracy", "Accuracy, %", 100, 1), ("nll", "NLL", 1, 3), ("ece", "ECE, %", 100, 1),
        ("coverage/lac90", "Coverage of 90 % sets, %", 100, 1), ("set_size/lac90", "Classes per set", 1, 1),
    ):  # fmt: skip
        for variant, words in VARIANTS.items():
            if not (name == "accuracy" and variant == "calibrated/"):  # which a temperature never changes
                columns.append((variant + name, f"{title}, {words}", scale, digits))
    enough = sum(all(f"{one.name}/{line}" in cells for line in ("ce", "gence", "anchored")) for one in SETTINGS)
    return _table(STUDY, cells, columns, _about(cells)), [*([REMAINS] if enough >= ENOUGH else []), HOW]


def detectors_view(asked: Asked) -> View:
    """A row per loss: AUROC of every detector, raw; of entropy and maximum probability also after the temperature."""
    cells = GRID.records(asked.store).read()
    columns = [(f"auroc_{name}", title, 100, 1) for name, title in (OF_LOGITS | OF_FEATURES).items()]
    columns[2:2] = [
        (f"calibrated/auroc_{name}", f"{OF_LOGITS[name]}, temperature", 100, 1) for name in ("entropy", "confidence")
    ]
    caption = f"AUROC in per cent, test inputs positive, mean over out-of-distribution sets. {_about(cells)}"
    return _table(f"{STUDY}_detectors", cells, columns, caption), [DETECTED]


def _table(name: str, cells: Cells, columns: Sequence[tuple[str, str, int, int]], caption: str) -> Table:
    rows = []
    for line in LINES:
        found = [(mean(cells, metric, line.name), scale, digits) for metric, _, scale, digits in columns]
        rows.append(
            Row(
                cells=(
                    Cell(text=line.title, value=line.title),
                    *(
                        Cell(text="missing", value="") if value is None
                        else Cell(text=f"{scale * value:.{digits}f}", value=scale * value)
                        for value, scale, digits in found
                    ),
                ),
                loss=str(line.loss),
            )
        )  # fmt: skip
    return Table(
        name=name.replace("_", "-"), caption=caption, columns=("Loss", *(c[1] for c in columns)), rows=tuple(rows)
    )


def _about(cells: Cells) -> str:
    total = len(SETTINGS) * len(LINES)
    done = [f"{setting.name}/{line.name}" for setting in SETTINGS for line in LINES]
    found = [cells[name] for name in done if name in cells]
    minutes = sum(cell["cpu_s"] for cell in found) / 60
    return f"Means over {SEEDS} seeds and the settings; {len(found)} of {total} cells, {minutes:.0f} minutes of CPU."


def drawings(asked: Asked) -> list[Drawing]:
    """Calibration error before and after the temperature, and AUROC by detector."""
    cells = GRID.records(asked.store).read()
    sizes = [size for size in (5, 20) if any(mean(cells, "ece", line.name, size) is not None for line in LINES)]
    description = "The means over both numbers of labels are in the table of this section."
    return [
        *panels_drawing(
            sizes, lambda axes, size: _draw_ece(axes, cells, size), ["raw", "after temperature scaling"],
            name="after-calibration-ece", title="Calibration error before and after temperature scaling",
            reading="A line per loss, from its mean calibration error raw (filled) to that after temperature scaling "
            "(open).", description=description,
        ),
        *panels_drawing(
            sizes, lambda axes, size: _draw_detectors(axes, cells, size), ["a loss", "cross-entropy", "GenCE"],
            name="after-calibration-detectors", title="Detection of out-of-distribution inputs by detector",
            reading="A mark per loss: mean AUROC over the sources and their out-of-distribution sets, raw.",
            description=description,
        ),
    ]  # fmt: skip


def _draw_ece(axes: Axes, cells: Cells, size: int) -> None:
    marks = marks_for([str(line.loss) for line in LINES])
    for row, line in enumerate(LINES):
        raw, after = (mean(cells, name, line.name, size) for name in ("ece", "calibrated/ece"))
        if raw is None or after is None:
            continue
        colour = marks[str(line.loss)].light
        axes.plot([100 * raw, 100 * after], [row, row], color=colour, lw=1.2)
        axes.plot([100 * raw], [row], "o", color=colour, ms=5, label="raw" if row == 0 else None)
        axes.plot(
            [100 * after], [row], "o", color=colour, mfc="white", ms=5,
            label="after temperature scaling" if row == 0 else None,
        )  # fmt: skip
    axes.set_yticks(range(len(LINES)), [line.title for line in LINES], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set(xlabel="ECE, %", title=f"{size} labels per class")


def _draw_detectors(axes: Axes, cells: Cells, size: int) -> None:
    names = OF_LOGITS | OF_FEATURES
    marks = marks_for([str(line.loss) for line in LINES])
    told = {"ce": "cross-entropy", "gence": "GenCE"}
    for place, name in enumerate(names):
        for line in sorted(LINES, key=lambda one: one.name in told):
            value = mean(cells, f"auroc_{name}", line.name, size)
            if value is None:
                continue
            mark = marks[str(line.loss)]
            colour = mark.light if line.name in told else "#9aa0a6"
            label = told.get(line.name, "a loss") if place == 0 else None
            axes.plot(
                [place], [100 * value], mark.marker if line.name in told else "_", color=colour, ms=6, label=label
            )
    axes.set_xticks(range(len(names)), list(names.values()), rotation=40, ha="right", fontsize=7)
    axes.set(ylabel="AUROC, %", title=f"{size} labels per class")


HOW = (
    f"Linear heads on frozen features; every loss has the same {TRIALS} trials of learning rate and weight decay, by "
    "cross-validation on labels that no final run uses. The temperature is fitted on predictions of the training rows "
    "by heads that did not see them (5 folds), the thresholds of the prediction sets likewise; no label is held out."
)
DETECTED = (
    "The out-of-distribution sets are those of each source, or of another of its kind: SVHN and another CIFAR for "
    "images, requests out of CLINC150's scope for texts. kNN and Mahalanobis read features alone, so the loss does not "
    "change them."
)
REMAINS = (
    "What remains of GenCE's calibration advantage after temperature scaling? Little: the calibration error of "
    "anchored GenCE is then 1.9 points below cross-entropy's, which is significant; that of plain GenCE 1.4 points, "
    "which is not. The NLLs do not differ significantly."
)
ENOUGH = 2
"""Settings with cross-entropy and both GenCE from which on the answer is given."""
ENTRIES = (
    Entry(
        name=STUDY, place=60, heading="After temperature scaling: what remains of a loss's calibration",
        view=scores_view, options=(), drawings=drawings, apart=GRID.apart,
    ),
    Entry(
        name=f"{STUDY}_detectors", place=61, heading="After temperature scaling: detectors", view=detectors_view,
        options=(), of=STUDY,
    ),
)  # fmt: skip
