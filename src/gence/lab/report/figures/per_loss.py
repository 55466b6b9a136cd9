"""Small figures, one a loss, that stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gence.lab.report.figures.svg import GRID, INK, SMALL, Panel, Subject, new_figure, signed
from gence.lab.report.frame import by_seed, pooled_histogram, pooled_reliability
from gence.lab.report.style import auroc_of, loss_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CLASSES = 20
_MATRIX = 3.9
"""Inches: a confusion matrix has names and numbers, and needs more room than the other small figures."""


def reliability(subject: Subject) -> Iterator[Panel]:
    """Draw accuracy against confidence, bin by bin, over all seeds; the bars below say where predictions are."""
    for i, loss in enumerate(subject.losses):
        found = subject.gathered.tables(loss, "reliability")
        if not found:
            continue
        figure, ax = _small(loss)
        counts, confidence, accuracy = pooled_reliability(found)
        edges = np.linspace(0, 1, len(counts) + 1)
        share, width = counts / max(counts.sum(), 1), 1 / len(counts)
        filled = counts > 0
        colour = subject.marks[loss].light
        ax.bar(edges[:-1][filled], accuracy[filled], width, align="edge", color=colour, alpha=0.8, lw=0)
        ax.bar(edges[:-1], 0.3 * share / max(share.max(), 1e-9), width, align="edge", color=INK, alpha=0.35, lw=0)
        ax.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
        calibrated = subject.gathered.tables(loss, "calibrated_reliability")
        if calibrated:
            after, at, reached = pooled_reliability(calibrated)
            kept = after > 0
            ax.plot(at[kept], reached[kept], "o", color=INK, mfc="none", ms=4, mew=1)
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
        ax.set_xticks([0, 0.5, 1])
        gap = 100 * float(np.sum((share * (confidence - accuracy))[filled]))
        lean = "overconfident" if gap > 0.5 else "underconfident" if gap < -0.5 else "neither over- nor underconfident"
        seen = f"On average {lean}: confidence minus accuracy is {signed(gap)} points."
        if calibrated:
            share = after / max(after.sum(), 1)
            seen += f" After calibration it is {signed(100 * float(np.sum((share * (at - reached))[kept])))}."
        yield _panel("reliability", i, loss, "Reliability diagram", seen, figure)


def ood_histograms(subject: Subject, ood: str, number: int) -> Iterator[Panel]:
    """Draw the shares of inputs from the test set and out-of-distribution by negative entropy."""
    for i, loss in enumerate(subject.losses):
        tables = subject.gathered.tables(loss, "ood_histograms")
        found = [table[f"{ood}/entropy"] for table in tables if f"{ood}/entropy" in table]
        if not found:
            continue
        figure, ax = _small(loss)
        edges, inside, outside = pooled_histogram(found)
        ax.stairs(inside, edges, fill=True, color=subject.marks[loss].light, alpha=0.7, label="test set")
        ax.stairs(outside, edges, color=INK, lw=1.4, label="elsewhere")
        ax.set(xlabel="negative entropy", ylabel="share of inputs")
        ax.margins(y=0.3)  # room for the legend
        ax.legend(loc="upper left", fontsize=8.5)
        auroc = list(by_seed(subject.setting.frame, loss, auroc_of(ood).metric).values())
        seen = f"{ood}: mean AUROC {100 * np.mean(auroc):.1f} % (n = {len(auroc)})."
        yield _panel("ood", i, loss, f"Scores on the test set and on {ood}", seen, figure, f"ood-{number}")


def marginal(subject: Subject) -> Iterator[Panel]:
    """Draw the predicted class marginal of each run (marks) against the class distribution (bars)."""
    for i, loss in enumerate(subject.losses):
        marginals = [np.array(m, dtype=float) for m in subject.gathered.tables(loss, "marginal")]
        priors = subject.gathered.tables(loss, "prior")
        if not marginals or not priors:
            continue
        figure, ax = _small(loss)
        prior = np.array(priors[0], dtype=float)
        at, mark = np.arange(len(prior)), subject.marks[loss]
        ax.bar(at, prior, color=GRID, width=0.8)
        for found in marginals:
            ax.plot(at, found, mark.marker, color=mark.light, ms=3.5, mew=0, alpha=0.8)
        ax.set(xlabel="class", ylabel="share", ylim=(0, None))
        _class_ticks(subject, ax.set_xticks, len(prior), upright=True)
        gap = max(float(np.abs(found - prior).sum() / 2) for found in marginals)
        seen = f"Largest distance of a run's marginal from the class distribution: {100 * gap:.1f} % of predictions."
        yield _panel("marginal", i, loss, "Predicted marginal at the end", seen, figure)


def confusion(subject: Subject) -> Iterator[Panel]:
    """Draw the shares of each true class by predicted class, over all seeds."""
    from matplotlib.colors import to_rgb

    for i, loss in enumerate(subject.losses):
        tables = subject.gathered.tables(loss, "confusion")
        if not tables:
            continue
        figure, ax = new_figure(_MATRIX, _MATRIX)
        ax.set_title(loss_title(loss))
        total = np.sum(tables, axis=0).astype(float)
        shares = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
        # Opacity, not paleness: an empty cell shows the page, be it light or dark.
        shades = np.empty((*shares.shape, 4))
        shades[..., :3], shades[..., 3] = to_rgb(subject.marks[loss].light), shares
        ax.imshow(shades, interpolation="nearest")
        few = len(shares) <= 10
        for true, predicted in np.argwhere(shares >= (0.005 if few else 0.05)) if len(shares) <= _MOST_CLASSES else ():
            share = shares[true, predicted]
            colour = "#ffffff" if share > 0.6 else INK
            ax.text(
                predicted,
                true,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                fontsize=8.5 if few else 5.5,
                color=colour,
            )
        ax.set(xlabel="predicted", ylabel="true")
        _class_ticks(subject, ax.set_xticks, len(shares), upright=True)
        _class_ticks(subject, ax.set_yticks, len(shares))
        wrong = shares - np.diag(np.diag(shares))
        true, predicted = (int(k) for k in np.unravel_index(int(wrong.argmax()), wrong.shape))
        seen = (
            f"Most often confused: {subject.class_name(true)} is taken for {subject.class_name(predicted)} in "
            f"{100 * wrong.max():.0f} % of its samples."
        )
        yield _panel("confusion", i, loss, "Confusion matrix", seen, figure)


def _small(loss: str) -> tuple[Figure, Axes]:
    figure, ax = new_figure(SMALL, SMALL)
    ax.set_title(loss_title(loss))
    return figure, ax


def _panel(section: str, i: int, loss: str, title: str, seen: str, figure: Figure, name: str | None = None) -> Panel:
    return Panel(
        name=f"{name or section}-{i + 1}",
        section=section,
        title=f"{title}: {loss_title(loss)}",
        description=seen,
        figure=figure,
        loss=loss,
    )


def _class_ticks(subject: Subject, put: Callable[..., Any], count: int, *, upright: bool = False) -> None:
    """Name the classes on an axis: long names short, and beyond 20 classes only the first and last number."""
    if count > _MOST_CLASSES:
        put([0, count - 1], ["0", str(count - 1)])
        return
    names = [_shortened(subject.class_name(k)) for k in range(count)]
    turned = {"rotation": 90} if upright and max(map(len, names)) > 2 else {}
    put(range(count), names, fontsize=8, **turned)


def _shortened(name: str, most: int = 12) -> str:
    name = " ".join(name.split())
    return name if len(name) <= most else name[: most - 1] + "…"
