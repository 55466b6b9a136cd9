"""The trials of one loss, which Optuna keeps in a journal beside the records, and their runs."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gence.lab.spec import LossSpec, RunSpec, SpecError, canonical_json, check_choice
from gence.lab.store import Store, StoreError
from gence.lab.sweep.search import suggest_changes

if TYPE_CHECKING:
    import optuna

METRICS = {"accuracy": ("maximize", 0.0), "nll": ("minimize", 1e6)}
"""What can be tuned for: the direction, and what a run that diverged counts as."""

_STUDY_LAYOUT = 2
_CHANGES = "changes"
_log = logging.getLogger("gence.lab.sweep")


@dataclass(frozen=True, kw_only=True)
class TunedLoss:
    """The best trial of a loss.

    Attributes:
        asked: the loss as it was asked for.
        changes: what the trial changed in the base: rate, weight decay, warm-up and the loss's own parameters.
        value: the metric on the held-out part, mean over the tuning seeds.
        trials: how many trials the loss has had; pruned ones count.
        pruned: how many of them were pruned.
        metric: what was tuned for.
        budget: how many trials the loss was to have; None if that is not known.
        complete: whether it had them all.
    """

    asked: LossSpec
    changes: dict[str, Any]
    value: float
    trials: int
    pruned: int
    metric: str = "accuracy"
    budget: int | None = None
    complete: bool = True


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """How trials are judged; a study with other settings is another study.

    Attributes:
        trials: trials for each loss.
        seeds: seeds over which a trial's value is the mean.
        val_fraction: the part of the small training set that is held out.
        metric: "accuracy" or "nll", on the held-out part.
        rungs: fractions of the epochs at which a trial is judged; (1.0,) never prunes. From one to the next as many
            times fewer trials continue as the epochs are more: every rung costs the same.
        batch: how many trials of each loss are proposed at once, and train side by side.
    """

    trials: int = 32
    seeds: tuple[int, ...] = (1000,)
    val_fraction: float = 0.2
    metric: str = "accuracy"
    rungs: tuple[float, ...] = (0.25, 1.0)
    batch: int = 8

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)
        for name in ("trials", "batch"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not self.seeds:
            raise SpecError("seeds is empty; expected at least one")
        if not 0 < self.val_fraction < 1:
            raise SpecError(f"val_fraction must lie between 0 and 1, got {self.val_fraction}")
        rising = list(self.rungs) == sorted(set(self.rungs))
        if not rising or not self.rungs or self.rungs[0] <= 0 or self.rungs[-1] != 1:
            raise SpecError(f"rungs must be rising fractions of the epochs that end in 1.0, got {self.rungs}")


class LossTrials:
    """The trials of one loss, an Optuna study."""

    def __init__(self, store: Store, base: RunSpec, loss: LossSpec, settings: TuneSettings) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.store, self.base, self.loss, self.settings = store, base, loss, settings
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(_journal(store))))
        self._name = _study_name(base, loss, settings)
        self.study = optuna.create_study(
            storage=storage,
            study_name=self._name,
            direction=METRICS[settings.metric][0],
            load_if_exists=True,
        )

    def spent(self) -> int:
        """Trials that are over."""
        return sum(trial.state.is_finished() for trial in self._trials())

    def specs(self) -> list[RunSpec]:
        """The runs of all trials so far, at every rung."""
        return [spec for rung in self.settings.rungs for spec in TrialBatch(self, self._trials()).specs(rung)]

    def next_batch(self) -> TrialBatch | None:
        """Return the trials to do now: those a killed process left, and new ones up to the budget."""
        import optuna

        trials = self.study.get_trials(deepcopy=False)
        pending = [t for t in trials if not t.state.is_finished() and _CHANGES in t.user_attrs]
        # A process killed between asking and writing leaves a trial without values: it never was one.
        for trial in trials:
            if not trial.state.is_finished() and _CHANGES not in trial.user_attrs:
                self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        asked = len(self._trials())
        missing = self.settings.trials - asked
        # New trials when the old ones are over, or to fill a batch whose process was killed while it asked for them: so
        # that a restart changes nothing about what is proposed.
        batch = -asked % self.settings.batch if pending else self.settings.batch
        for number in range(asked, asked + min(missing, batch)):
            # A sampler with one seed would propose the same first trials again after each restart.
            seed = int(hashlib.sha256(f"{self._name}-{number}".encode()).hexdigest()[:8], 16)
            self.study.sampler = optuna.samplers.TPESampler(seed=seed)
            trial = self.study.ask()
            changes = suggest_changes(self.base, self.loss, trial)
            trial.set_user_attr(_CHANGES, json.dumps({**changes, "loss": str(changes["loss"])}))
        pending = [t for t in self.study.get_trials(deepcopy=False) if not t.state.is_finished()]
        return TrialBatch(self, pending) if pending else None

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        """The trials that count: begun, and not given up because their process was killed or their runs failed."""
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if _CHANGES in trial.user_attrs and trial.state.name != "FAIL"]

    def best_at(self, rung: float) -> set[int]:
        """Return the numbers of the trials, of all that reached a rung, that are good enough for the next one.

        Optuna's own pruners judge a trial by those before it: the first of a batch would always continue.
        """
        step, rungs = _step(rung), self.settings.rungs
        reached = [t for t in self._trials() if step in t.intermediate_values]
        sign = -1.0 if METRICS[self.settings.metric][0] == "maximize" else 1.0
        ranked = sorted(reached, key=lambda t: (sign * t.intermediate_values[step], t.number))
        share = rung / rungs[rungs.index(rung) + 1]
        return {t.number for t in ranked[: max(1, round(share * len(ranked)))]}

    def best(self) -> TunedLoss | None:
        """Return the best finished trial."""
        trials = self._trials()
        if not any(t.state.name == "COMPLETE" for t in trials):
            return None
        best = self.study.best_trial
        return TunedLoss(
            asked=self.loss,
            changes=json.loads(best.user_attrs[_CHANGES]),
            value=float(best.value) if best.value is not None else math.nan,
            trials=self.spent(),
            pruned=sum(t.state.name == "PRUNED" for t in trials),
            metric=self.settings.metric,
            budget=self.settings.trials,
            complete=self.spent() >= self.settings.trials,
        )


class TrialBatch:
    """Trials of one loss that train side by side."""

    def __init__(self, own: LossTrials, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
        self._own = own
        self._open = list(trials)

    def specs(self, rung: float) -> list[RunSpec]:
        """Return the runs of the trials that are still in, at a fraction of the epochs."""
        return [spec for trial in self._open for spec in self._runs(trial, rung)]

    def judge(self, rung: float, failed: Collection[str] = ()) -> None:
        """Tell Optuna how the trials did, whose runs are all recorded or failed; the hopeless ones end here."""
        import optuna

        study, step = self._own.study, _step(rung)
        if rung == 1:
            for frozen in self._open:
                study.tell(frozen.number, self._value(self._runs(frozen, rung), failed))
            self._open = []
            return
        # All values are written before any trial ends, so that a process killed in between decides the same later.
        for frozen in self._open:
            if step not in frozen.intermediate_values:
                # A trial that a killed process left is only a number here: this is Optuna's handle on it.
                trial = optuna.trial.Trial(study, frozen._trial_id)
                trial.report(self._value(self._runs(frozen, rung), failed), step=step)
        going_on = self._own.best_at(rung)
        for frozen in self._open:
            if frozen.number not in going_on:
                study.tell(frozen.number, state=optuna.trial.TrialState.PRUNED)
        self._open = [frozen for frozen in self._open if frozen.number in going_on]

    def _runs(self, trial: optuna.trial.FrozenTrial, rung: float) -> list[RunSpec]:
        base, settings = self._own.base, self._own.settings
        changes = json.loads(trial.user_attrs[_CHANGES])
        epochs = max(round(base.recipe.epochs * rung), 1)
        warmup = round(changes.pop("recipe.warmup_epochs") * rung, 3)
        judged = base.replace(
            **changes,
            ood=(),
            evaluate_on="val",
            **{
                "subset.val_fraction": settings.val_fraction,
                "recipe.epochs": epochs,
                "recipe.warmup_epochs": warmup,
            },
        )
        return [judged.replace(seed=seed) for seed in settings.seeds]

    def _value(self, runs: Sequence[RunSpec], failed: Collection[str]) -> float:
        metric = self._own.settings.metric
        # A run that diverged has an accuracy, and may have nothing else.
        values = [
            math.nan if spec.key in failed else self._own.store.read(spec.key).result.metrics.get(metric, math.nan)
            for spec in runs
        ]
        return sum(v if math.isfinite(v) else METRICS[metric][1] for v in values) / len(values)


def repair_journal(store: Store) -> None:
    """Cut off what a full disk or a power cut left of the journal's last line; nobody else may be tuning meanwhile.

    Optuna would write its next line behind it, and could read neither. What the line would have said is asked again.

    Raises:
        StoreError: a line before the last one is damaged, and what follows it cannot be relied on.
    """
    path = _journal(store)
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not _is_whole(lines[-1]):
        _log.warning("the last line of %s was cut short, by a full disk or a power cut; it is removed", path)
        torn = lines.pop()
        with path.open("rb+") as file:
            file.truncate(file.seek(0, os.SEEK_END) - len(torn))
    for number, line in enumerate(lines, start=1):
        if not _is_whole(line):
            raise StoreError(
                f"line {number} of {path} is damaged; restore the file, or remove it to tune again (trials that are "
                "recorded are not trained again)"
            )


def _journal(store: Store) -> Path:
    return store.root / "tune" / "trials.log"


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return line.endswith(b"\n")


def _step(rung: float) -> int:
    """A rung as Optuna counts steps."""
    return round(rung * 1000)


def _study_name(base: RunSpec, loss: LossSpec, settings: TuneSettings) -> str:
    """Return a name that changes with whatever changes a trial's meaning, but not with the budget."""
    judged = {"seeds": settings.seeds, "val": settings.val_fraction, "metric": settings.metric, "rungs": settings.rungs}
    shared = base.replace(seed=0, loss="ce").to_dict()
    digest = hashlib.sha256(canonical_json([_STUDY_LAYOUT, shared, judged]).encode()).hexdigest()[:12]
    return f"{loss}-{digest}"
