"""The figures of a report, drawn once with matplotlib; files and page show the same drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gence.metrics.student import student_critical
from gence.report.aggregate import Setting, by_seed, cells, ood_sets
from gence.report.gathered import Gathered, pooled_histogram, pooled_reliability
from gence.report.names import Mark, loss_title, marks_for
from gence.report.quantities import ACCURACY, MAIN, Quantity, auroc_of
from gence.report.svg import GRID, INK, LOSS_GID, figure_style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, SMALL = (4.4, 3.1), (2.7, 2.7)
"""Inches of a figure with all losses, and of one of a row of small ones: both are readable on a phone."""
_MOST_POINTS = 120
_MOST_CLASSES = 20


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One drawing.

    Attributes:
        name: a name for files: small letters, digits and hyphens.
        section: the part of the report it stands in.
        title: what it shows.
        description: what is to be seen, with numbers, for whoever does not see it.
        figure: the drawing.
        loss: the loss it belongs to; None if all are in it.
    """

    name: str
    section: str
    title: str
    description: str
    figure: Figure
    loss: str | None = None


def panels(setting: Setting, gathered: Gathered, whole: pd.DataFrame, classes: Sequence[str] = ()) -> list[Panel]:
    """Draw everything a setting has data for.

    Args:
        setting: the setting.
        gathered: its records.
        whole: the rows of all settings, for figures against number of labels and batch size.
        classes: names of the classes, where they are known.
    """
    import matplotlib

    # Ticks and texts take their style when they are made, so the whole drawing happens inside.
    with matplotlib.rc_context(figure_style()):
        return list(_all_panels(_Drawing(setting, gathered, marks_for(gathered.losses), classes), whole))


def _all_panels(drawing: _Drawing, whole: pd.DataFrame) -> Iterator[Panel]:
    for quantity in MAIN:
        yield drawing.dots(quantity, "numbers")
    yield from drawing.each_loss("reliability", drawing.reliability)
    yield from drawing.against(whole, "subset.n", "labels", "Number of labels")
    yield from drawing.against(whole, "recipe.batch_size", "batch", "Batch size")
    for number, ood in enumerate(ood_sets(drawing.setting.frame), 1):
        yield drawing.dots(auroc_of(ood), "ood", f"auroc-{number}")
        yield from drawing.each_loss(
            "ood_histograms", lambda i, ax, o=ood: drawing.histogram(i, ax, o), f"ood-{number}"
        )
    yield from drawing.curves("train_accuracy", "Training accuracy, %", "learning", scale=100)
    yield from drawing.curves("train_loss", "Training loss (own unit of each)", "learning", log=True)
    yield from drawing.curves("marginal_kl", "KL(prior ‖ predicted marginal), nats", "drift", log=True)
    yield from drawing.each_loss("marginal", drawing.marginal)
    yield from drawing.each_loss("confusion", drawing.confusion)


@dataclass(frozen=True, eq=False)
class _Drawing:
    setting: Setting
    gathered: Gathered
    marks: dict[str, Mark]
    classes: Sequence[str]

    def dots(self, quantity: Quantity, section: str, name: str | None = None) -> Panel:
        """A row a loss, a dot a seed, a bar for the mean and a line for its 95 % t interval."""
        losses = self.gathered.losses
        figure, ax = _figure((WIDE[0], 0.8 + 0.34 * len(losses)))
        said = []
        for i, loss in enumerate(losses):
            values = quantity.scaled(1.0) * np.array(list(by_seed(self.setting.frame, loss, quantity.metric).values()))
            if not len(values):
                said.append(f"{loss_title(loss)} missing")
                continue
            mark, gid = self.marks[loss], f"{LOSS_GID}{i}"
            mean = float(values.mean())
            ax.plot(values, np.full(len(values), i), mark.marker, color=mark.light, alpha=0.65, ms=6, mew=0, gid=gid)
            ax.plot([mean, mean], [i - 0.3, i + 0.3], color=INK, lw=2, gid=gid)
            if len(values) > 1:
                half = student_critical(0.05, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
                ax.plot([mean - half, mean + half], [i, i], color=INK, lw=1, gid=gid)
            said.append(f"{loss_title(loss)} {mean:.{quantity.digits}f} (n = {len(values)})")
        ax.set_yticks(range(len(losses)), [loss_title(loss) for loss in losses])
        for i, label in enumerate(ax.get_yticklabels()):
            label.set_gid(f"{LOSS_GID}{i}")
        ax.invert_yaxis()
        ax.set_ylim(len(losses) - 0.5, -0.5)
        ax.grid(axis="x")
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel(quantity.heading)
        return Panel(
            name=name or quantity.metric,
            section=section,
            title=f"{quantity.title} by loss",
            description=f"Mean {quantity.heading}: {', '.join(said)}. Dots are seeds, lines 95 % t intervals.",
            figure=figure,
        )

    def each_loss(
        self, table: str, draw: Callable[[int, Axes], str | None], name: str | None = None
    ) -> Iterator[Panel]:
        """One small drawing a loss, for those whose runs have the table; `draw` returns what is to be seen."""
        for i, loss in enumerate(self.gathered.losses):
            if not self.gathered.tables(loss, table):
                continue
            figure, ax = _figure(SMALL)
            seen = draw(i, ax)
            if seen is None:
                continue
            ax.set_title(loss_title(loss))
            yield Panel(
                name=f"{name or table}-{i + 1}",
                section="ood" if table == "ood_histograms" else table,
                title=f"{_SMALL_TITLES[table]}: {loss_title(loss)}",
                description=seen,
                figure=figure,
                loss=loss,
            )

    def reliability(self, i: int, ax: Axes) -> str | None:
        """Accuracy against confidence, bin by bin, over all seeds; the strip below is where predictions are."""
        loss = self.gathered.losses[i]
        counts, confidence, accuracy = pooled_reliability(self.gathered.tables(loss, "reliability"))
        edges = np.linspace(0, 1, len(counts) + 1)
        share = counts / max(counts.sum(), 1)
        filled = counts > 0
        ax.bar(edges[:-1][filled], accuracy[filled], np.diff(edges)[filled], align="edge", color=self.marks[loss].light,
               alpha=0.8, edgecolor="none")  # fmt: skip
        ax.bar(edges[:-1], 0.3 * share / max(share.max(), 1e-9), np.diff(edges), align="edge", bottom=0, color=INK,
               alpha=0.35, edgecolor="none")  # fmt: skip
        ax.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
        gap = float(np.nansum(share[filled] * (confidence - accuracy)[filled]))
        lean = (
            "overconfident" if gap > 0.005 else "underconfident" if gap < -0.005 else "neither over- nor underconfident"
        )
        return f"On average {lean}: confidence minus accuracy is {100 * gap:+.1f} points."

    def histogram(self, i: int, ax: Axes, ood: str) -> str | None:
        """Shares of ID and OOD inputs by negative entropy."""
        loss = self.gathered.losses[i]
        found = [t[f"{ood}/entropy"] for t in self.gathered.tables(loss, "ood_histograms") if f"{ood}/entropy" in t]
        if not found:
            return None
        edges, inside, outside = pooled_histogram(found)
        ax.stairs(inside, edges, fill=True, color=self.marks[loss].light, alpha=0.7, label="in")
        ax.stairs(outside, edges, color=INK, lw=1.4, label="out")
        ax.set(xlabel="negative entropy", ylabel="share", yticks=[])
        ax.legend(loc="upper left", fontsize=9)
        auroc = list(by_seed(self.setting.frame, loss, auroc_of(ood).metric).values())
        return (
            f"In- and out-of-distribution inputs ({ood}) by negative entropy; mean AUROC {100 * np.mean(auroc):.1f} %."
        )

    def marginal(self, i: int, ax: Axes) -> str | None:
        """The predicted class marginal of each run (points) against the class distribution (bars)."""
        loss = self.gathered.losses[i]
        marginals = [np.array(m, dtype=float) for m in self.gathered.tables(loss, "marginal")]
        prior = np.array(self.gathered.tables(loss, "prior")[0], dtype=float)
        at = np.arange(len(prior))
        ax.bar(at, prior, color=GRID, width=0.8)
        for marginal in marginals:
            ax.plot(at, marginal, self.marks[loss].marker, color=self.marks[loss].light, ms=3.5, mew=0, alpha=0.7)
        ax.set(xlabel="class", ylabel="share", ylim=(0, None))
        self._class_ticks(ax.set_xticks, len(prior))
        gap = max(float(np.abs(m - prior).sum() / 2) for m in marginals)
        return (
            f"Largest distance of a run's marginal from the class distribution: {100 * gap:.1f} % of the predictions."
        )

    def confusion(self, i: int, ax: Axes) -> str | None:
        """Shares of each true class by predicted class, over all seeds."""
        from matplotlib.colors import LinearSegmentedColormap

        loss = self.gathered.losses[i]
        total = np.sum(self.gathered.tables(loss, "confusion"), axis=0).astype(float)
        shares = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
        shades = LinearSegmentedColormap.from_list("share", ["#ffffff", self.marks[loss].light])
        ax.imshow(shares, cmap=shades, vmin=0, vmax=1, interpolation="nearest")
        for true, predicted in np.argwhere(shares >= 0.005) if len(shares) <= 10 else []:
            share = shares[true, predicted]
            colour = "#ffffff" if share > 0.6 else "#000000"
            ax.text(predicted, true, f"{100 * share:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
        ax.set(xlabel="predicted", ylabel="true")
        self._class_ticks(ax.set_xticks, len(shares))
        self._class_ticks(ax.set_yticks, len(shares))
        off = shares - np.diag(np.diag(shares))
        true, predicted = np.unravel_index(int(off.argmax()), off.shape)
        return (
            f"Most often confused: {self._class_name(int(true))} taken for {self._class_name(int(predicted))} in "
            f"{100 * off.max():.0f} % of its images."
        )

    def curves(self, curve: str, label: str, section: str, *, scale: float = 1, log: bool = False) -> Iterator[Panel]:
        """A thick line a loss (mean over seeds) and a thin one a run, over the epochs."""
        if not any(self.gathered.curves(loss, curve) for loss in self.gathered.losses):
            return
        figure, ax = _figure(WIDE)
        said = []
        for i, loss in enumerate(self.gathered.losses):
            runs = self.gathered.curves(loss, curve)
            if not runs:
                continue
            epochs = 1 + np.arange(min(map(len, runs)))
            table = scale * np.stack([run[: len(epochs)] for run in runs])
            # A drift of exactly 0 has no place on a logarithmic scale.
            table = np.maximum(table, 1e-6) if log else table
            kept = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), _MOST_POINTS)).round().astype(int))
            mark, gid = self.marks[loss], f"{LOSS_GID}{i}"
            for run in table:
                ax.plot(epochs[kept], run[kept], color=mark.light, lw=0.6, alpha=0.35, gid=gid)
            mean = table.mean(axis=0)
            ax.plot(epochs[kept], mean[kept], mark.line, color=mark.light, lw=1.8, gid=gid)
            ax.plot(epochs[-1:], mean[-1:], mark.marker, color=mark.light, ms=5, mew=0, gid=gid)
            said.append(f"{loss_title(loss)} {mean[-1]:.3g}")
        ax.set(xlabel="epoch", ylabel=label, yscale="log" if log else "linear")
        ax.grid(axis="y")
        yield Panel(
            name=curve.replace("_", "-"),
            section=section,
            title=label,
            description=f"At the last epoch: {', '.join(said)}. Thick lines are means over seeds, thin ones runs.",
            figure=figure,
        )

    def against(self, whole: pd.DataFrame, column: str, name: str, label: str) -> Iterator[Panel]:
        """Accuracy against one axis of the grid, all else as in this setting."""
        like = _like(self.setting, whole, column)
        if like[column].nunique() < 2:
            return
        figure, ax = _figure(WIDE)
        found = cells(like, ["loss", column], ACCURACY.metric)
        said = []
        for i, loss in enumerate(self.gathered.losses):
            part = found.loc[loss].sort_index()
            mark = self.marks[loss]
            bars = ax.errorbar(
                part.index.astype(float), 100 * part["mean"], yerr=100 * part["std"].fillna(0), fmt=mark.line,
                marker=mark.marker, color=mark.light, ms=5, capsize=2, lw=1.6,
            )  # fmt: skip
            for artist in bars.get_children():
                artist.set_gid(f"{LOSS_GID}{i}")
            ends = (100 * part["mean"].iloc[0], 100 * part["mean"].iloc[-1])
            said.append(f"{loss_title(loss)} {ends[0]:.1f} to {ends[1]:.1f}")
        ax.set_xscale("log")
        ticks = sorted(like[column].astype(float).unique())
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.set_xticks([], minor=True)
        ax.set(xlabel=label, ylabel="Accuracy, %")
        ax.grid(axis="y")
        yield Panel(
            name=f"accuracy-by-{name}",
            section="sweeps",
            title=f"Accuracy against {label.lower()}",
            description=f"From {ticks[0]:g} to {ticks[-1]:g}: {', '.join(said)}. Bars are standard deviations over seeds.",
            figure=figure,
        )

    def _class_name(self, k: int) -> str:
        return self.classes[k] if k < len(self.classes) else str(k)

    def _class_ticks(self, put: Callable[..., Any], count: int) -> None:
        short = [_shortened(self._class_name(k)) for k in range(count)]
        if count > _MOST_CLASSES:
            put([0, count - 1], ["0", str(count - 1)])
        elif max(map(len, short)) > 2 and put.__name__ == "set_xticks":
            put(range(count), short, rotation=90, fontsize=8)
        else:
            put(range(count), short, fontsize=8)


_SMALL_TITLES = {
    "reliability": "Reliability diagram",
    "ood_histograms": "Scores in and out of distribution",
    "marginal": "Predicted marginal at the end",
    "confusion": "Confusion matrix",
}


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    # Not pyplot: figures made there stay in memory, and its backend is the user's.
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def _like(setting: Setting, whole: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows that differ from a setting in one column, loss and seed alone."""
    first = setting.frame.iloc[0]
    fixed = [c for c in whole.columns if c in ("data", "model", "image_size") or c.startswith(("subset.", "recipe."))]
    same = whole["loss"].isin(set(setting.frame["loss"]))
    for name in fixed:
        if name != column:
            values = whole[name]
            same &= values.isna() if first[name] is None or first[name] != first[name] else values == first[name]
    return whole[same & whole[column].notna()]


def _shortened(name: str, most: int = 12) -> str:
    name = " ".join(name.split())
    return name if len(name) <= most else name[: most - 1] + "…"
