"""From records to rows: one tidy frame, from which every table, figure and verdict is made."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gence.lab.report.style import Quantity, loss_order
from gence.lab.spec import PER_RUN_FIELDS
from gence.lab.store import Record, Store

if TYPE_CHECKING:
    import pandas as pd

_WHERE = ("data", "model", "image_size", "ood")
PER_RUN = tuple(sorted(f"recipe.{name}" for name in PER_RUN_FIELDS))
"""The columns that tuning sets, in which the losses of a setting may differ."""


def load_rows(
    store: Store | str | os.PathLike[str], *, keys: Iterable[str] | None = None, evaluate_on: str = "test"
) -> pd.DataFrame:
    """Return one row per run: the spec's fields, status, commit and every metric.

    Args:
        store: the store, or its folder.
        keys: the runs to take, as far as they exist; all by default.
        evaluate_on: "test", or "val" for the runs of a tuning.
    """
    store = Store.at(store, must_exist=True)
    frame = store.frame(None if keys is None else store.keys().intersection(keys))
    return frame[frame["evaluate_on"] == evaluate_on].reset_index(drop=True) if len(frame) else frame


def cells(frame: pd.DataFrame, by: Sequence[str], metric: str) -> pd.DataFrame:
    """Return mean, sample standard deviation and count of a metric for each cell.

    Runs without a number (the NLL of a run that diverged, or a metric that was not taken) do not enter mean and std;
    "runs" beside "n" says how many there were, so that a gap is seen. A diverged run's accuracy is a number and does
    enter: leaving it out would reward the loss that fails.

    Args:
        frame: rows of `load_rows`.
        by: the columns whose values make a cell, in the order of the index.
        metric: a column; a metric no run has gives cells with n = 0.

    Returns:
        A frame indexed by `by`, with the columns mean, std (NaN for n = 1), n and runs.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"loss": ["ce", "ce", "gence"], "accuracy": [0.5, 0.7, float("nan")]})
    >>> cells(rows, ["loss"], "accuracy").loc["gence", ["n", "runs"]].tolist()
    [0, 1]
    """
    import pandas as pd

    values = pd.to_numeric(frame[metric]) if metric in frame else pd.Series(math.nan, index=frame.index)
    table = frame[list(by)].assign(_value=values.where(values.abs() != math.inf))
    groups = table.groupby(list(by), dropna=False, sort=False)["_value"]
    return pd.DataFrame({"mean": groups.mean(), "std": groups.std(), "n": groups.count(), "runs": groups.size()})


def by_seed(frame: pd.DataFrame, loss: str, metric: str) -> dict[int, float]:
    """Return a loss's finite values of a metric by seed."""
    if metric not in frame:
        return {}
    own = (frame["loss"] == loss).to_numpy()
    seeds, values = frame["seed"].to_numpy()[own].astype(int), frame[metric].to_numpy()[own].astype(float)
    order = np.lexsort((values, seeds))
    order = order[np.isfinite(values[order])]
    return dict(zip(seeds[order].tolist(), values[order].tolist(), strict=True))


def losses_in(frame: pd.DataFrame) -> list[str]:
    """Return the losses of a frame in the order in which they are shown."""
    return sorted(frame["loss"].unique(), key=loss_order)


def never_trained(frame: pd.DataFrame) -> set[str]:
    """Return the losses of which every run diverged: their numbers are those of a broken network."""
    return {loss for loss, (diverged, runs) in diverged_runs(frame).items() if diverged == runs}


def diverged_runs(frame: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return, for each loss of which runs diverged, how many did and of how many, in the order of the losses."""
    statuses = {loss: frame.loc[frame["loss"] == loss, "status"] for loss in losses_in(frame)}
    counts = {loss: (int((own == "diverged").sum()), len(own)) for loss, own in statuses.items()}
    return {loss: count for loss, count in counts.items() if count[0]}


def with_every_seed(frame: pd.DataFrame, metric: str) -> list[str]:
    """Return the losses whose means of a metric can be compared: those with a number for every seed that any loss has.

    Losses of which every run diverged are not among them, nor do their seeds count.
    """
    found = {loss: by_seed(frame, loss, metric) for loss in _trained(frame)}
    seeds = {seed for own in found.values() for seed in own}
    return [loss for loss, own in found.items() if own.keys() == seeds]


def is_uneven(frame: pd.DataFrame, metric: str) -> bool:
    """Return whether some loss lacks a number of a metric for a seed that another loss has."""
    return len(with_every_seed(frame, metric)) < len(_trained(frame))


def best_losses(frame: pd.DataFrame, quantity: Quantity) -> tuple[str, ...]:
    """Return the losses with the best mean of those that have every seed.

    None where no two can be compared, because seeds are easier or harder: a loss is not better for having other ones.
    """
    whole = with_every_seed(frame, quantity.metric)
    if len(whole) < 2 and is_uneven(frame, quantity.metric):
        return ()
    values = {loss: by_seed(frame, loss, quantity.metric).values() for loss in whole}
    return quantity.best({loss: sum(own) / len(own) for loss, own in values.items() if own})


def _trained(frame: pd.DataFrame) -> list[str]:
    failed = never_trained(frame)
    return [loss for loss in losses_in(frame) if loss not in failed]


def is_frozen(frame: pd.DataFrame) -> bool:
    """Whether the runs of a setting are heads on features of a pretrained encoder that is not trained."""
    tuned = frame["recipe.tune_encoder"].fillna("none") if "recipe.tune_encoder" in frame else "none"
    return bool((frame["model"].str.contains("@") & (tuned == "none")).all())


def ood_sets(frame: pd.DataFrame) -> list[str]:
    """Return the names of the OOD sets that have an AUROC."""
    ending = "/auroc_entropy"
    names = [str(c) for c in frame.columns if str(c).startswith("ood/") and str(c).endswith(ending)]
    return [name.removeprefix("ood/").removesuffix(ending) for name in names if frame[name].notna().any()]


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that differ in loss and seed alone (and in what tuning gave each loss): what can be compared.

    Attributes:
        title: what this setting is, in words.
        frame: its rows.
    """

    title: str
    frame: pd.DataFrame


def settings(frame: pd.DataFrame) -> list[Setting]:
    """Return the settings of a frame, those with most runs first.

    Learning rate, weight decay and warm-up may differ between the losses of a setting, as after tuning; where one loss
    has several of them for the same seed, they are a sweep, and each value is a setting of its own. Losses that share
    no value with another are then taken together, as tuned, if each has but one.
    """
    if not len(frame):
        return []
    fixed = [c for c in frame.columns if c in _WHERE or c.startswith("subset.") or _shared_recipe_field(c)]
    found = [part for _, rows in frame.groupby(fixed, dropna=False, sort=False) for part in _comparable(rows)]
    found.sort(key=lambda part: (-len(part[0]), _labels_of(part[0])))
    # What each loss was given by tuning differs inside a setting, so it cannot name one.
    alike = [[c for c in (*fixed, *PER_RUN) if rows[c].nunique(dropna=False) == 1] for rows, _ in found]
    words: dict[str, set[str]] = {}
    for (rows, _), columns in zip(found, alike, strict=True):
        for c in columns:
            words.setdefault(c, set()).add(_word(rows[c].iloc[0]))
    return [
        Setting(_title(rows, [c for c in columns if len(words[c]) > 1]) + note, rows.reset_index(drop=True))
        for (rows, note), columns in zip(found, alike, strict=True)
    ]


def _labels_of(rows: pd.DataFrame) -> float:
    """The number of labels of a setting, infinite for all."""
    n = rows["subset.n"].iloc[0]
    return math.inf if _word(n) == "none" else float(n)


def _comparable(rows: pd.DataFrame) -> list[tuple[pd.DataFrame, str]]:
    """Split runs that may differ in what tuning sets into settings, each with an addition to its title."""
    import pandas as pd

    if not rows.duplicated(["loss", "seed"]).any():
        return [(rows, "")]
    parts = [part for _, part in rows.groupby(list(PER_RUN), dropna=False, sort=False)]
    alone = [part for part in parts if part["loss"].nunique() == 1]
    if len(alone) < 2 or pd.concat(alone).duplicated(["loss", "seed"]).any():
        return [(part, "") for part in parts]
    together = [(part, "") for part in parts if part["loss"].nunique() > 1]
    return [*together, (pd.concat(alone), ", tuned")]


def _shared_recipe_field(column: str) -> bool:
    return column.startswith("recipe.") and column not in PER_RUN


def _title(rows: pd.DataFrame, differing: Sequence[str]) -> str:
    first = rows.iloc[0]
    labels = "all labels" if _word(first["subset.n"]) == "none" else f"{int(first['subset.n'])} labels"
    words = [str(first["data"]), labels, str(first["model"])]
    if _word(first["subset.rho"]) != "none":
        words.append(f"long tail {first['subset.rho']:g}")
    told = {"data", "subset.n", "model", "subset.rho"}
    words += [f"{c.rpartition('.')[2].replace('_', ' ')} {_word(first[c])}" for c in differing if c not in told]
    return ", ".join(words)


def _word(value: object) -> str:
    """Return a field's value as text; absent values, whatever pandas made of them, are "none"."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class TunedBefore:
    """What tuning found for a loss of a setting.

    Attributes:
        trials: how many it had.
        value: the best mean on held-out training labels.
        metric: of which this is the value.
        how: how rows were held out.
    """

    trials: int
    value: float
    metric: str
    how: str


def read_tuned(store: Store, setting: Setting) -> dict[str, TunedBefore]:
    """Return what a store keeps of the tuning of a setting's losses, by loss."""
    of, found = _setting_of(setting), {}
    for place in sorted((store.root / "heads").glob("*.json")):
        try:
            kept = json.loads(place.read_bytes())
            loss = kept["of"].pop("loss")
            if kept["of"].items() <= of.items():
                value, how = float(kept["best"]["accuracy"]), f"{kept['folds']}-fold cross-validation"
                found[loss] = TunedBefore(trials=len(kept["trials"]), value=value, metric="accuracy", how=how)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged, or of an earlier version
            continue
    for place in sorted((store.root / "tuned").glob("*.json")):
        try:
            kept = json.loads(place.read_bytes())
            base = kept["base"]
            own = {"data": base["data"], "n": base["subset"]["n"], "image_size": base["image_size"]}
            if base["model"] != setting.frame["model"].iloc[0] or not own.items() <= of.items():
                continue
            for one in kept["best"]:
                found[one["changes"]["loss"]] = TunedBefore(
                    trials=int(one["trials"]), value=float(one["value"]), metric=one["metric"],
                    how="a held-out part of the training labels",
                )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return {loss: found[loss] for loss in losses_in(setting.frame) if loss in found}


def _setting_of(setting: Setting) -> dict[str, Any]:
    """Return what names a setting in the files that a store keeps beside its records."""
    first = setting.frame.iloc[0]
    n = None if _word(first["subset.n"]) == "none" else int(first["subset.n"])
    size = None if _word(first["image_size"]) == "none" else int(first["image_size"])
    encoder = str(first["model"]).partition("@")[2]
    return {"data": str(first["data"]), "n": n, "encoder": encoder, "image_size": size}


def read_references(store: Store, setting: Setting) -> list[dict[str, Any]]:
    """Return what a store keeps of references for a setting: name, seed, what was chosen, and metrics, row by row."""
    of = _setting_of(setting)
    found: list[dict[str, Any]] = []
    for place in sorted((store.root / "references").glob("*.json")):
        try:
            kept = json.loads(place.read_bytes())
            found += kept["rows"] if kept["of"].items() <= of.items() else []
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # a damaged file: made again by the next comparison
            continue
    return found


Predictions = Mapping[str, Sequence[Mapping[str, np.ndarray]]]
"""Of each loss, the stored predictions of its runs; losses without any are absent."""

_BINS = 24  # of a small figure; records have more


@dataclass(frozen=True, kw_only=True)
class SettingRecords:
    """The records of one setting, by loss and in the order of their seeds.

    Attributes:
        losses: the losses in the order in which they are shown.
        records: the records of each.
    """

    losses: tuple[str, ...]
    records: dict[str, list[Record]] = field(default_factory=dict)

    def curves(self, loss: str, name: str) -> list[np.ndarray]:
        """Return a curve of each run of a loss that has it."""
        found = (record.result.curves.get(name) for record in self.records[loss])
        return [np.asarray(curve, dtype=float) for curve in found if curve]

    def tables(self, loss: str, name: str) -> list[Any]:
        """Return a table of each run of a loss that has it."""
        found = (record.result.tables.get(name) for record in self.records[loss])
        return [table for table in found if table]

    def has(self, name: str) -> bool:
        """Return whether any run has this table."""
        return any(self.tables(loss, name) for loss in self.losses)


def read_setting(store: Store, setting: Setting) -> SettingRecords:
    """Read the records of a setting."""
    losses = losses_in(setting.frame)
    records: dict[str, list[Record]] = {loss: [] for loss in losses}
    for loss, key in _by_seed(setting):
        records[loss].append(store.read(key))
    return SettingRecords(losses=tuple(losses), records=records)


def pooled_reliability(tables: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return count, mean confidence and accuracy of each bin, pooled over runs; NaN where a bin is empty."""
    counts = np.sum([table["count"] for table in tables], axis=0).astype(float)
    pooled = []
    for name in ("confidence", "accuracy"):
        weighted = [np.nan_to_num(_numbers(table[name])) * np.asarray(table["count"], dtype=float) for table in tables]
        with np.errstate(invalid="ignore"):
            pooled.append(np.sum(weighted, axis=0) / np.where(counts > 0, counts, np.nan))
    return counts, pooled[0], pooled[1]


def pooled_histogram(histograms: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return edges, and the shares of ID and OOD inputs in each bin, as the mean over runs on common edges.

    Runs bin between their own smallest and largest score; each is spread evenly inside its bins onto common ones.
    """
    low = min(h["edges"][0] for h in histograms)
    high = max(h["edges"][-1] for h in histograms)
    edges = np.linspace(low, max(high, low + 1e-9), _BINS + 1)
    shares = []
    for name in ("id", "ood"):
        runs = []
        for h in histograms:
            cumulative = np.concatenate([[0.0], np.cumsum(np.asarray(h[name], dtype=float))])
            total = max(cumulative[-1], 1.0)
            runs.append(np.diff(np.interp(edges, np.asarray(h["edges"], dtype=float), cumulative)) / total)
        shares.append(np.mean(runs, axis=0))
    return edges, shares[0], shares[1]


def _numbers(values: Iterable[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _by_seed(setting: Setting) -> list[tuple[str, str]]:
    rows = setting.frame.sort_values("seed")
    return list(zip(rows["loss"], rows["key"], strict=True))
