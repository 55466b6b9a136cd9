"""Figures with all losses in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gence.lab.report.figures.svg import INK, LOSS_GID, MUTED, WIDE, Panel, Subject, new_figure, signed
from gence.lab.report.frame import PER_RUN, Predictions, by_seed, cells
from gence.lab.report.style import ACCURACY, Quantity, loss_title
from gence.lab.report.verdict import ALL_DIVERGED, MetricVerdict
from gence.metrics import student_critical

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 120
_DOTS_AT, _MEAN_AT = -0.14, 0.2  # rows above and below a loss's line: a mean drawn over the dots would hide them


def dots(subject: Subject, quantity: Quantity, section: str, name: str | None = None) -> Iterator[Panel]:
    """Draw a row per loss: a dot per seed, below them the mean with its 95 % t interval; nothing if no run has one."""
    found = [list(by_seed(subject.setting.frame, loss, quantity.metric).values()) for loss in subject.losses]
    if not any(found):
        return
    figure, ax = new_figure(WIDE, 0.8 + 0.36 * len(subject.losses))
    said = []
    for i, loss in enumerate(subject.losses):
        values = quantity.scaled(1.0) * np.array(found[i])
        if len(values):
            _row(ax, subject, i, values)
        mean = f"{values.mean():.{quantity.digits}f}" if len(values) else "missing"
        said.append((f"{loss_title(loss)} {mean}", len(values)))
    _name_rows(ax, subject, subject.losses)
    ax.set_xlabel(quantity.heading)
    yield Panel(
        name=name or quantity.metric,
        section=section,
        title=f"{quantity.title} by loss",
        description=_over_seeds(f"Mean {quantity.heading}", said),
        figure=figure,
    )


def differences(subject: Subject, found: MetricVerdict) -> Iterator[Panel]:
    """Draw each loss minus the reference, seed by seed; losses far from it are named at the edge, not drawn."""
    from matplotlib.ticker import MaxNLocator

    quantity, reference = found.quantity, found.reference
    base = by_seed(subject.setting.frame, reference, quantity.metric)
    values = {}
    for loss, comparison in found.comparisons.items():
        if comparison.outcome == ALL_DIVERGED:
            continue
        own = by_seed(subject.setting.frame, loss, quantity.metric)
        shared = sorted(own.keys() & base.keys())
        if shared:
            values[loss] = quantity.scaled(1.0) * np.array([own[s] - base[s] for s in shared])
    if not values:
        return
    losses = [loss for loss in subject.losses if loss in values]
    figure, ax = new_figure(WIDE, 0.8 + 0.36 * len(losses))
    limit = _limit(values)
    said = []
    for row, loss in enumerate(losses):
        mean = float(values[loss].mean())
        said.append((f"{loss_title(loss)} {signed(mean, quantity.digits)}", len(values[loss])))
        if abs(mean) <= limit:
            c = found.comparisons[loss]
            ends = (quantity.scaled(c.low), quantity.scaled(c.high)) if math.isfinite(c.low) else None
            _row(ax, subject, subject.losses.index(loss), values[loss], row, ends)
            continue
        number, gid = signed(mean, quantity.digits), f"{LOSS_GID}{subject.losses.index(loss)}"
        if mean > 0:
            ax.text(limit, row, f"{number} ▸", ha="right", va="center", color=MUTED, fontsize=9, gid=gid)
        else:
            ax.text(-limit, row, f"◂ {number}", ha="left", va="center", color=MUTED, fontsize=9, gid=gid)
    ax.axvline(0, color=INK, lw=1)
    ax.set_xlim(-limit * 1.04, limit * 1.04)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, symmetric=True))  # numbers as long as -0.0005 do not touch
    _name_rows(ax, subject, losses)
    ax.set_xlabel(f"{quantity.heading}: difference to {loss_title(reference)}")
    yield Panel(
        name=f"{quantity.metric}-difference",
        section="differences",
        title=f"{quantity.title}: difference to {loss_title(reference)}",
        description=_over_seeds(f"Mean difference in {quantity.heading}", said),
        figure=figure,
    )


def curves(
    subject: Subject, curve: str, label: str, section: str, *, scale: float = 1, log: bool = False
) -> Iterator[Panel]:
    """Draw a thick line a loss (mean over seeds) and a thin one a run, over the epochs."""
    from matplotlib.ticker import MaxNLocator

    if not any(np.isfinite(run).any() for loss in subject.losses for run in subject.gathered.curves(loss, curve)):
        return
    figure, ax = new_figure(WIDE, 3.6)
    said = []
    for i, loss in enumerate(subject.losses):
        runs = subject.gathered.curves(loss, curve)
        if not runs:
            continue
        at = subject.gathered.curves(loss, f"{curve}_epoch")
        epochs = 1 + np.arange(min(map(len, runs)))
        epochs = at[0][: len(epochs)].astype(int) if at else epochs
        table = scale * np.stack([run[: len(epochs)] for run in runs])
        # A drift of exactly 0 has no place on a logarithmic scale.
        table = np.maximum(table, 1e-6) if log else table
        kept = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), _MOST_POINTS)).round().astype(int))
        mark, gid = subject.marks[loss], f"{LOSS_GID}{i}"
        for run in table:
            ax.plot(epochs[kept], run[kept], color=mark.light, lw=0.6, alpha=0.35, gid=gid)
        mean = table.mean(axis=0)
        last = np.flatnonzero(np.isfinite(mean[kept]))[-1:]  # a run that diverged has no more numbers from there on
        ax.plot(epochs[kept], mean[kept], mark.line, color=mark.light, lw=1.8, gid=gid, marker=mark.marker,
                markevery=last.tolist(), ms=5, mew=0, label=loss_title(loss))  # fmt: skip
        said.append(f"{loss_title(loss)} {mean[-1]:.3g}" if np.isfinite(mean[-1]) else f"{loss_title(loss)} diverged")
    if log:
        _log_axis(ax)
    ax.set(xlabel="epoch", ylabel=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="y")
    _legend(figure, ax, subject)
    yield Panel(
        name=curve.replace("_", "-"),
        section=section,
        title=label,
        description=f"At the last epoch: {', '.join(said)}. Thick lines are means over seeds, thin ones runs.",
        figure=figure,
    )


def risk_coverage(subject: Subject, predictions: Predictions) -> Iterator[Panel]:
    """Draw the error rate among the most confident test samples against their share, a line per loss."""
    if not predictions:
        return
    figure, ax = new_figure(WIDE, 3.6)
    shares = np.linspace(0.05, 1, 96)
    said = []
    for i, loss in enumerate(subject.losses):
        runs = predictions.get(loss, ())
        if not runs:
            continue
        risk = 100 * np.mean([_risk(run, shares) for run in runs], axis=0)
        mark = subject.marks[loss]
        ax.plot(100 * shares, risk, mark.line, color=mark.light, lw=1.8, gid=f"{LOSS_GID}{i}", marker=mark.marker,
                markevery=[len(shares) - 1], ms=5, mew=0, label=loss_title(loss))  # fmt: skip
        said.append(f"{loss_title(loss)} {risk[np.argmin(abs(shares - 0.8))]:.1f}")
    ax.set(xlabel="coverage: share of samples answered, %", ylabel="errors among them, %", ylim=(0, None))
    ax.grid(axis="y")
    _legend(figure, ax, subject)
    yield Panel(
        name="risk-coverage",
        section="risk",
        title="Errors among the most confident samples",
        description=f"Errors in % at 80 % coverage: {', '.join(said)}.",
        figure=figure,
    )


def _risk(run: Mapping[str, np.ndarray], shares: np.ndarray) -> np.ndarray:
    """The error rate among each share of a run's samples, the most confident first; equal confidences share errors."""
    confidence, wrong = run["confidence"].astype(float), run["predicted"] != run["label"]
    order = np.argsort(-confidence, kind="stable")
    last = np.flatnonzero(np.append(np.diff(confidence[order]) != 0, True)) + 1  # samples through each group of ties
    errors = np.cumsum(wrong[order])[last - 1]
    answered = np.maximum(shares * len(wrong), 1)
    risk: np.ndarray = np.interp(answered, np.append(0, last), np.append(0, errors)) / answered
    return risk


def against(subject: Subject, whole: pd.DataFrame, column: str, name: str, label: str) -> Iterator[Panel]:
    """Draw accuracy against one axis of the grid, all else as in this setting; nothing if it has one value."""
    like = _like(subject, whole, column)
    if like[column].nunique() < 2:
        return
    figure, ax = new_figure(WIDE, 3.6)
    found = cells(like, ["loss", column], ACCURACY.metric)
    said = []
    for i, loss in enumerate(subject.losses):
        if loss not in found.index:
            continue
        part = found.loc[loss].sort_index()
        mark = subject.marks[loss]
        mean, std = ACCURACY.scaled(1.0) * part["mean"], ACCURACY.scaled(1.0) * part["std"].fillna(0)
        bars = ax.errorbar(
            part.index.astype(float), mean, yerr=std, fmt=mark.line, marker=mark.marker, color=mark.light, ms=5,
            capsize=2, lw=1.6, label=loss_title(loss),
        )  # fmt: skip
        for artist in bars.get_children():
            artist.set_gid(f"{LOSS_GID}{i}")
        said.append(f"{loss_title(loss)} {mean.iloc[0]:.1f} to {mean.iloc[-1]:.1f}")
    ticks = sorted(like[column].astype(float).unique())
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_xticks([], minor=True)
    ax.set(xlabel=label, ylabel="Accuracy, %")
    ax.grid(axis="y")
    _legend(figure, ax, subject)
    yield Panel(
        name=f"accuracy-by-{name}",
        section="sweeps",
        title=f"Accuracy against {label.lower()}",
        description=f"From {ticks[0]:g} to {ticks[-1]:g}: {', '.join(said)}.",
        figure=figure,
    )


def _over_seeds(what: str, said: Sequence[tuple[str, int]]) -> str:
    """Return means in words with their numbers of seeds, which appear once where all have the same.

    >>> _over_seeds("Mean Accuracy", [("GenCE 36.1", 2), ("CE 39.6", 4), ("MAE missing", 0)])
    'Mean Accuracy: GenCE 36.1 (2 seeds), CE 39.6 (4 seeds), MAE missing.'
    """
    counts = {n for _, n in said if n}
    if len(counts) == 1:
        return f"{what} over {_seeds(*counts)}: {', '.join(text for text, _ in said)}."
    return f"{what}: {', '.join(f'{text} ({_seeds(n)})' if n else text for text, n in said)}."


def _seeds(n: int) -> str:
    return f"{n} {'seed' if n == 1 else 'seeds'}"


def _row(
    ax: Axes,
    subject: Subject,
    i: int,
    values: np.ndarray,
    row: int | None = None,
    ends: tuple[float, float] | None = None,
) -> None:
    """Draw a loss's seeds, their mean, and its interval: `ends`, or Student's t."""
    row = i if row is None else row
    mark, gid = subject.marks[subject.losses[i]], f"{LOSS_GID}{i}"
    mean = float(values.mean())
    ax.plot(
        values, np.full(len(values), row + _DOTS_AT), mark.marker, color=mark.light, alpha=0.75, ms=6, mew=0, gid=gid
    )
    ax.plot([mean, mean], [row + _MEAN_AT - 0.12, row + _MEAN_AT + 0.12], color=INK, lw=2, gid=gid)
    if len(values) > 1:
        half = student_critical(0.05, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
        ax.plot(ends or (mean - half, mean + half), [row + _MEAN_AT] * 2, color=INK, lw=1, gid=gid)


def _name_rows(ax: Axes, subject: Subject, losses: tuple[str, ...] | list[str]) -> None:
    ax.set_yticks(range(len(losses)), [loss_title(loss) for loss in losses])
    for label, loss in zip(ax.get_yticklabels(), losses, strict=True):
        label.set_gid(f"{LOSS_GID}{subject.losses.index(loss)}")
    ax.set_ylim(len(losses) - 0.5, -0.5)
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)


def _limit(values: dict[str, np.ndarray]) -> float:
    """Return where the axis ends: at what the GenCE losses need, so that a loss that failed does not squash them."""
    reach = {}
    for loss, found in values.items():
        half = student_critical(0.05, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0
        reach[loss] = max(float(np.abs(found).max()), abs(float(found.mean())) + float(half))
    ours = [reach[loss] for loss in values if loss.startswith("gence")]
    return 1.15 * (max(ours) if ours else max(reach.values())) or 1.0


def _log_axis(ax: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    # The usual labels are formulas, and formulas are off: a class may be called "$x$".
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    low, high = ax.get_ylim()
    if high < 100 * low:  # powers of ten alone would leave one label or none
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _legend(figure: Figure, ax: Axes, subject: Subject) -> None:
    handles, labels = ax.get_legend_handles_labels()
    titles = [loss_title(loss) for loss in subject.losses]
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8.5, handlelength=2.4)
    for shown, text, label in zip(legend.legend_handles, legend.get_texts(), labels, strict=True):
        gid = f"{LOSS_GID}{titles.index(label)}"
        text.set_gid(gid)
        if shown is not None:
            shown.set_gid(gid)


def _like(subject: Subject, whole: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows that differ from a setting in one column, loss and seed alone.

    Each loss may have been tuned again for each value of the column. Where one has several rates for the same seed and
    value, those of the setting are taken.
    """
    first = subject.setting.frame.iloc[0]
    fixed = [c for c in whole.columns if c in ("data", "model", "image_size") or c.startswith(("subset.", "recipe."))]
    same = whole["loss"].isin(subject.losses) & whole[column].notna()
    for name in fixed:
        if name not in (column, *PER_RUN):
            missing = first[name] is None or first[name] != first[name]
            same &= whole[name].isna() if missing else whole[name] == first[name]
    found = whole[same]
    if not found.duplicated(["loss", "seed", column]).any():
        return found
    own = subject.setting.frame[["loss", *PER_RUN]].drop_duplicates()
    return found.merge(own, on=["loss", *PER_RUN])
